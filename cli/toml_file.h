// The one reader of TOML files: settings and loop files.
#pragma once

#include <toml++/toml.h>

#include <filesystem>

namespace specdec::cli {

// At most 1 MiB. Throws Error(kConfig) naming file and line for what is no TOML, and for keys of more than 32 parts ("a.b.c"): the
// parser recurses along these without a bound of its own.
toml::table read_toml(const std::filesystem::path& file);

}  // namespace specdec::cli
