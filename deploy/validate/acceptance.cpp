#include "deploy/validate/acceptance.h"

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <cmath>
#include <deque>

#include "base/error.h"
#include "engine/decode/sampling/sampler.h"
#include "engine/forward/forward.h"

namespace specdec::deploy {

namespace {

constexpr int64_t kLogitBudget = 32 << 20;  // limit of logits in one pass of one model, in floats (128 MiB)
constexpr int64_t kMaxPassTokens = 4096;

bool plain(const SamplingOptions& s) { return s.top_k == 0 && s.top_p >= 1 && s.min_p == 0; }

// For n positions: p (target) or q (draft) after temperature and filters, [n, V], and the argmax of the raw logits,
// [n].
struct Served {
  at::Tensor probs, argmax;
};

// Computes the distribution that serving would sample from, out of `logits`, fp32 [n, V], which may be overwritten.
Served served(at::Tensor logits, const SamplingOptions& sampling) {
  Served s;
  s.argmax = logits.argmax(-1);
  if (sampling.greedy()) return s;
  if (plain(sampling)) {
    s.probs = at::softmax(logits / sampling.temperature, -1);
    return s;
  }
  s.probs = logits.cpu().contiguous();
  const size_t vocab = static_cast<size_t>(logits.size(1));
  std::vector<int32_t> scratch;
  for (int64_t i = 0; i < logits.size(0); ++i) {
    const std::span<float> row(s.probs.data_ptr<float>() + i * logits.size(1), vocab);
    decode::distribution(row, sampling, row, scratch);
  }
  return s;
}

struct Measured {
  at::Tensor alpha, agreement, entropy;  // [n] each, one per position; fp32 on the host
};

Measured measure(const Served& p, const Served& q, const SamplingOptions& sampling) {
  Measured m;
  m.agreement = p.argmax.eq(q.argmax).to(at::kFloat).cpu();
  m.alpha = sampling.greedy() ? m.agreement : at::minimum(p.probs, q.probs).sum(-1).cpu();
  m.entropy = sampling.greedy() ? at::zeros_like(m.alpha) : at::special_entr(p.probs).sum(-1).cpu();
  return m;
}

// A row in progress: the models are fed tokens [0, length − 1); the last token is only predicted.
struct Job {
  const TokenRow* row;
  std::vector<RowScore*> scores;  // one per draft
  int64_t length;
  model::KvCache target;
};

class Scorer {
 public:
  Scorer(const model::Decoder& target, std::span<const decode::DraftPtr> drafts, const SamplingOptions& sampling)
      : target_(target), sampling_(sampling) {
    budget_ = std::clamp<int64_t>(kLogitBudget / target.config.vocab_size, 16, kMaxPassTokens);
    context_ = target.config.max_position;
    for (const decode::DraftPtr& draft : drafts) {
      context_ = std::min(context_, draft->config().max_position);
      first_ = std::max(first_, drafts_.emplace_back(draft->make_scorer())->first_position());
    }
  }

  int64_t budget() const { return budget_; }

  void add(const TokenRow& row, std::vector<RowScore*> scores) {
    int64_t length = std::min<int64_t>(static_cast<int64_t>(row.tokens.size()), context_);
    while (length > 1 && !row.loss_mask[static_cast<size_t>(length - 1)]) --length;
    for (int64_t t = 0; t < length; ++t)
      if (row.tokens[t] < 0 || row.tokens[t] >= target_.config.vocab_size)
        throw Error(ErrorKind::kData, "row " + row.id + ": token " + std::to_string(row.tokens[t]) +
                                          " is outside the target's vocabulary of " +
                                          std::to_string(target_.config.vocab_size));
    if (length < 2) return;
    const at::Tensor& like = target_.weights.embed;
    jobs_.push_back(
        {&row, std::move(scores), length, model::KvCache(target_.config, like.device(), like.scalar_type())});
    jobs_.back().target.reserve(length);
  }

