// Says before hours of training that the held-out part of the data is too small for a verdict.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace specdec::cli {

struct HoldoutAdvice {
  std::string warning;  // "" = enough conversations are held out
  double share = 0;     // --holdout with which as many conversations would be enough; 0 = none: more logs are needed
};

// Judges `held_out` of `conversations` by what `distill` needs for a verdict. At most half are advised to be held out.
HoldoutAdvice holdout_advice(int64_t conversations, int64_t held_out);

// Returns the words of a `data ingest` command with --holdout set to `share`. Other flags that choose the number of
// held-out conversations are taken out.
std::vector<std::string> with_holdout(std::vector<std::string> words, double share);

}  // namespace specdec::cli
