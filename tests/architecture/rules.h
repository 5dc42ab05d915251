// Reads a source tree and says where it breaks the rules of docs/architecture: who may include whom, how own headers
// are included, what libraries must not call, how long files and functions may be; and where a merge left its markers.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace specdec::architecture {

struct Violation {
  std::string file;  // relative to the root
  int line = 0;      // 0: the file as a whole
  std::string text;
};

std::vector<Violation> check_tree(const std::filesystem::path& root);

}  // namespace specdec::architecture
