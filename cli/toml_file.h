// Reads TOML files (the settings file and LOOP.toml).
#pragma once

namespace specdec::cli {
struct TomlAssertion {};
[[noreturn]] inline void fail_toml_assertion() { throw TomlAssertion(); }
}  // namespace specdec::cli
// toml++ asserts conditions that a malformed file may violate (a date-time that continues without a digit). Such an
// assertion must become an error about the file and must not abort the program.
#define TOML_ASSERT(expr) ((expr) ? static_cast<void>(0) : ::specdec::cli::fail_toml_assertion())
#include <toml++/toml.h>

#include <filesystem>

namespace specdec::cli {

// Reads at most 1 MiB. Throws Error(kConfig) with file and line for text that is not TOML and for keys of more than 32
// parts ("a.b.c" has three). toml++ recurses over the parts without a limit of its own.
toml::table read_toml(const std::filesystem::path& file);

}  // namespace specdec::cli
