#include "cli/holdout_advice.h"

#include <algorithm>
#include <cmath>

#include "base/format.h"
#include "distill/settings/defaults.h"

namespace specdec::cli {

HoldoutAdvice holdout_advice(int64_t conversations, int64_t held_out) {
  constexpr int64_t kNeeded = distill::kMinHeldOutConversations;
  if (held_out >= kNeeded) return {};
  HoldoutAdvice advice;
  advice.warning = std::to_string(held_out) + " of " + std::to_string(conversations) +
                   " conversations are held out, and a verdict of distill needs at least " + std::to_string(kNeeded) +
                   ": ";
  // Advises to hold out one conversation more than needed, because `data ingest` rounds share × conversations.
  const double share =
      std::ceil(100.0 * (kNeeded + 1) / static_cast<double>(std::max<int64_t>(conversations, 1))) / 100;
  if (share <= 0.5) advice.share = share;
  advice.warning +=
      advice.share > 0 ? "give --holdout " + number_text(advice.share) + ", or more logs" : "give more logs";
  return advice;
}

std::vector<std::string> with_holdout(std::vector<std::string> words, double share) {
  std::vector<std::string> out;
  for (size_t i = 0; i < words.size(); ++i) {
    const bool chosen = words[i] == "--holdout" || words[i] == "--holdout-count";
    if (chosen)
      ++i;  // skips the flag and its value
    else if (!words[i].starts_with("--holdout=") && !words[i].starts_with("--holdout-count="))
      out.push_back(std::move(words[i]));
  }
  // Inserted directly after "ingest", because all words after a "--" are sources.
  const auto command = std::find(out.begin(), out.end(), "ingest");
  out.insert(command == out.end() ? command : command + 1, {"--holdout", number_text(share)});
  return out;
}

}  // namespace specdec::cli
