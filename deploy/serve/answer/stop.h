// Finds stop strings in streamed text. Text that may be the beginning of a stop string is held back.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace specdec::deploy {

// Matches byte by byte (one Knuth-Morris-Pratt automaton per string), so the result does not depend on how the text was
// divided into pushes, and the cost is linear. The string that completes first matches; if several complete at the same
// byte, the longest matches.
class StopMatcher {
 public:
  // No stop string may be empty. With `include` the matching stop string is part of the answer. Then no text needs to
  // be held back, because all text up to the end of a match is shown.
  explicit StopMatcher(std::vector<std::string> stops, bool include = false);

  // Returns the text that may be shown. When a stop string matches, this is the text before the stop string, or with
  // `include` up to its end; later calls return nothing. If `may_match` is false, a stop string that ends in `text` is
  // ignored. A stop string that begins in `text` may still match in a later call.
  std::string push(std::string_view text, bool may_match = true);
  // Must be called at the end of the answer. Returns the text still held back; empty after a match.
  std::string finish();
  bool matched() const { return matched_; }
  size_t held() const { return held_.size(); }  // number of bytes held back

 private:
  std::vector<std::string> stops_;
  bool include_;
  // [string][matched bytes] → number of matched bytes with which the search continues after a mismatch
  std::vector<std::vector<size_t>> fail_;
  std::vector<size_t> state_;  // [string] → number of bytes matched
  std::string held_;
  bool matched_ = false;
};

}  // namespace specdec::deploy
