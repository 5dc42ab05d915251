// Drafts without a model: if the last tokens of the text occurred before, proposes the tokens that followed that
// occurrence (prompt lookup, Saxena 2023; suffix decoding, Oliaro et al. 2024, arXiv 2411.04975). This pays off if
// answers repeat their prompt or themselves: code edits, quotes, extraction, loops.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

namespace specdec::decode {

// The drafter of one sequence. Stores where each run of kShortest, 2 · kShortest and 4 · kShortest tokens last ended,
// in about 150 bytes per token.
class SuffixDrafter {
 public:
  static constexpr int kShortest = 3;

  // Proposes at most `count` tokens to follow `tokens`: finds the longest known suffix of `tokens` and returns the
  // tokens after its latest earlier occurrence. If these tokens reach the end of the text, the proposal repeats itself
  // from its first token. Returns an empty span if the last kShortest tokens never occurred before. `tokens` must begin
  // with the tokens of the previous call. The span is valid until the next call.
  std::span<const int32_t> propose(std::span<const int32_t> tokens, int count);

 private:
  static constexpr int kLengths[] = {kShortest, 2 * kShortest, 4 * kShortest};
  struct Ends {
    std::unordered_map<uint64_t, int32_t> at;  // hash of the run → index after its end
  };
  Ends ends_[std::size(kLengths)];
  size_t indexed_ = 0;  // the maps contain the runs that end before this index
  std::vector<int32_t> proposal_;
};

}  // namespace specdec::decode
