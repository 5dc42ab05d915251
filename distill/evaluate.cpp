#include "distill/evaluate.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <numeric>

#include "base/error.h"
#include "base/sha256.h"
#include "distill/batcher.h"
#include "engine/model/draft_vocab.h"

namespace specdec::distill {

namespace {

// Figures of some flat positions: [R] each, fp32 on the CPU. Blocks of positions bound the fp32 copies of large vocabularies.
struct PositionScores {
  at::Tensor overlap, agree, cross_entropy;
};

PositionScores score_positions(const at::Tensor& draft, const at::Tensor& target, const Batch& batch, double temperature) {
  const int64_t vocab = draft.size(-1), block = std::max<int64_t>(1, (int64_t{1} << 25) / vocab);
  const at::Tensor rows = batch.rows.to(draft.device()), labels = batch.labels.to(draft.device());
  std::vector<at::Tensor> overlap, agree, entropy;
  for (int64_t begin = 0; begin < rows.numel(); begin += block) {
    const at::Tensor index = rows.slice(0, begin, std::min(rows.numel(), begin + block));
    const at::Tensor log_q = at::log_softmax(draft.index_select(0, index).to(at::kFloat) / temperature, -1);
    const at::Tensor own = log_q.gather(1, labels.index_select(0, index).unsqueeze(1)).squeeze(1);
    entropy.push_back(at::where(own.isneginf(), at::zeros_like(own), own.neg()));  // a label outside of a reduced vocabulary counts as 0
    if (!target.defined()) continue;
    const at::Tensor log_p = at::log_softmax(target.index_select(0, index).to(at::kFloat) / temperature, -1);
    overlap.push_back(at::minimum(log_p.exp(), log_q.exp()).sum(-1));
    agree.push_back(log_p.argmax(-1).eq(log_q.argmax(-1)).to(at::kFloat));
  }
  const auto join = [](const std::vector<at::Tensor>& parts) { return parts.empty() ? at::Tensor() : at::cat(parts).cpu(); };
  return {join(overlap), join(agree), join(entropy)};
}

// Conversations in order of first appearance, each with its rows.
std::vector<std::vector<size_t>> by_conversation(const std::vector<TokenRow>& rows) {
  std::map<std::string, size_t> seen;
  std::vector<std::vector<size_t>> groups;
  for (size_t i = 0; i < rows.size(); ++i) {
    const auto [it, fresh] = seen.try_emplace(rows[i].conversation, groups.size());
    if (fresh) groups.emplace_back();
    groups[it->second].push_back(i);
  }
  return groups;
}

using TargetLogits = std::function<at::Tensor(const Batch&)>;  // [B·S, V]; empty: no target

at::Tensor flat_logits(const model::Decoder& decoder, const Batch& batch) {
  return model::spread_logits(frozen_logits(decoder, batch.tokens), decoder.config.draft_vocab, decoder.config.vocab_size).flatten(0, 1);
}

Evaluation evaluate_with(const model::Decoder& draft, const TargetLogits& target, const std::vector<TokenRow>& rows,
                         double temperature, int64_t batch_tokens) {
  at::NoGradGuard guard;
  constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
  Evaluation out;
  out.rows.resize(rows.size());
  std::vector<size_t> order(rows.size());
  std::iota(order.begin(), order.end(), size_t{0});
  for (const auto& group : group_rows(rows, order, batch_tokens)) {
    const Batch batch = make_batch(rows, group);
    const int64_t width = batch.tokens.size(1);
    const PositionScores scores =
        score_positions(flat_logits(draft, batch), target ? target(batch) : at::Tensor(), batch, temperature);
    const int64_t* position = batch.rows.const_data_ptr<int64_t>();
    for (int64_t i = 0; i < batch.rows.numel(); ++i) {
      RowScore& row = out.rows[group[static_cast<size_t>(position[i] / width)]];
      ++row.tokens;
      row.cross_entropy += scores.cross_entropy.const_data_ptr<float>()[i];
      row.acceptance += target ? scores.overlap.const_data_ptr<float>()[i] : kNaN;
      row.agreement += target ? scores.agree.const_data_ptr<float>()[i] : kNaN;
    }
  }
  for (RowScore& row : out.rows) {
    out.acceptance_tokens += row.acceptance;
    out.greedy_agreement += row.agreement;
    out.cross_entropy += row.cross_entropy;
    out.tokens += row.tokens;
    const double n = static_cast<double>(std::max<int64_t>(1, row.tokens));
    row.acceptance /= n;
    row.agreement /= n;
    row.cross_entropy /= n;
    out.acceptance += row.acceptance / static_cast<double>(out.rows.size());
  }
  const double n = static_cast<double>(std::max<int64_t>(1, out.tokens));
  out.acceptance_tokens /= n;
  out.greedy_agreement /= n;
  out.cross_entropy /= n;
  return out;
}

}  // namespace

Evaluation evaluate(const model::Decoder& draft, const model::Decoder* target, const std::vector<TokenRow>& rows,
                    double temperature, int64_t batch_tokens) {
  return evaluate_with(draft,
                       target ? TargetLogits([&](const Batch& batch) { return flat_logits(*target, batch); }) : TargetLogits(),
                       rows, temperature, batch_tokens);
}

Evaluation evaluate(const model::Decoder& draft, Teacher& teacher, const std::vector<TokenRow>& rows, double temperature,
                    int64_t batch_tokens) {
  return evaluate_with(draft, [&](const Batch& batch) { return teacher.logits(batch); }, rows, temperature, batch_tokens);
}

HeldOut split_held_out(std::vector<TokenRow> rows, size_t max_selection_rows, size_t max_verdict_rows) {
  std::vector<std::vector<size_t>> groups = by_conversation(rows);
  std::vector<std::pair<std::string, size_t>> order;
  for (size_t g = 0; g < groups.size(); ++g) order.emplace_back(sha256_hex(rows[groups[g].front()].conversation), g);
  std::sort(order.begin(), order.end());
  HeldOut out;
  for (size_t i = 0; i < order.size(); ++i) {
    const bool verdict = i % 2 == 0;  // of an odd number the judging half gets one more
    std::vector<TokenRow>& half = verdict ? out.verdict : out.selection;
    const size_t limit = verdict ? max_verdict_rows : max_selection_rows;
    const auto& members = groups[order[i].second];
    if (!half.empty() && half.size() + members.size() > limit) continue;
    ++(verdict ? out.verdict_conversations : out.selection_conversations);
    for (const size_t r : members) half.push_back(std::move(rows[r]));
  }
  return out;
}

std::vector<int64_t> rank_checkpoints(const std::vector<Measured>& measured) {
  std::vector<Measured> sorted;
  std::copy_if(measured.begin(), measured.end(), std::back_inserter(sorted),
               [](const Measured& m) { return !std::isnan(m.score); });
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const Measured& a, const Measured& b) { return a.score != b.score ? a.score > b.score : a.step < b.step; });
  std::vector<int64_t> steps;
  for (const Measured& m : sorted) steps.push_back(m.step);
  return steps;
}

