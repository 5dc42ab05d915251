// Says before hours of training that the held-out part of the data is too small for a verdict.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace specdec::cli {

struct HoldoutAdvice {
  std::string warning;  // "" = enough conversations are held out
  // The value of --holdout that would hold out enough of these conversations. It is 0 if no value up to 0.5 would, so
  // that more logs are needed.
  double share = 0;
};

// Judges `held_out` of `conversations` by what `distill` needs for a verdict. At most half are advised to be held out.
HoldoutAdvice holdout_advice(int64_t conversations, int64_t held_out);

// Returns the words of a `data ingest` command with --holdout set to `share`. Other flags that choose the number of
// held-out conversations are taken out.
std::vector<std::string> with_holdout(std::vector<std::string> words, double share);

}  // namespace specdec::cli
