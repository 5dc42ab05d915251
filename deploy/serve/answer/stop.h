// Finds stop strings in streamed text and decides which text may be shown and which must wait because it may begin a
// stop string.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace specdec::deploy {

// Matches byte by byte (one Knuth-Morris-Pratt automaton per string), so the result does not depend on how the text was
// cut into pushes, and the cost is linear. The string that completes first matches; if several complete at the same
// byte, the longest does.
class StopMatcher {
 public:
  // None of the strings may be empty. With `include` the stop string that matches is shown too, so nothing waits.
  explicit StopMatcher(std::vector<std::string> stops, bool include = false);

  // Returns the text that is safe to show. On a match this is the text before the stop string (with `include` up to its
  // end); later calls return nothing. If `may_match` is false, a string that completes in `text` is no match; one that
  // only begins there may complete later.
  std::string push(std::string_view text, bool may_match = true);
  // Returns the text still held back, at the end of the answer; empty after a match.
  std::string finish();
  bool matched() const { return matched_; }
  size_t held() const { return held_.size(); }  // bytes that wait

 private:
  std::vector<std::string> stops_;
  bool include_;
  std::vector<std::vector<size_t>> fail_;  // [string][matched bytes] → length of the longest border
  std::vector<size_t> state_;              // [string] bytes matched
  std::string held_;
  bool matched_ = false;
};

}  // namespace specdec::deploy
