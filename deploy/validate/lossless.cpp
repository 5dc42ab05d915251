#include "deploy/validate/lossless.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <memory>

#include "base/error.h"
#include "base/philox.h"
#include "base/statistics.h"
#include "engine/decode/sampling/sampler.h"

namespace specdec::deploy {

namespace {

constexpr size_t kBins = 16;
constexpr uint64_t kTransformStream = 0x70697431;

// Returns whether rounding can explain that two answers differ in their next token, `a` and `b`: the logits of both
// must be within the tolerance of the best logit.
bool tie_between(std::span<const float> logits, int32_t a, int32_t b, double unit) {
  if (!is_near_tie(logits, unit)) return false;
  float best = logits[0], largest = 0;
  for (const float l : logits) {
    best = std::max(best, l);
    if (std::isfinite(l)) largest = std::max(largest, std::abs(l));
  }
  const double tolerance = 4 * unit * largest;
  return best - logits[static_cast<size_t>(a)] < tolerance && best - logits[static_cast<size_t>(b)] < tolerance;
}

// Computes the target's logits for the token after `tokens`.
void next_logits(decode::CausalModel& model, std::span<const int32_t> tokens, decode::LogitRows& rows) {
  struct Open {
    decode::CausalModel& model;
    decode::SequenceId id = model.open();
    ~Open() { model.close(id); }
  } open{model};
  const decode::Extension extension{open.id, tokens, 1};
  model.extend({&extension, 1}, rows);
}

// Computes a model's distribution for every token of given answers to one fixed context, which is prefilled only once.
class AnswerScorer {
 public:
  // `again`: number of the context's last tokens that are fed again with every answer.
  AnswerScorer(decode::CausalModel& model, std::span<const int32_t> context, const SamplingOptions& sampling,
               size_t again)
      : model_(model),
        context_(context.begin(), context.end()),
        sampling_(sampling),
        again_(again),
        id_(model.open()) {}
  ~AnswerScorer() {
    if (reading_ != id_) model_.close(reading_);
    model_.close(id_);
  }
  AnswerScorer(const AnswerScorer&) = delete;
  AnswerScorer& operator=(const AnswerScorer&) = delete;

  void prefill() {
    if (length() == 0) return;
    const decode::Extension extension{id_, std::span<const int32_t>(context_).first(length()), 0};
    model_.extend({&extension, 1}, rows_);
  }
  // Starts an answer on a copy of the context's sequence. A draft that reads hidden states needs such copies of its own
  // sequence and of the target's.
  void fork() {
    if (reading_ != id_) model_.close(reading_);
    reading_ = id_;
    reading_ = model_.fork(id_, static_cast<int64_t>(length()));
  }
  void follow(const AnswerScorer& target) { model_.follow(reading_, target.reading_); }
  // Scores an answer. row(i) is then the distribution of answer[i], valid until the next call.
  void read(std::span<const int32_t> answer) {
    std::vector<int32_t> fed(context_.end() - static_cast<std::ptrdiff_t>(again_), context_.end());
    fed.insert(fed.end(), answer.begin(), answer.end() - 1);
    const decode::Extension extension{reading_, fed, static_cast<int64_t>(answer.size())};
    model_.extend({&extension, 1}, rows_);
    if (reading_ == id_) model_.truncate(id_, static_cast<int64_t>(length()));
    for (size_t i = 0; i < answer.size(); ++i) {
      const auto row = rows_.row(static_cast<int64_t>(i));
      decode::distribution(row, sampling_, row, scratch_);
    }
  }
  std::span<const float> row(size_t i) const { return rows_.row(static_cast<int64_t>(i)); }

 private:
  size_t length() const { return context_.size() - again_; }

  decode::CausalModel& model_;
  std::vector<int32_t> context_;
  SamplingOptions sampling_;
  size_t again_;
  decode::SequenceId id_, reading_ = id_;
  decode::LogitRows rows_;
  std::vector<int32_t> scratch_;
};

// Counts that are summed over all runs of one context.
struct Tally {
  std::vector<int64_t> first;         // [V] counts of first tokens
  std::vector<double> probabilities;  // [V] the target's probabilities of the first token
  std::vector<int64_t> bins = std::vector<int64_t>(kBins);
};

class ContextTest {
 public:
  ContextTest(const decode::ModelPair& models, std::span<const int32_t> context, const SampledOptions& options,
              uint64_t number)
      : stepper_(models.target, &models.draft, nullptr, nullptr, options.verify_fn),
        context_(context.begin(), context.end()),
        options_(options),
        follows_(models.draft.reads_states()),
        has_q_(!follows_ || context.size() > 1),
        // A draft that reads hidden states needs the target's state of the position before the first token that it is
        // fed, so the target is fed one token more.
        p_(models.target, context, options.sampling, follows_ && has_q_ ? 2 : 1),
        q_(models.draft, context, options.sampling, 1),
        uniforms_(options.seed, kTransformStream + number) {
    if (follows_) q_.follow(p_);
    p_.prefill();
    if (has_q_) q_.prefill();
    tally_.first.resize(static_cast<size_t>(models.target.vocab_size()));
  }

