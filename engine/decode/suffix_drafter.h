// Drafting without a model: what followed when the text's end stood in it before (prompt lookup, Saxena 2023; suffix
// decoding, Oliaro et al. 2024, arXiv 2411.04975). Costs no pass, and pays where answers repeat their prompt: code
// edits, quotes, extraction, loops.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

namespace specdec::decode {

// Of one sequence. Remembers where each run of kShortest, 2 · kShortest, 4 · kShortest tokens ended last: about 150
// bytes a token.
class SuffixDrafter {
 public:
  static constexpr int kShortest = 3;

  // At most `count` tokens to follow `tokens`: what came after the latest earlier occurrence of their longest known
  // end; a text that runs in circles is followed around. Empty where their last kShortest tokens are new. `tokens`
  // begin with those of the call before. The span is valid until the next call.
  std::span<const int32_t> propose(std::span<const int32_t> tokens, int count);

 private:
  static constexpr int kLengths[] = {kShortest, 2 * kShortest, 4 * kShortest};
  struct Ends {
    std::unordered_map<uint64_t, int32_t> at;  // hash of the run → where it ended
  };
  Ends ends_[std::size(kLengths)];
  size_t indexed_ = 0;  // ends before this one are in the maps
  std::vector<int32_t> proposal_;
};

}  // namespace specdec::decode
