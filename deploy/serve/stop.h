// Stop strings over streamed text: what may be shown now, what must wait because it may become a stop string.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace specdec::deploy {

// Matches byte by byte (one Knuth-Morris-Pratt automaton a string), so the result does not depend on how the text was
// cut into pushes, and the cost is linear. The string that is complete first wins; of several complete at the same
// byte, the longest.
class StopMatcher {
 public:
  explicit StopMatcher(std::vector<std::string> stops);  // none of them empty

  // Text that is safe to show. After a match: the text before it, and nothing ever again.
  std::string push(std::string_view text);
  // The rest that was held back, at the end of the answer; empty after a match.
  std::string finish();
  bool matched() const { return matched_; }

 private:
  std::vector<std::string> stops_;
  std::vector<std::vector<size_t>> fail_;  // [string][matched bytes] → longest border
  std::vector<size_t> state_;              // [string] bytes matched
  std::string held_;
  bool matched_ = false;
};

}  // namespace specdec::deploy
