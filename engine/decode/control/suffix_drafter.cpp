#include "engine/decode/control/suffix_drafter.h"

#include <algorithm>

namespace specdec::decode {

namespace {

// Returns the FNV-1a hash of the ids.
uint64_t hash_of(std::span<const int32_t> run) {
  uint64_t hash = 14695981039346656037ull;
  for (const int32_t id : run) hash = (hash ^ static_cast<uint32_t>(id)) * 1099511628211ull;
  return hash;
}

}  // namespace

std::span<const int32_t> SuffixDrafter::propose(std::span<const int32_t> tokens, int count) {
  // Adds the runs of tokens that end before the last token. The run that ends at the last token is added by a later
  // call, when the next token is known.
  for (; indexed_ < tokens.size(); ++indexed_)
    for (size_t i = 0; i < std::size(kLengths); ++i)
      if (const auto length = static_cast<size_t>(kLengths[i]); indexed_ >= length)
        ends_[i].at[hash_of(tokens.subspan(indexed_ - length, length))] = static_cast<int32_t>(indexed_);
  proposal_.clear();
  for (size_t i = std::size(kLengths); i-- > 0;) {
    const auto length = static_cast<size_t>(kLengths[i]);
    if (tokens.size() < length) continue;
    const std::span<const int32_t> end = tokens.last(length);
    const auto found = ends_[i].at.find(hash_of(end));
    if (found == ends_[i].at.end()) continue;
    const auto from = static_cast<size_t>(found->second);
    if (!std::equal(end.begin(), end.end(), tokens.begin() + static_cast<ptrdiff_t>(from - length))) continue;
    for (size_t j = 0; j < static_cast<size_t>(std::max(count, 0)); ++j)
      proposal_.push_back(from + j < tokens.size() ? tokens[from + j] : proposal_[from + j - tokens.size()]);
    break;
  }
  return proposal_;
}

}  // namespace specdec::decode
