// Warns, before hours of training, that the held-out part of the data is too small for a verdict.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace specdec::cli {

struct HoldoutAdvice {
  std::string warning;  // "" = enough conversations are held out
  // The value of --holdout that would hold out enough of these conversations; 0 if even 0.5 is not enough, so that more
  // logs are needed.
  double share = 0;
};

// Compares the number of held-out conversations with what `distill` needs for a verdict. Never advises to hold out more
// than half.
HoldoutAdvice holdout_advice(int64_t conversations, int64_t held_out);

// Returns the words of a `data ingest` command with --holdout set to `share`. Other flags that choose the number of
// held-out conversations are taken out.
std::vector<std::string> with_holdout(std::vector<std::string> words, double share);

}  // namespace specdec::cli
