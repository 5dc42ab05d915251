#include "distill/train/evaluate.h"

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <functional>
#include <limits>
#include <map>
#include <numeric>
#include <set>

#include "base/error.h"
#include "base/progress.h"
#include "base/sha256.h"
#include "distill/loss/logit_rows.h"
#include "distill/loss/loss_rows.h"
#include "distill/rows/batcher.h"

namespace specdec::distill {

namespace {

// Scores of the answer positions (Batch::rows) of a batch.
struct PositionScores {
  std::vector<float> overlap, agree, cross_entropy;
};

// The largest number of logits of each model in memory at a time: 8 M values.
constexpr int64_t kBlockValues = int64_t{1} << 23;

// Logits [rows, vocab] and labels [rows] of consecutive entries of Batch::rows, beginning with entry `first`. `target`
// is undefined if only the cross entropy is measured.
struct PositionBlock {
  at::Tensor draft, target, labels;
  int64_t first = 0;
};

void score_on_host(const PositionBlock& block, double temperature, PositionScores& out) {
  const LogitRows q_rows(block.draft), p_rows = block.target.defined() ? LogitRows(block.target) : LogitRows();
  const int64_t* label = block.labels.const_data_ptr<int64_t>();
  const auto inverse = static_cast<float>(1 / temperature);
  const int64_t vocab = q_rows.width();
  at::parallel_for(0, q_rows.count(), std::max<int64_t>(1, 65536 / vocab), [&](int64_t begin, int64_t end) {
    std::vector<float> q_room(static_cast<size_t>(vocab)), p_room(q_room.size()), p(q_room.size()), q(q_room.size());
    for (int64_t i = begin; i < end; ++i) {
      const float* x = q_rows.row(i, q_room.data());
      const float* y = block.target.defined() ? p_rows.row(i, p_room.data()) : x;
      const RowFigures f = overlap_row(y, x, vocab, inverse, 1, p.data(), q.data());
      const float own = x[label[i]];
      const auto at = static_cast<size_t>(block.first + i);
      // A label outside a reduced vocabulary has probability 0. Its cross entropy counts as 0 instead of infinity.
      out.cross_entropy[at] = std::isinf(own) && own < 0 ? 0 : f.log_sum_draft - (own - f.max_draft) * inverse;
      out.overlap[at] = f.overlap;
      out.agree[at] = first_largest(x, vocab) == first_largest(y, vocab) ? 1 : 0;
    }
  });
}

void score_on_device(const PositionBlock& block, double temperature, PositionScores& out) {
  const auto keep = [&](const at::Tensor& figures, std::vector<float>& to) {
    const at::Tensor host = figures.cpu();
    std::copy_n(host.const_data_ptr<float>(), host.numel(), to.begin() + block.first);
  };
  const at::Tensor log_q = at::log_softmax(block.draft.to(at::kFloat) / temperature, -1);
  const at::Tensor own = log_q.gather(1, block.labels.to(block.draft.device()).unsqueeze(1)).squeeze(1);
  keep(at::where(own.isneginf(), at::zeros_like(own), own.neg()), out.cross_entropy);
  if (!block.target.defined()) return;
  const at::Tensor log_p = at::log_softmax(block.target.to(at::kFloat) / temperature, -1);
  keep(at::minimum(log_p.exp(), log_q.exp()).sum(-1), out.overlap);
  keep(log_p.argmax(-1).eq(log_q.argmax(-1)).to(at::kFloat), out.agree);
}

// Functions that compute the logits of both models at Batch::rows; `target` may be empty.
struct ComparedLogits {
  RowLogits draft;
  TargetRows target;
  int64_t vocab = 0;  // vocabulary size of the draft
};

// Scores the positions Batch::rows in blocks. After each block, calls `done` with the number of positions scored so
// far.
PositionScores score_positions(const ComparedLogits& logits, const Batch& batch, double temperature,
                               const std::function<void(int64_t)>& done) {
  const int64_t count = batch.rows.numel(), block = std::max<int64_t>(1, kBlockValues / logits.vocab);
  const at::Tensor labels = batch.labels.index_select(0, batch.rows);
  PositionScores out;
  for (std::vector<float>* figures : {&out.overlap, &out.agree, &out.cross_entropy})
    figures->resize(static_cast<size_t>(count));
  for (int64_t begin = 0; begin < count; begin += block) {
    const int64_t end = std::min(count, begin + block);
    const at::Tensor draft = logits.draft(begin, end);
    const PositionBlock positions{draft, logits.target ? logits.target(begin, end, {draft, {}}) : at::Tensor(),
                                  labels.slice(0, begin, end), begin};
    positions.draft.is_cpu() ? score_on_host(positions, temperature, out)
                             : score_on_device(positions, temperature, out);
    done(end);
  }
  return out;
}

// Returns the row indices of each conversation, in order of first appearance.
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

// Returns for each token of a row the index of its range of answer positions (tokens 1 to 16, 17 to 64, …;
// kAnswerStretchEnds).
std::vector<uint8_t> position_buckets(const TokenRow& row) {
  std::vector<uint8_t> out(row.tokens.size());
  int64_t position = 0;  // position in the answer, from 1; 0 outside answers
  for (size_t t = 0; t < out.size(); ++t) {
    position = row.loss_mask[t] == 1 ? position + 1 : 0;
    const auto end = std::lower_bound(kAnswerStretchEnds.begin(), kAnswerStretchEnds.end(), position);
    out[t] = static_cast<uint8_t>(end - kAnswerStretchEnds.begin());
  }
  return out;
}

// Carries an exception of the function EvaluationOptions::step out of this rank's scoring. The exception is rethrown
// after all ranks have finished scoring, so that no rank waits for this one.
struct Abandoned {
  std::exception_ptr cause;
};

// The two models of an evaluation; `target` is null if only the cross entropy is measured.
struct ComparedModels {
  std::function<RowLogits(const Batch&)> draft;
  Teacher* target;
  int64_t vocab;
};

ComparedModels compared(const TrainedDraft& draft, Teacher* target) {
  return {[&draft](const Batch& batch) { return draft.row_logits(batch); }, target, draft.config().vocab_size};
}
ComparedModels compared(const model::Decoder& draft, Teacher* target) {
  return {[&draft](const Batch& batch) { return row_logits(draft, batch); }, target, draft.config.vocab_size};
}

// Adds the scores of this rank's share of the rows to `out`.
void score_share(const ComparedModels& models, const std::vector<TokenRow>& rows, const EvaluationOptions& options,
                 Evaluation& out) {
  Teacher* target = models.target;
  constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
  std::vector<size_t> order(out.rows.size());
  std::iota(order.begin(), order.end(), options.begin);
  const auto groups = group_rows(rows, order, options.batch_tokens);
  const auto first = static_cast<size_t>(options.ranks->rank()), stride = static_cast<size_t>(options.ranks->count());
  double total = 0, rows_done = 0;
  for (size_t g = first; g < groups.size(); g += stride) total += static_cast<double>(groups[g].size());
  for (size_t g = first; g < groups.size(); g += stride) {
    const auto& group = groups[g];
    const Batch batch = make_batch(rows, group);
    const int64_t width = batch.tokens.size(1);
    const auto in_batch = static_cast<double>(group.size());
    const ComparedLogits logits{models.draft(batch), target ? target->rows(batch) : TargetRows(), models.vocab};
    const PositionScores scores = score_positions(logits, batch, options.temperature, [&](int64_t done) {
      const double share = static_cast<double>(done) / static_cast<double>(batch.rows.numel());
      try {
        if (options.step) options.step((rows_done + in_batch * share) / total);
      } catch (...) {
        throw Abandoned{std::current_exception()};
      }
    });
    rows_done += in_batch;
    const at::Tensor rest = target ? target->rest(batch) : at::Tensor();
    out.is_bound |= rest.defined();
    const int64_t* position = batch.rows.const_data_ptr<int64_t>();
    std::vector<std::vector<uint8_t>> stretches;
    for (const size_t r : group) stretches.push_back(position_buckets(rows[r]));
    for (int64_t i = 0; i < batch.rows.numel(); ++i) {
      const auto in_group = static_cast<size_t>(position[i] / width);
      RowScore& row = out.rows[group[in_group] - options.begin];
      const size_t stretch = stretches[in_group][static_cast<size_t>(position[i] % width) + 1];
      ++row.stretch_tokens[stretch];
      row.stretch_acceptance[stretch] += target ? scores.overlap[static_cast<size_t>(i)] : kNaN;
      ++row.tokens;
      row.cross_entropy += scores.cross_entropy[static_cast<size_t>(i)];
      row.acceptance += target ? scores.overlap[static_cast<size_t>(i)] : kNaN;
      if (rest.defined()) row.rest += rest.const_data_ptr<float>()[i];
      row.agreement += target ? scores.agree[static_cast<size_t>(i)] : kNaN;
    }
  }
}

// Exchanges the scores, so that every rank has those of all rows. Each row was scored on one rank.
void exchange_scores(const parallel::Ranks& ranks, Evaluation& out) {
  if (ranks.count() == 1) return;
  std::vector<double> values;
  for (const RowScore& row : out.rows) {
    values.insert(values.end(),
                  {row.acceptance, row.agreement, row.cross_entropy, static_cast<double>(row.tokens), row.rest});
    values.insert(values.end(), row.stretch_acceptance.begin(), row.stretch_acceptance.end());
    values.insert(values.end(), row.stretch_tokens.begin(), row.stretch_tokens.end());
  }
  ranks.sum(values);
  const double* v = values.data();
  for (RowScore& row : out.rows) {
    row = {v[0], v[1], v[2], static_cast<int64_t>(v[3]), v[4]};
    v += 5;
    for (double& acceptance : row.stretch_acceptance) acceptance = *v++;
    for (int64_t& tokens : row.stretch_tokens) tokens = static_cast<int64_t>(*v++);
  }
  out.is_bound = ranks.any(out.is_bound);
}

Evaluation evaluate_with(const ComparedModels& models, const std::vector<TokenRow>& rows,
                         const EvaluationOptions& options) {
  at::NoGradGuard guard;
  Evaluation out;
  out.rows.resize(std::min(options.end, rows.size()) - options.begin);
  std::exception_ptr abandoned;
  try {
    score_share(models, rows, options, out);
  } catch (const Abandoned& a) {
    abandoned = a.cause;
  }
  if (options.divided) options.divided->finish();
  if (options.ranks->any(abandoned != nullptr)) {
    if (abandoned) std::rethrow_exception(abandoned);
    request_stop();  // another rank was asked to stop; this rank's step function now throws, too
    if (options.step) options.step(1);
    throw Error(ErrorKind::kNetwork, "stopped by a signal on another rank");
  }
  exchange_scores(*options.ranks, out);
  for (RowScore& row : out.rows) {
    const double n = static_cast<double>(std::max<int64_t>(1, row.tokens));
    row.acceptance /= n;
    row.agreement /= n;
    row.cross_entropy /= n;
    row.rest /= n;
  }
  return evaluation_of(std::move(out.rows), out.is_bound);
}

}  // namespace

Evaluation evaluate(const TrainedDraft& draft, const model::Decoder* target, const std::vector<TokenRow>& rows,
                    const EvaluationOptions& options) {
  if (!target) return evaluate_with(compared(draft, nullptr), rows, options);
  ModelTeacher teacher(std::shared_ptr<const model::Decoder>(std::shared_ptr<void>(), target), rows, 0);
  return evaluate_with(compared(draft, &teacher), rows, options);
}

Evaluation evaluate(const model::Decoder& draft, const model::Decoder* target, const std::vector<TokenRow>& rows,
                    const EvaluationOptions& options) {
  if (!target) return evaluate_with(compared(draft, nullptr), rows, options);
  ModelTeacher teacher(std::shared_ptr<const model::Decoder>(std::shared_ptr<void>(), target), rows, 0);
  return evaluate_with(compared(draft, &teacher), rows, options);
}

Evaluation evaluate(const TrainedDraft& draft, Teacher& teacher, const std::vector<TokenRow>& rows,
                    const EvaluationOptions& options) {
  return evaluate_with(compared(draft, &teacher), rows, options);
}

Evaluation evaluate(const model::Decoder& draft, Teacher& teacher, const std::vector<TokenRow>& rows,
                    const EvaluationOptions& options) {
  return evaluate_with(compared(draft, &teacher), rows, options);
}

Evaluation evaluation_of(std::vector<RowScore> rows, bool is_bound) {
  Evaluation out;
  out.is_bound = is_bound;
  for (const RowScore& row : rows) {
    const auto tokens = static_cast<double>(row.tokens);
    out.acceptance_tokens += row.acceptance * tokens;
    out.greedy_agreement += row.agreement * tokens;
    out.cross_entropy += row.cross_entropy * tokens;
    out.tokens += row.tokens;
    out.rest += row.rest / static_cast<double>(rows.size());
    out.acceptance += row.acceptance / static_cast<double>(rows.size());
  }
  const double n = static_cast<double>(std::max<int64_t>(1, out.tokens));
  out.acceptance_tokens /= n;
  out.greedy_agreement /= n;
  out.cross_entropy /= n;
  out.rows = std::move(rows);
  return out;
}

HeldOut split_held_out(std::vector<TokenRow> rows, size_t max_selection_rows, size_t max_verdict_rows) {
  std::vector<std::vector<size_t>> groups = by_conversation(rows);
  std::vector<std::pair<std::string, size_t>> order;
  for (size_t g = 0; g < groups.size(); ++g) order.emplace_back(sha256_hex(rows[groups[g].front()].conversation), g);
  std::sort(order.begin(), order.end());
  HeldOut out;
  for (size_t i = 0; i < order.size(); ++i) {
    const bool verdict = i % 2 == 0;  // with an odd number of conversations, the verdict half gets one more
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
  std::stable_sort(sorted.begin(), sorted.end(), [](const Measured& a, const Measured& b) {
    return a.score != b.score ? a.score > b.score : a.step < b.step;
  });
  std::vector<int64_t> steps;
  for (const Measured& m : sorted) steps.push_back(m.step);
  return steps;
}

namespace {

constexpr double kIntervalLevel = 0.05;

// A part of a row: the sum of acceptance over its positions and their number.
struct RowPart {
  double acceptance = 0;
  int64_t tokens = 0;
};

// Returns the acceptance over one part of each row, such as a range of answer positions. part_of(row) returns the
// figures of this part; a row without a position in the part does not count.
PartScore score_part(const std::string& name, const std::vector<std::vector<size_t>>& conversations,
                     const std::function<RowPart(size_t row)>& part_of) {
  PartScore out{name, {}, 0, 0, 0};
  std::vector<double> units;
  double sum = 0;
  for (const std::vector<size_t>& conversation : conversations) {
    double in_conversation = 0;
    int64_t requests = 0;
    for (const size_t r : conversation) {
      const RowPart part = part_of(r);
      if (part.tokens == 0) continue;
      ++requests;
      out.tokens += part.tokens;
      in_conversation += part.acceptance / static_cast<double>(part.tokens);
    }
    if (requests == 0) continue;
    ++out.conversations;
    out.requests += requests;
    sum += in_conversation;
    units.push_back(std::clamp(in_conversation / static_cast<double>(requests), 0.0, 1.0));
  }
  if (units.empty() || std::isnan(sum)) return out;
  out.acceptance = bounded_mean(units, kIntervalLevel);
  out.acceptance.value = sum / static_cast<double>(out.requests);
  return out;
}

RowPart whole(const RowScore& row) { return {row.acceptance * static_cast<double>(row.tokens), row.tokens}; }

}  // namespace

std::vector<PartScore> by_stretch(const std::vector<TokenRow>& rows, const Evaluation& evaluation) {
  const auto conversations = by_conversation(rows);
  std::vector<PartScore> out;
  for (size_t s = 0; s < kAnswerStretches; ++s) {
    const std::string begin = std::to_string(s == 0 ? 1 : kAnswerStretchEnds[s - 1] + 1);
    const std::string name = s + 1 < kAnswerStretches ? begin + "-" + std::to_string(kAnswerStretchEnds[s])
                                                      : ">" + std::to_string(kAnswerStretchEnds.back());
    out.push_back(score_part(name, conversations, [&](size_t r) {
      return RowPart{evaluation.rows[r].stretch_acceptance[s], evaluation.rows[r].stretch_tokens[s]};
    }));
  }
  std::erase_if(out, [](const PartScore& part) { return part.requests == 0; });
  return out;
}

std::vector<PartScore> by_domain(const std::vector<TokenRow>& rows, const Evaluation& evaluation) {
  std::set<std::string> domains;
  for (const TokenRow& row : rows) domains.insert(row.domain);
  std::vector<PartScore> out;
  if (domains.empty() || (domains.size() == 1 && domains.begin()->empty())) return out;
  const auto conversations = by_conversation(rows);
  for (const std::string& domain : domains)
    out.push_back(score_part(domain, conversations, [&](size_t r) {
      return rows[r].domain == domain ? whole(evaluation.rows[r]) : RowPart();
    }));
  return out;
}

Estimate acceptance_estimate(const std::vector<TokenRow>& rows, const Evaluation& evaluation) {
  return score_part("", by_conversation(rows), [&](size_t r) { return whole(evaluation.rows[r]); }).acceptance;
}

Judgement judge(const std::vector<TokenRow>& rows, const Evaluation& before, const Evaluation& after,
                bool by_acceptance) {
  const auto groups = by_conversation(rows);
  // The statistic of the bootstrap: acceptance is a mean over requests, cross entropy a mean over tokens.
  const auto statistic = [&](const Evaluation& e, std::span<const size_t> units, double rest = 0) {
    double sum = 0, weight = 0;
    for (const size_t unit : units) {
      for (const size_t r : groups[unit]) {
        const RowScore& row = e.rows[r];
        const double w = by_acceptance ? 1.0 : static_cast<double>(row.tokens);
        sum += w * (by_acceptance ? row.acceptance - rest * row.rest : row.cross_entropy);
        weight += w;
      }
    }
    return weight > 0 ? sum / weight : 0.0;
  };
  const auto describe = [&](const Evaluation& e) {
    if (!by_acceptance)
      return bootstrap(groups.size(), [&](auto units) { return statistic(e, units); }, kIntervalLevel);
    std::vector<double> units;
    for (size_t g = 0; g < groups.size(); ++g) units.push_back(std::clamp(statistic(e, std::span(&g, 1)), 0.0, 1.0));
    Estimate estimate = bounded_mean(units, kIntervalLevel);
    estimate.value = e.acceptance;
    return estimate;
  };
  Judgement out;
  if (groups.empty()) return out;
  out.before = describe(before);
  out.after = describe(after);
  const double sign = by_acceptance ? 1.0 : -1.0;
  out.difference = bootstrap(
      groups.size(), [&](auto units) { return sign * (statistic(after, units) - statistic(before, units)); },
      kIntervalLevel);
  out.certain = out.difference;
  if (by_acceptance && after.is_bound)
    out.certain = bootstrap(
        groups.size(), [&](auto units) { return statistic(after, units, 1) - statistic(before, units); },
        kIntervalLevel);
  if (static_cast<int64_t>(groups.size()) < kMinVerdictConversations) return out;
  out.verdict = out.certain.ci.low > 0      ? Verdict::kImproved
                : out.difference.ci.low > 0 ? Verdict::kInconclusive
                                            : Verdict::kNoSignificantGain;
  return out;
}

}  // namespace specdec::distill
