#include "deploy/validate/acceptance.h"

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <map>

#include "base/error.h"
#include "deploy/validate/rollout.h"
#include "engine/decode/sampler.h"
#include "engine/model/forward.h"

namespace specdec::deploy {

namespace {

constexpr int64_t kLogitBudget = 32 << 20;  // floats of one model's logits in a pass
constexpr int64_t kMaxPassTokens = 4096;

struct Measured {
  at::Tensor alpha, agreement, entropy;  // [N] fp32 on the host
};

// p, q: fp32 logits [N, V] of the same positions.
Measured measure(const at::Tensor& p, const at::Tensor& q, const SamplingOptions& sampling) {
  Measured m;
  m.agreement = p.argmax(-1).eq(q.argmax(-1)).to(at::kFloat).cpu();
  if (sampling.greedy()) {
    m.alpha = m.agreement;
    m.entropy = at::zeros_like(m.alpha);
    return m;
  }
  if (sampling.top_k == 0 && sampling.top_p >= 1 && sampling.min_p == 0) {
    const at::Tensor probs = at::softmax(p / sampling.temperature, -1);
    m.alpha = at::minimum(probs, at::softmax(q / sampling.temperature, -1)).sum(-1).cpu();
    m.entropy = at::special_entr(probs).sum(-1).cpu();
    return m;
  }
  const int64_t n = p.size(0);
  const size_t vocab = static_cast<size_t>(p.size(1));
  const at::Tensor hp = p.cpu().contiguous(), hq = q.cpu().contiguous();
  m.alpha = at::empty({n}, at::kFloat);
  m.entropy = at::empty({n}, at::kFloat);
  std::vector<int32_t> scratch;
  for (int64_t i = 0; i < n; ++i) {
    const std::span<float> a(hp.data_ptr<float>() + i * p.size(1), vocab), b(hq.data_ptr<float>() + i * p.size(1), vocab);
    decode::distribution(a, sampling, a, scratch);
    decode::distribution(b, sampling, b, scratch);
    double entropy = 0;
    for (const float x : a)
      if (x > 0) entropy -= x * std::log(static_cast<double>(x));
    m.alpha.data_ptr<float>()[i] = static_cast<float>(decode::overlap(a, b));
    m.entropy.data_ptr<float>()[i] = static_cast<float>(entropy);
  }
  return m;
}

// One row on its way through both models: tokens [0, length − 1) are fed, the last one only predicted.
struct Job {
  const TokenRow* row;
  RowScore* score;
  int64_t length;
  model::KvCache target, draft;
};

class Scorer {
 public:
  Scorer(const model::Decoder& target, const model::Decoder& draft, const SamplingOptions& sampling)
      : target_(target), draft_(draft), sampling_(sampling) {
    budget_ = std::clamp<int64_t>(kLogitBudget / target.config.vocab_size, 16, kMaxPassTokens);
    context_ = std::min(target.config.max_position, draft.config.max_position);
  }

  int64_t budget() const { return budget_; }

  void add(const TokenRow& row, RowScore& score) {
    int64_t length = std::min<int64_t>(static_cast<int64_t>(row.tokens.size()), context_);
    while (length > 1 && !row.loss_mask[static_cast<size_t>(length - 1)]) --length;
    for (int64_t t = 0; t < length; ++t)
      if (row.tokens[t] < 0 || row.tokens[t] >= target_.config.vocab_size)
        throw Error(ErrorKind::kData, "row " + row.id + ": token " + std::to_string(row.tokens[t]) +
                                          " is outside the target's vocabulary of " + std::to_string(target_.config.vocab_size));
    if (length < 2) return;
    const at::Tensor &te = target_.weights.embed, &de = draft_.weights.embed;
    jobs_.push_back(
        {&row, &score, length, {target_.config, te.device(), te.scalar_type()}, {draft_.config, de.device(), de.scalar_type()}});
    jobs_.back().target.reserve(length);
    jobs_.back().draft.reserve(length);
  }

  void run() {
    int64_t longest = 0;
    for (const Job& job : jobs_) longest = std::max(longest, job.length - 1);
    // Several rows that fit together take one turn; a row longer than the budget takes several, alone.
    const int64_t chunk = jobs_.size() > 1 ? std::max(longest, int64_t{1}) : budget_;
    for (int64_t at = 0; at < longest; at += chunk) pass(at, chunk);
    for (Job& job : jobs_)
      if (const double n = static_cast<double>(job.score->tokens); n > 0) {
        job.score->alpha /= n;
        job.score->agreement /= n;
        job.score->entropy /= n;
      }
    jobs_.clear();
  }

