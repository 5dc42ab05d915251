// Checks a source tree against the rules of docs/architecture.md: which folder may include which, how the repository's
// own headers are included, which functions libraries must not call, how long files and functions may be. Also reports
// left-over merge markers.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace specdec::architecture {

struct Violation {
  std::string file;  // relative to the root
  int line = 0;      // from 1; 0 = the violation concerns the whole file
  std::string text;
};

std::vector<Violation> check_tree(const std::filesystem::path& root);

}  // namespace specdec::architecture