  void run_batch(uint64_t first_seed, int count) {
    decode::Drafting drafting{.verify = options_.verify};
    decode::ControllerOptions& controller = drafting.model.emplace();
    controller.fixed_k = controller.max_k = options_.k;
    const decode::RequestOptions request{.max_tokens = options_.tokens, .sampling = options_.sampling};
    std::deque<decode::Sequence> sequences;
    std::vector<decode::Sequence*> batch;
    for (int i = 0; i < count; ++i) {
      const uint64_t seed = first_seed + static_cast<uint64_t>(i);
      batch.push_back(&sequences.emplace_back(stepper_, decode::Request{context_, seed, request}, drafting));
      stepper_.start(*batch.back());
    }
    std::vector<decode::Sequence*> active = batch;
    while (!active.empty()) {
      stepper_.step(active);
      std::erase_if(active, [](const decode::Sequence* s) { return s->remaining() < 1; });
    }
    for (decode::Sequence* s : batch) {
      stepper_.close(*s);
      add(s->answer());
    }
  }

  const Tally& tally() const { return tally_; }

 private:
  void add(std::span<const int32_t> answer) {
    if (follows_ && has_q_) {
      p_.fork();
      q_.fork();
      q_.follow(p_);
    }
    p_.read(answer);
    if (has_q_) q_.read(answer);
    const AnswerScorer& q = has_q_ ? q_ : p_;
    if (tally_.probabilities.empty()) tally_.probabilities.assign(p_.row(0).begin(), p_.row(0).end());
    ++tally_.first[static_cast<size_t>(answer[0])];
    for (size_t i = 0; i < answer.size(); ++i) {
      const double u = probability_transform(p_.row(i), q.row(i), answer[i], uniforms_.uniform());
      ++tally_.bins[std::min(kBins - 1, static_cast<size_t>(u * kBins))];
    }
  }

  decode::Stepper stepper_;
  std::vector<int32_t> context_;
  SampledOptions options_;
  bool follows_;  // the draft is an EAGLE-3 head, which reads hidden states of the target
  bool has_q_;    // false: a head has no distribution q after a one-token context, so the test uses p only
  AnswerScorer p_, q_;
  PhiloxStream uniforms_;
  Tally tally_;
};

double p_value(const ChiSquare& c) { return c.df > 0 ? chi_square_p_value(c.statistic, c.df) : 1.0; }

}  // namespace

bool is_near_tie(std::span<const float> logits, double unit) {
  float best = -INFINITY, second = -INFINITY, largest = 0;
  for (const float l : logits) {
    if (l > best) {
      second = best;
      best = l;
    } else {
      second = std::max(second, l);
    }
    if (std::isfinite(l)) largest = std::max(largest, std::abs(l));
  }
  return static_cast<double>(best) - second < 4 * unit * largest;
}

double unit_roundoff(const std::string& dtype) {
  if (dtype == "fp32" || dtype == "int8") return 0x1p-24;  // int8 weights are multiplied in fp32
  if (dtype == "fp16") return 0x1p-11;
  if (dtype == "bf16") return 0x1p-8;
  throw Error(ErrorKind::kInternal, "unit_roundoff: expected fp32, fp16, bf16 or int8, found " + dtype);
}

GreedyComparison compare_answers(decode::CausalModel& target, std::span<const TokenRow> rows,
                                 std::span<const decode::Rollout> plain, std::span<const decode::Rollout> speculative,
                                 double unit) {
  GreedyComparison result;
  decode::LogitRows logits;
  for (size_t i = 0; i < rows.size(); ++i) {
    const auto &a = plain[i].tokens, &b = speculative[i].tokens;
    if (a.empty() && b.empty()) continue;
    ++result.prompts;
    const size_t shared = static_cast<size_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin());
    if (shared == a.size() && shared == b.size()) {
      ++result.identical;
      continue;
    }
    bool tie = false;
    if (shared < a.size() && shared < b.size()) {
      decode::Rollout common{{a.begin(), a.begin() + static_cast<std::ptrdiff_t>(shared)}, {}};
      next_logits(target, decode::answered_row(rows[i], common).tokens, logits);
      tie = tie_between(logits.row(0), a[shared], b[shared], unit);
    }
    ++(tie ? result.near_ties : result.differences);
  }
  return result;
}

