// Writes the seeds that a target's fuzz_seeds() makes into the target's corpus directory, before libFuzzer reads it.
// The directory is the first argument that is not a flag.
#include <sys/stat.h>

#include <fstream>
#include <string>
#include <vector>

std::vector<std::string> fuzz_seeds() __attribute__((weak));

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  if (fuzz_seeds == nullptr) return 0;
  for (int i = 1; i < *argc; ++i) {
    struct stat info{};
    const std::string corpus = (*argv)[i];
    if (corpus[0] == '-' || ::stat(corpus.c_str(), &info) != 0 || !S_ISDIR(info.st_mode)) continue;
    const auto seeds = fuzz_seeds();
    for (size_t n = 0; n < seeds.size(); ++n)
      std::ofstream(corpus + "/seed-" + std::to_string(n), std::ios::binary) << seeds[n];
    break;
  }
  return 0;
}
