// specdec_power_cut JOURNAL START ROOT: prints how many changes were recorded, then each of them on a line.
// specdec_power_cut JOURNAL START ROOT N all|contents|some SEED OUT: writes what the first N changes may have left to
// OUT.
#include <cstdio>
#include <cstdlib>
#include <exception>

#include "tests/faults/power_cut.h"

int main(int argc, char** argv) {
  using namespace specdec::testing;
  if (argc != 4 && argc != 8) return 2;
  try {
    const PowerCut cut(argv[1], argv[2], argv[3]);
    if (argc == 4) {
      std::printf("%zu\n", cut.changes());
      for (size_t i = 0; i < cut.changes(); ++i) std::printf("%s\n", cut.name(i).c_str());
      return 0;
    }
    const std::string lost = argv[5];
    cut.restore(std::strtoull(argv[4], nullptr, 10),
                lost == "all"        ? Lost::kAll
                : lost == "contents" ? Lost::kContents
                                     : Lost::kSome,
                std::strtoull(argv[6], nullptr, 10), argv[7]);
    return 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "specdec_power_cut: %s\n", e.what());
    return 1;
  }
}