  void run() {
    int64_t longest = 0;
    std::vector<int64_t> lengths;
    for (const Job& job : jobs_) {
      longest = std::max(longest, job.length - 1);
      lengths.push_back(job.length);
    }
    for (const auto& draft : drafts_) draft->begin(lengths);
    // Several rows together fit into one pass. A row that has more tokens than one pass may take is scored alone, in
    // several passes.
    const int64_t chunk = jobs_.size() > 1 ? std::max(longest, int64_t{1}) : budget_;
    for (int64_t at = 0; at < longest; at += chunk) pass(at, chunk);
    for (Job& job : jobs_)
      for (RowScore* score : job.scores)
        if (const double n = static_cast<double>(score->tokens); n > 0) {
          score->alpha /= n;
          score->agreement /= n;
          score->entropy /= n;
        }
    jobs_.clear();
  }

 private:
  using Position = decode::DraftScorer::Pass::Position;

  void pass(int64_t at, int64_t chunk) {
    std::vector<model::SequencePart> parts;
    std::vector<size_t> texts;  // [i] = index in jobs_ of the row that parts[i] belongs to
    std::vector<Position> measured;
    int64_t logits = 0;
    for (size_t i = 0; i < jobs_.size(); ++i) {
      Job& job = jobs_[i];
      const int64_t end = std::min(at + chunk, job.length - 1);
      if (at >= end) continue;
      const auto counts = [&](int64_t t) { return t >= first_ && job.row->loss_mask[static_cast<size_t>(t + 1)]; };
      int64_t first = at;
      while (first < end && !counts(first)) ++first;
      for (int64_t t = first; t < end; ++t)
        if (counts(t)) measured.push_back({i, t, logits + t - first});
      logits += end - first;
      parts.push_back({.cache = &job.target,
                       .tokens = std::span<const int32_t>(job.row->tokens)
                                     .subspan(static_cast<size_t>(at), static_cast<size_t>(end - at)),
                       .num_logits = end - first});
      texts.push_back(i);
    }
    if (parts.empty()) return;
    std::vector<int64_t> rows;
    for (const Position& m : measured) rows.push_back(m.logit);
    at::Tensor p_logits = model::forward(target_, parts, observer());
    if (static_cast<int64_t>(rows.size()) != logits)
      p_logits = p_logits.index_select(0, at::tensor(rows, at::kLong).to(p_logits.device()));
    const Served p = rows.empty() ? Served{} : served(p_logits, sampling_);
    for (size_t d = 0; d < drafts_.size(); ++d) {
      const at::Tensor q = drafts_[d]->logits({at, texts, parts, measured});
      if (!rows.empty()) add_up(measure(p, served(q, sampling_), sampling_), measured, d);
    }
  }

  // Returns an observer that passes the hidden states of the target's next pass on to every draft.
  model::HiddenObserver observer() {
    std::vector<model::HiddenObserver> observers;
    for (const auto& draft : drafts_)
      if (model::HiddenObserver one = draft->observer()) observers.push_back(std::move(one));
    if (observers.empty()) return {};
    return [observers](int64_t layer, const at::Tensor& hidden) {
      for (const model::HiddenObserver& one : observers) one(layer, hidden);
    };
  }

  void add_up(const Measured& m, const std::vector<Position>& rows, size_t draft) {
    const float *alpha = m.alpha.data_ptr<float>(), *agreement = m.agreement.data_ptr<float>(),
                *entropy = m.entropy.data_ptr<float>();
    for (size_t i = 0; i < rows.size(); ++i) {
      if (!std::isfinite(alpha[i]) || !std::isfinite(entropy[i]))
        throw Error(ErrorKind::kModel,
                    "row " + jobs_[rows[i].text].row->id +
                        ": the logits of a model are not finite: its weights or its arithmetic are broken");
      RowScore& s = *jobs_[rows[i].text].scores[draft];
      s.alpha += std::min(1.0f, alpha[i]);
      s.agreement += agreement[i];
      s.entropy += entropy[i];
      ++s.tokens;
    }
  }

