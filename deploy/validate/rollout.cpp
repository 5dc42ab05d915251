#include "deploy/validate/rollout.h"

#include <algorithm>
#include <map>
#include <memory>
#include <utility>

#include "base/error.h"
#include "base/sha256.h"
#include "engine/decode/answer.h"
#include "engine/decode/step.h"

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

// An answer in the batch.
struct Running {
  size_t row;
  decode::Sequence sequence;
  decode::AnswerCut cut;
  Running(size_t row, decode::Stepper& stepper, decode::Request request, const decode::Drafting& drafting)
      : row(row), sequence(stepper, std::move(request), drafting), cut(sequence.options()) {}
};

class Roller {
 public:
  Roller(decode::CausalModel& target, decode::CausalModel* draft, const RolloutOptions& options)
      : target_(target), stepper_(target, draft), options_(options) {
    drafting_.verify = options.verify;
    if (options.k == 0) return;
    decode::ControllerOptions& controller = drafting_.model.emplace();
    controller.fixed_k = options.k;
    controller.max_k = options.k < 0 ? options.max_k : options.k;
  }

  size_t active() const { return running_.size(); }

  // Starts a row. Returns false if the prompt leaves no space for an answer, or is empty.
  bool start(size_t index, const TokenRow& row) {
    const int64_t prompt = std::max<int64_t>(row.prompt_tokens, 1);
    if (row.tokens.empty() || prompt >= target_.max_length()) return false;
    const auto end = row.tokens.begin() + std::min<int64_t>(prompt, static_cast<int64_t>(row.tokens.size()));
    decode::Request request{{row.tokens.begin(), end}, row_seed(options_.seed, row.id), options_.request};
    auto r = std::make_unique<Running>(index, stepper_, std::move(request), drafting_);
    stepper_.start(r->sequence);
    running_.push_back(std::move(r));
    return true;
  }

  // Runs one step, removes the answers that ended, and returns their number.
  size_t step(std::vector<Rollout>& out) {
    batch_.clear();
    for (auto& r : running_) batch_.push_back(&r->sequence);
    stepper_.step(batch_);
    const size_t before = running_.size();
    std::erase_if(running_, [&](const std::unique_ptr<Running>& r) { return add(*r, out[r->row]); });
    return before - running_.size();
  }

 private:
  // Adds the emitted tokens and returns whether the answer has ended.
  static bool add(Running& r, Rollout& out) {
    const decode::AnswerEnd end = r.cut.add(r.sequence.outcome().emitted, [&](int32_t token, bool) {
      out.tokens.push_back(token);
      return true;
    });
    if (end == decode::AnswerEnd::kNone && r.sequence.remaining() > 0) return false;
    out.counts = r.sequence.counts();
    out.counts.emitted = r.cut.tokens();
    return true;
  }

  decode::CausalModel& target_;
  decode::Stepper stepper_;
  const RolloutOptions& options_;
  decode::Drafting drafting_;
  std::vector<std::unique_ptr<Running>> running_;
  std::vector<decode::Sequence*> batch_;
};

}  // namespace

uint64_t row_seed(uint64_t seed, const std::string& id) {
  return std::stoull(sha256_hex(std::to_string(seed) + ":" + id).substr(0, 16), nullptr, 16);
}

std::vector<Rollout> roll_out(decode::CausalModel& target, decode::CausalModel* draft, std::span<const TokenRow> rows,
                              const RolloutOptions& options, const ProgressFn& progress) {
  std::vector<Rollout> out(rows.size());
  Roller roller(target, draft, options);
  size_t next = 0, done = 0;
  while (next < rows.size() || roller.active() > 0) {
    if (stop_requested()) throw Error(ErrorKind::kNetwork, "stopped by a signal during roll-outs");
    while (next < rows.size() && roller.active() < static_cast<size_t>(std::max(options.batch, 1))) {
      done += with_context("row " + rows[next].id, [&] { return roller.start(next, rows[next]); }) ? 0 : 1;
      ++next;
    }
    if (roller.active() > 0) done += roller.step(out);
    if (progress)
      progress({options.stage, static_cast<double>(done), static_cast<double>(rows.size()), "requests", ""});
  }
  return out;
}

TokenRow answered_row(const TokenRow& row, const Rollout& rollout) {
  TokenRow answered = row;
  answered.prompt_tokens =
      std::min<int64_t>(std::max<int64_t>(row.prompt_tokens, 1), static_cast<int64_t>(row.tokens.size()));
  answered.tokens.resize(static_cast<size_t>(answered.prompt_tokens));
  answered.loss_mask.assign(answered.tokens.size(), 0);
  answered.tokens.insert(answered.tokens.end(), rollout.tokens.begin(), rollout.tokens.end());
  answered.loss_mask.resize(answered.tokens.size(), 1);
  return answered;
}

std::vector<double> conversation_means(std::span<const TokenRow> rows, std::span<const size_t> members,
                                       std::span<const double> values) {
  std::vector<double> means;
  for (const auto& group : by_conversation(rows, members)) {
    double sum = 0;
    for (const size_t i : group) sum += values[i];
    means.push_back(sum / static_cast<double>(group.size()));
  }
  return means;
}

RolloutFigures rollout_figures(std::span<const TokenRow> rows, std::span<const Rollout> rollouts,
                               std::span<const size_t> members, const RolloutOptions& options) {
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

std::vector<Estimate> overlap_by_position(std::span<const TokenRow> rows, std::span<const Rollout> rollouts) {
  std::vector<size_t> all(rows.size());
  size_t width = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    all[i] = i;
    width = std::max(width, rollouts[i].counts.reached_at.size());
  }
  const auto groups = by_conversation(rows, all);
  std::vector<Estimate> out;
  for (size_t position = 0; position < width; ++position) {
    std::vector<std::pair<double, double>> sums;  // overlap and reached of each conversation
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
    // With very many conversations fewer resamples suffice, because the interval is narrow anyway.
    Estimate e =
        bootstrap(sums.size(), ratio, 0.10, static_cast<int>(std::clamp<size_t>(4'000'000 / sums.size(), 200, 2000)));
    e.n = static_cast<int64_t>(reached);
    out.push_back(e);
  }
  return out;
}

}  // namespace specdec::deploy