GreedyComparison compare_greedy(const decode::ModelPair& models, std::span<const TokenRow> rows,
                                decode::RolloutOptions options, double unit, const ProgressFn& progress) {
  options.request.sampling = SamplingOptions{.temperature = 0};
  options.stage = "lossless: with the draft";
  const auto speculative = decode::roll_out(models.target, &models.draft, rows, options, progress);
  options.k = 0;
  options.stage = "lossless: without";
  const auto plain = decode::roll_out(models.target, nullptr, rows, options, progress);
  return compare_answers(models.target, rows, plain, speculative, unit);
}

double probability_transform(std::span<const float> p, std::span<const float> q, int32_t x, double v) {
  const double px = p[static_cast<size_t>(x)], qx = q[static_cast<size_t>(x)];
  if (!(px > 0)) return 0;  // x is impossible under p: the most extreme value
  double above = 0, equal = 0, total = 0;
  for (size_t y = 0; y < p.size(); ++y) {
    const double left = q[y] * px, right = qx * p[y];  // compares q/p without dividing
    total += p[y];
    if (left > right)
      above += p[y];
    else if (left == right)
      equal += p[y];
  }
  return std::clamp((above + v * equal) / total, 0.0, 1.0);
}

ChiSquare pearson(std::span<const int64_t> counts, std::span<const double> probabilities, double least) {
  double n = 0;
  for (const int64_t c : counts) n += static_cast<double>(c);
  std::vector<std::pair<double, double>> cells;  // expected and observed count of each cell of the chi-square test
  std::pair<double, double> rest;
  for (size_t i = 0; i < counts.size(); ++i) {
    const double expected = probabilities[i] * n, seen = static_cast<double>(counts[i]);
    if (expected >= least)
      cells.emplace_back(expected, seen);
    else
      rest = {rest.first + expected, rest.second + seen};
  }
  if (rest.first >= least) {
    cells.push_back(rest);
  } else if (!cells.empty()) {
    auto& smallest = *std::min_element(cells.begin(), cells.end());
    smallest = {smallest.first + rest.first, smallest.second + rest.second};
  }
  ChiSquare result;
  for (const auto& [expected, seen] : cells) result.statistic += (seen - expected) * (seen - expected) / expected;
  result.df = std::max(0.0, static_cast<double>(cells.size()) - 1);
  if (result.df == 0) result.statistic = 0;
  return result;
}

SampledTest sampled_test(const decode::ModelPair& models, std::span<const std::vector<int32_t>> contexts,
                         const SampledOptions& given, const Clock& clock, const ProgressFn& progress) {
  SampledOptions options = given;
  if (options.sampling.greedy()) options.sampling.temperature = 1;
  SampledTest test;
  ChiSquare first;
  std::vector<int64_t> bins(kBins);
  const double begun = clock.seconds();
  const int64_t share =
      contexts.empty() ? 0 : std::max<int64_t>(1, options.runs / static_cast<int64_t>(contexts.size()));
  const auto report = [&] {
    if (progress)
      progress({"lossless: sampled", static_cast<double>(test.runs),
                static_cast<double>(share) * static_cast<double>(contexts.size()), "runs", ""});
  };
  report();
  for (size_t c = 0; c < contexts.size(); ++c) {
    ContextTest context(models, contexts[c], options, c);
    // The time limit is split evenly among the contexts, so that a slow model still tests each of them. Only the clock
    // decides when sampling stops, never the drawn tokens, so stopping does not bias the test.
    const double until = begun + options.seconds * static_cast<double>(c + 1) / static_cast<double>(contexts.size());
    for (int64_t done = 0; done < share && (done == 0 || clock.seconds() < until);) {
      if (stop_requested()) throw Error(ErrorKind::kNetwork, "stopped by a signal during the sampled test");
      const int count = static_cast<int>(std::min<int64_t>(options.batch, share - done));
      context.run_batch(options.seed + 1 + static_cast<uint64_t>(test.runs), count);
      done += count;
      test.runs += count;
      report();
    }
    const ChiSquare one = pearson(context.tally().first, context.tally().probabilities);
    first = {first.statistic + one.statistic, first.df + one.df};
    for (size_t i = 0; i < kBins; ++i) bins[i] += context.tally().bins[i];
  }
  test.first_token_p = p_value(first);
  test.sequence_p = p_value(pearson(bins, std::vector<double>(kBins, 1.0 / kBins)));
  test.p_value = std::min(1.0, 2 * std::min(test.first_token_p, test.sequence_p));
  return test;
}

}  // namespace specdec::deploy