const char* to_string(Verdict verdict) {
  switch (verdict) {
    case Verdict::kImproved:
      return "improved";
    case Verdict::kNoSignificantGain:
      return "no_significant_gain";
    case Verdict::kInconclusive:
      return "inconclusive";
  }
  throw Error(ErrorKind::kInternal, "evaluate: unknown verdict");
}

Judgement judge(const std::vector<TokenRow>& rows, const Evaluation& before, const Evaluation& after, bool by_acceptance) {
  constexpr double kLevel = 0.05;
  const auto groups = by_conversation(rows);
  // Acceptance: mean over requests. Cross entropy: over tokens.
  const auto statistic = [&](const Evaluation& e, std::span<const size_t> units) {
    double sum = 0, weight = 0;
    for (const size_t unit : units) {
      for (const size_t r : groups[unit]) {
        const RowScore& row = e.rows[r];
        const double w = by_acceptance ? 1.0 : static_cast<double>(row.tokens);
        sum += w * (by_acceptance ? row.acceptance : row.cross_entropy);
        weight += w;
      }
    }
    return weight > 0 ? sum / weight : 0.0;
  };
  const auto describe = [&](const Evaluation& e) {
    if (!by_acceptance) return bootstrap(groups.size(), [&](auto units) { return statistic(e, units); }, kLevel);
    std::vector<double> units;
    for (size_t g = 0; g < groups.size(); ++g) units.push_back(std::clamp(statistic(e, std::span(&g, 1)), 0.0, 1.0));
    Estimate estimate = bounded_mean(units, kLevel);
    estimate.value = e.acceptance;
    return estimate;
  };
  Judgement out;
  if (groups.empty()) return out;
  out.before = describe(before);
  out.after = describe(after);
  const double sign = by_acceptance ? 1.0 : -1.0;
  out.difference =
      bootstrap(groups.size(), [&](auto units) { return sign * (statistic(after, units) - statistic(before, units)); }, kLevel);
  if (static_cast<int64_t>(groups.size()) < kMinVerdictConversations) return out;
  out.verdict = out.difference.ci.low > 0 ? Verdict::kImproved : Verdict::kNoSignificantGain;
  return out;
}

}  // namespace specdec::distill
