// results_document FILE [--write]: compares FILE (docs/results.json) with the document that is generated from the code.
// With --write, writes FILE instead.
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>

#include "base/error.h"
#include "cli/results.h"

namespace {

std::string content(const char* file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc < 2) return 2;
  const std::string made = specdec::cli::results_document();
  if (argc > 2 && std::strcmp(argv[2], "--write") == 0) {
    std::ofstream(argv[1], std::ios::binary) << made;
    return 0;
  }
  if (content(argv[1]) == made) return 0;
  std::fprintf(stderr, "%s is not what the code prints; to renew it:\n  %s %s --write\n", argv[1], argv[0], argv[1]);
  return 1;
} catch (const std::exception& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