  const model::Decoder& target_;
  std::vector<std::unique_ptr<decode::DraftScorer>> drafts_;
  SamplingOptions sampling_;
  int64_t budget_, context_;
  int64_t first_ = 0;  // first position that every draft can score
  std::deque<Job> jobs_;
};

}  // namespace

std::vector<std::vector<RowScore>> score_rows(const model::Decoder& target, std::span<const decode::DraftPtr> drafts,
                                              std::span<const TokenRow> rows, const SamplingOptions& sampling,
                                              const ProgressFn& progress) {
  for (const decode::DraftPtr& draft : drafts)
    if (target.config.vocab_size != draft->config().vocab_size)
      throw Error(ErrorKind::kModel,
                  "target and draft differ in vocabulary: " + std::to_string(target.config.vocab_size) + " and " +
                      std::to_string(draft->config().vocab_size));
  const c10::InferenceMode guard;
  std::vector<std::vector<RowScore>> scores(drafts.size(), std::vector<RowScore>(rows.size()));
  Scorer scorer(target, drafts, sampling);
  for (size_t i = 0; i < rows.size();) {
    if (stop_requested()) throw Error(ErrorKind::kNetwork, "stopped by a signal while measuring acceptance");
    // A row with more tokens than one pass may take is scored alone; otherwise as many rows as fit into one pass are
    // scored together.
    int64_t tokens = 0;
    const size_t first = i;
    while (i < rows.size() && (i == first || tokens + static_cast<int64_t>(rows[i].tokens.size()) <= scorer.budget())) {
      tokens += static_cast<int64_t>(rows[i].tokens.size());
      std::vector<RowScore*> of_row;
      for (auto& of_draft : scores) of_row.push_back(&of_draft[i]);
      scorer.add(rows[i], std::move(of_row));
      ++i;
    }
    scorer.run();
    if (progress) progress({"acceptance", static_cast<double>(i), static_cast<double>(rows.size()), "requests", ""});
  }
  return scores;
}

std::vector<RowScore> score_rows(const model::Decoder& target, const decode::DraftPtr& draft,
                                 std::span<const TokenRow> rows, const SamplingOptions& sampling,
                                 const ProgressFn& progress) {
  const decode::DraftPtr drafts[] = {draft};
  return std::move(score_rows(target, drafts, rows, sampling, progress)[0]);
}

std::vector<RowScore> score_rows(const model::Decoder& target, const model::Decoder& draft,
                                 std::span<const TokenRow> rows, const SamplingOptions& sampling,
                                 const ProgressFn& progress) {
  const std::shared_ptr<const model::Decoder> borrowed(std::shared_ptr<const void>(), &draft);
  return score_rows(target, decode::make_draft(borrowed), rows, sampling, progress);
}

void observe(AcceptanceGate& gate, std::span<const TokenRow> rows, std::span<const RowScore> scores,
             std::span<const RowScore> others) {
  std::map<std::string, size_t> place;
  std::vector<std::vector<ScoredRequest>> conversations;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (scores[i].tokens == 0) continue;
    size_t at = conversations.size();
    if (!rows[i].conversation.empty()) at = place.try_emplace(rows[i].conversation, at).first->second;
    if (at == conversations.size()) conversations.emplace_back();
    conversations[at].push_back({rows[i].domain, scores[i].alpha, others.empty() ? 0 : others[i].alpha});
  }
  for (const auto& conversation : conversations) gate.observe(conversation);
}

void summarise(std::span<const TokenRow> rows, std::span<const RowScore> scores, const AcceptanceGate& gate,
               ValidationReport& report) {
  gate.fill(report);
  std::map<std::string, std::pair<double, double>> segments;  // (summed entropy, tokens) of each segment
  double alpha = 0, agreement = 0, entropy = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (scores[i].tokens == 0) continue;
    const double n = static_cast<double>(scores[i].tokens);
    alpha += n * scores[i].alpha;
    agreement += n * scores[i].agreement;
    entropy += n * scores[i].entropy;
    segments[rows[i].domain].first += n * scores[i].entropy;
    segments[rows[i].domain].second += n;
    report.tokens += scores[i].tokens;
    report.request_ids.push_back(rows[i].id);
    report.request_alphas.push_back(scores[i].alpha);
  }
  const double n = static_cast<double>(std::max<int64_t>(report.tokens, 1));
  report.alpha_tokens = alpha / n;
  report.greedy_agreement = agreement / n;
  report.entropy = entropy / n;
  for (SegmentFigure& s : report.segments) s.entropy = segments[s.name].first / segments[s.name].second;
}

}  // namespace specdec::deploy