 private:
  void pass(int64_t at, int64_t chunk) {
    std::vector<model::SequencePart> parts, draft_parts;
    std::vector<int64_t> rows;  // of the logits that are wanted
    std::vector<Job*> owners;
    int64_t logits = 0;
    for (Job& job : jobs_) {
      const int64_t end = std::min(at + chunk, job.length - 1);
      if (at >= end) continue;
      int64_t first = at;
      while (first < end && !job.row->loss_mask[static_cast<size_t>(first + 1)]) ++first;
      for (int64_t t = first; t < end; ++t)
        if (job.row->loss_mask[static_cast<size_t>(t + 1)]) {
          rows.push_back(logits + t - first);
          owners.push_back(&job);
        }
      logits += end - first;
      model::SequencePart part;
      part.tokens = std::span<const int32_t>(job.row->tokens).subspan(static_cast<size_t>(at), static_cast<size_t>(end - at));
      part.num_logits = end - first;
      part.cache = &job.target;
      parts.push_back(part);
      part.cache = &job.draft;
      draft_parts.push_back(part);
    }
    if (parts.empty()) return;
    at::Tensor p = model::forward(target_, parts), q = model::forward(draft_, draft_parts);
    if (rows.empty()) return;
    if (static_cast<int64_t>(rows.size()) != logits) {
      const at::Tensor index = at::tensor(rows, at::kLong).to(p.device());
      p = p.index_select(0, index);
      q = q.index_select(0, index);
    }
    add_up(measure(p, q, sampling_), owners);
  }

  static void add_up(const Measured& m, const std::vector<Job*>& owners) {
    const float *alpha = m.alpha.data_ptr<float>(), *agreement = m.agreement.data_ptr<float>(),
                *entropy = m.entropy.data_ptr<float>();
    for (size_t i = 0; i < owners.size(); ++i) {
      if (!std::isfinite(alpha[i]) || !std::isfinite(entropy[i]))
        throw Error(ErrorKind::kModel, "row " + owners[i]->row->id +
                                           ": the logits of a model are not finite: its weights or its arithmetic are broken");
      RowScore& s = *owners[i]->score;
      s.alpha += std::min(1.0f, alpha[i]);
      s.agreement += agreement[i];
      s.entropy += entropy[i];
      ++s.tokens;
    }
  }

  const model::Decoder &target_, &draft_;
  SamplingOptions sampling_;
  int64_t budget_, context_;
  std::deque<Job> jobs_;
};

// Mean over requests, interval over conversations.
Estimate over_conversations(std::span<const TokenRow> rows, std::span<const RowScore> scores,
                            const std::vector<size_t>& members) {
  std::vector<double> values;
  std::vector<size_t> keep;
  for (const size_t i : members)
    if (scores[i].tokens > 0) {
      keep.push_back(i);
      values.push_back(scores[i].alpha);
    }
  Estimate e = bounded_mean(conversation_means(rows, keep, values));
  e.value = mean(values);
  e.n = static_cast<int64_t>(values.size());
  e.ci = {std::min(e.ci.low, e.value), std::max(e.ci.high, e.value)};
  return e;
}

}  // namespace

std::vector<RowScore> score_rows(const model::Decoder& target, const model::Decoder& draft, std::span<const TokenRow> rows,
                                 const SamplingOptions& sampling, const ProgressFn& progress) {
  if (target.config.vocab_size != draft.config.vocab_size)
    throw Error(ErrorKind::kModel, "target and draft differ in vocabulary: " + std::to_string(target.config.vocab_size) +
                                       " and " + std::to_string(draft.config.vocab_size));
  const c10::InferenceMode guard;
  std::vector<RowScore> scores(rows.size());
  Scorer scorer(target, draft, sampling);
  for (size_t i = 0; i < rows.size();) {
    if (stop_requested()) throw Error(ErrorKind::kNetwork, "stopped by a signal while measuring acceptance");
    // A row longer than the budget goes alone; others as long as they fit.
    int64_t tokens = 0;
    const size_t first = i;
    while (i < rows.size() && (i == first || tokens + static_cast<int64_t>(rows[i].tokens.size()) <= scorer.budget())) {
      tokens += static_cast<int64_t>(rows[i].tokens.size());
      scorer.add(rows[i], scores[i]);
      ++i;
    }
    scorer.run();
    if (progress) progress({"acceptance", static_cast<double>(i), static_cast<double>(rows.size()), "requests", ""});
  }
  return scores;
}

void summarise(std::span<const TokenRow> rows, std::span<const RowScore> scores, ValidationReport& report) {
  std::vector<size_t> all;
  std::map<std::string, std::vector<size_t>> domains;
  double alpha = 0, agreement = 0, entropy = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (scores[i].tokens == 0) continue;
    all.push_back(i);
    if (!rows[i].domain.empty()) domains[rows[i].domain].push_back(i);
    const double n = static_cast<double>(scores[i].tokens);
    alpha += n * scores[i].alpha;
    agreement += n * scores[i].agreement;
    entropy += n * scores[i].entropy;
    report.tokens += scores[i].tokens;
    report.request_ids.push_back(rows[i].id);
    report.request_alphas.push_back(scores[i].alpha);
  }
  report.alpha = over_conversations(rows, scores, all);
  const double n = static_cast<double>(std::max<int64_t>(report.tokens, 1));
  report.alpha_tokens = alpha / n;
  report.greedy_agreement = agreement / n;
  report.entropy = entropy / n;
  for (const auto& [name, members] : domains) {
    SegmentFigure segment;
    segment.name = name;
    segment.alpha = over_conversations(rows, scores, members);
    double tokens = 0;
    for (const size_t i : members) {
      segment.entropy += scores[i].entropy * static_cast<double>(scores[i].tokens);
      tokens += static_cast<double>(scores[i].tokens);
    }
    segment.entropy /= tokens;
    report.segments.push_back(segment);
  }
}

}  // namespace specdec::deploy
