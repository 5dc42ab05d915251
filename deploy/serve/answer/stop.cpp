#include "deploy/serve/answer/stop.h"

#include <algorithm>
#include <utility>

namespace specdec::deploy {

StopMatcher::StopMatcher(std::vector<std::string> stops, bool include)
    : stops_(std::move(stops)), include_(include), state_(stops_.size(), 0) {
  for (const std::string& s : stops_) {
    std::vector<size_t> fail(s.size() + 1, 0);
    for (size_t i = 1, k = 0; i < s.size(); ++i) {
      while (k > 0 && s[i] != s[k]) k = fail[k];
      if (s[i] == s[k]) ++k;
      fail[i + 1] = k;
    }
    fail_.push_back(std::move(fail));
  }
}

std::string StopMatcher::push(std::string_view text, bool may_match) {
  if (matched_) return {};
  if (stops_.empty()) return std::string(text);
  for (const char c : text) {
    held_.push_back(c);
    size_t complete = 0;
    for (size_t j = 0; j < stops_.size(); ++j) {
      const std::string& s = stops_[j];
      size_t& k = state_[j];
      while (k > 0 && c != s[k]) k = fail_[j][k];
      if (c == s[k]) ++k;
      if (k < s.size()) continue;
      if (may_match)
        complete = std::max(complete, k);
      else
        k = fail_[j][k];
    }
    if (complete > 0) {
      matched_ = true;
      if (!include_) held_.resize(held_.size() - complete);
      return std::exchange(held_, {});
    }
  }
  const size_t keep = include_ ? 0 : *std::max_element(state_.begin(), state_.end());
  std::string safe = held_.substr(0, held_.size() - keep);
  held_.erase(0, held_.size() - keep);
  return safe;
}

std::string StopMatcher::finish() { return std::exchange(held_, {}); }

}  // namespace specdec::deploy
