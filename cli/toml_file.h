// The one reader of TOML files: settings and loop files.
#pragma once

namespace specdec::cli {
struct TomlAssertion {};
[[noreturn]] inline void fail_toml_assertion() { throw TomlAssertion(); }
}  // namespace specdec::cli
// toml++ asserts what a malformed file may break (a date-time that goes on with no digit): that is an error of the file
// and ends no program.
#define TOML_ASSERT(expr) ((expr) ? static_cast<void>(0) : ::specdec::cli::fail_toml_assertion())
#include <toml++/toml.h>

#include <filesystem>

namespace specdec::cli {

// At most 1 MiB. Throws Error(kConfig) naming file and line for what is no TOML, and for keys of more than 32 parts
// ("a.b.c"): the parser recurses along these without a bound of its own.
toml::table read_toml(const std::filesystem::path& file);

}  // namespace specdec::cli
