#include "deploy/validate/rollout_figures.h"

#include <algorithm>
#include <map>
#include <utility>

namespace specdec::deploy {

namespace {

std::string unit_of(const TokenRow& row) {
  return row.conversation.empty() ? "request " + row.id : "conversation " + row.conversation;
}

// Groups the indices of `members` by conversation, in order of first appearance.
std::vector<std::vector<size_t>> by_conversation(std::span<const TokenRow> rows, std::span<const size_t> members) {
  std::map<std::string, size_t> index;
  std::vector<std::vector<size_t>> groups;
  for (size_t i = 0; i < members.size(); ++i) {
    const auto [it, fresh] = index.emplace(unit_of(rows[members[i]]), groups.size());
    if (fresh) groups.emplace_back();
    groups[it->second].push_back(i);
  }
  return groups;
}

}  // namespace

RolloutFigures rollout_figures(std::span<const TokenRow> rows, std::span<const decode::Rollout> rollouts,
                               std::span<const size_t> members, const decode::RolloutOptions& options) {
  RolloutFigures figures;
  figures.k = options.k;
  figures.verify = to_string(options.verify);
  std::vector<double> values;
  for (const auto& group : by_conversation(rows, members)) {
    double overlap = 0, reached = 0;
    for (const size_t i : group) {
      const AcceptanceCounts& c = rollouts[members[i]].counts;
      figures.counts.add(c);
      for (size_t position = 0; position < c.reached_at.size(); ++position) {
        overlap += c.overlap_sum_at[position];
        reached += static_cast<double>(c.reached_at[position]);
      }
    }
    if (reached > 0) values.push_back(overlap / reached);
  }
  figures.alpha = bounded_mean(values);
  return figures;
}

std::vector<Estimate> overlap_by_position(std::span<const TokenRow> rows, std::span<const decode::Rollout> rollouts) {
  std::vector<size_t> all(rows.size());
  size_t width = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    all[i] = i;
    width = std::max(width, rollouts[i].counts.reached_at.size());
  }
  const auto groups = by_conversation(rows, all);
  std::vector<Estimate> out;
  for (size_t position = 0; position < width; ++position) {
    std::vector<std::pair<double, double>> sums;  // overlap and reached positions of each conversation
    for (const auto& group : groups) {
      std::pair<double, double> sum;
      for (const size_t i : group)
        if (const AcceptanceCounts& c = rollouts[i].counts; position < c.reached_at.size()) {
          sum.first += c.overlap_sum_at[position];
          sum.second += static_cast<double>(c.reached_at[position]);
        }
      if (sum.second > 0) sums.push_back(sum);
    }
    if (sums.empty()) break;
    double reached = 0;
    for (const auto& sum : sums) reached += sum.second;
    const auto ratio = [&](std::span<const size_t> units) {
      double above = 0, below = 0;
      for (const size_t u : units) {
        above += sums[u].first;
        below += sums[u].second;
      }
      return above / below;
    };
    // With very many conversations the interval is narrow, so fewer resamples suffice.
    Estimate e =
        bootstrap(sums.size(), ratio, 0.10, static_cast<int>(std::clamp<size_t>(4'000'000 / sums.size(), 200, 2000)));
    e.n = static_cast<int64_t>(reached);
    out.push_back(e);
  }
  return out;
}

}  // namespace specdec::deploy
