#include "data/select/split.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <tuple>
#include <unordered_map>

#include "base/error.h"
#include "base/philox.h"
#include "base/sha256.h"

namespace specdec::data {

namespace {

constexpr uint64_t kHashStream = 1, kShuffleStream = 2;

struct Conversation {
  uint64_t key = 0;
  int64_t last_time = 0;
  size_t first_row = 0;
  bool holdout = false;
};

std::string choose_rule(const std::vector<SplitRow>& rows, const SplitOptions& options) {
  if (options.rule == "first" || options.rule == "hash") return options.rule;
  const auto unknown =
      std::find_if(rows.begin(), rows.end(), [](const SplitRow& r) { return r.time <= 0 && !r.forced_holdout; });
  if (unknown == rows.end()) return "time";
  if (options.rule == "time")
    throw Error(ErrorKind::kData, "--holdout-rule time: row " + std::to_string(unknown - rows.begin() + 1) +
                                      " of the accepted rows has no time: use --holdout-rule hash");
  return "hash";
}

}  // namespace

uint64_t conversation_key(const std::string& conversation) {
  return std::stoull(sha256_hex(conversation).substr(0, 16), nullptr, 16);
}

SplitResult split_rows(const std::vector<SplitRow>& rows, const SplitOptions& options) {
  SplitResult result;
  result.rule = choose_rule(rows, options);
  std::vector<Conversation> conversations;
  std::unordered_map<uint64_t, size_t> index;
  for (size_t r = 0; r < rows.size(); ++r) {
    const auto [it, is_new] = index.try_emplace(rows[r].conversation, conversations.size());
    if (is_new) conversations.push_back({rows[r].conversation, rows[r].time, r, false});
    Conversation& c = conversations[it->second];
    c.last_time = std::max(c.last_time, rows[r].time);
    c.holdout |= rows[r].forced_holdout;
  }
  std::vector<Conversation*> candidates;
  for (Conversation& c : conversations)
    if (!c.holdout) candidates.push_back(&c);
  size_t wanted = static_cast<size_t>(options.count);
  if (options.count == 0) {
    wanted = static_cast<size_t>(std::llround(options.share * static_cast<double>(candidates.size())));
    if (options.share > 0 && candidates.size() >= 2) wanted = std::max<size_t>(wanted, 1);
  }
  const auto rank = [&](const Conversation& c) -> std::tuple<int64_t, double, size_t> {
    if (result.rule == "first") return {0, 0.0, c.first_row};
    return {result.rule == "time" ? -c.last_time : 0, philox_uniform(options.seed ^ c.key, kHashStream, c.key),
            c.first_row};
  };
  std::sort(candidates.begin(), candidates.end(),
            [&](const Conversation* a, const Conversation* b) { return rank(*a) < rank(*b); });
  for (size_t i = 0; i < std::min(wanted, candidates.size()); ++i) candidates[i]->holdout = true;
  for (const SplitRow& row : rows) result.holdout.push_back(conversations[index[row.conversation]].holdout);
  return result;
}

std::vector<size_t> shuffled_order(size_t n, uint64_t seed) {
  std::vector<size_t> order(n);
  std::iota(order.begin(), order.end(), size_t{0});
  PhiloxStream random(seed, kShuffleStream);
  for (size_t i = n; i > 1; --i) std::swap(order[i - 1], order[random.below(i)]);
  return order;
}

}  // namespace specdec::data
