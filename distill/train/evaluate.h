// Measures a draft teacher-forced on held-out rows (docs/contract.md, "acceptance"). Acceptance is Σ min(p, q) at every
// answer position, averaged within each request, then over requests. Without a target, the cross entropy of the text is
// measured.
#pragma once

#include <ATen/ATen.h>

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/schema/shard_index.h"
#include "base/statistics.h"
#include "base/verdict.h"
#include "distill/gradient/trained_draft.h"
#include "distill/settings/defaults.h"
#include "distill/teacher/teacher.h"
#include "engine/parallel/ranks.h"

namespace specdec::distill {

// Acceptance is also reported for each of these ranges of answer tokens (stretches): 1 to 16, 17 to 64, 65 to 256, and
// from 257 on.
inline constexpr std::array<int64_t, 3> kAnswerStretchEnds = {16, 64, 256};
inline constexpr size_t kAnswerStretches = kAnswerStretchEnds.size() + 1;

struct RowScore {
  double acceptance = 0;     // mean over the row's answer positions; NaN without a target
  double agreement = 0;      // share of positions where both models have the same argmax; NaN without a target
  double cross_entropy = 0;  // mean of −log q(next token), in nats
  int64_t tokens = 0;        // number of answer positions
  // Mean probability of the tokens outside the teacher's top k; 0 if the teacher knows all probabilities.
  double rest = 0;
  // For each stretch (range of answer positions): the sum of acceptance over the stretch's positions in all answers of
  // the row, and the number of these positions. Both are zero in the evaluations of the initial draft that earlier
  // versions saved.
  std::array<double, kAnswerStretches> stretch_acceptance = {};
  std::array<int64_t, kAnswerStretches> stretch_tokens = {};
};

// The scores of a draft on held-out rows. With a teacher that knows only the top-k probabilities (label_teacher.h),
// acceptance and agreement are upper bounds; the true acceptance is at least acceptance − rest.
struct Evaluation {
  std::vector<RowScore> rows;       // one per row, in the order given
  double acceptance = 0, rest = 0;  // means over requests; `rest`: probability outside the teacher's top k
  bool is_bound = false;            // acceptance is an upper bound: the teacher has only the top k
  double acceptance_tokens = 0, greedy_agreement = 0, cross_entropy = 0;  // means over tokens
  int64_t tokens = 0;
};

inline constexpr int64_t kEvaluationTokens = 2048;  // padded tokens per pass
// A function that is called repeatedly during an evaluation with the fraction of the work done so far. It may throw to
// end the evaluation.
using EvaluationStep = std::function<void(double share)>;

struct EvaluationOptions {
  double temperature = 1;                    // softmax temperature of p and q, > 0
  int64_t batch_tokens = kEvaluationTokens;  // limit of padded tokens per pass
  EvaluationStep step = {};
  // Each rank scores a share of the rows, and all ranks get all scores. If `step` throws on one rank, the evaluation
  // ends on all ranks.
  const parallel::Ranks* ranks = &parallel::Ranks::alone();
  // The target that teacher or draft read, if it is divided among the ranks; else null.
  DividedTarget* divided = nullptr;
  size_t begin = 0, end = SIZE_MAX;  // range of the rows to score; the result has only these rows
};

// Scores `draft` on `rows` against `target` in fp32, or only by cross entropy if `target` is null. Computes the logits
// in chunks of rows, so that a large vocabulary needs little memory.
Evaluation evaluate(const TrainedDraft& draft, const model::Decoder* target, const std::vector<TokenRow>& rows,
                    const EvaluationOptions& options);
Evaluation evaluate(const model::Decoder& draft, const model::Decoder* target, const std::vector<TokenRow>& rows,
                    const EvaluationOptions& options);

// Scores `draft` against the logits of `teacher`, which must be made for `rows`.
Evaluation evaluate(const TrainedDraft& draft, Teacher& teacher, const std::vector<TokenRow>& rows,
                    const EvaluationOptions& options);
Evaluation evaluate(const model::Decoder& draft, Teacher& teacher, const std::vector<TokenRow>& rows,
                    const EvaluationOptions& options);

// Averages the scores of the rows into an Evaluation; each score must be the mean within its row.
Evaluation evaluation_of(std::vector<RowScore> rows, bool is_bound);

// Held-out rows in two halves that share no conversation: `selection` chooses the checkpoint, `verdict` judges the
// chosen checkpoint. Conversations are sorted by hash and go to the halves alternately. The halves have equally many
// conversations (or differ by one), unless one half reaches its maximum of rows.
struct HeldOut {
  std::vector<TokenRow> selection, verdict;
  int64_t selection_conversations = 0, verdict_conversations = 0;
};
HeldOut split_held_out(std::vector<TokenRow> rows, size_t max_selection_rows, size_t max_verdict_rows);

// A measured checkpoint. `score` is the acceptance, or minus the cross entropy if there is no target: higher is better.
struct Measured {
  int64_t step = 0;
  double score = 0;
  double loss = 0;             // training loss, recorded for the report only
  std::optional<Interval> ci;  // interval of the acceptance over conversations; none for a cross entropy
};
// Returns the steps from best to worst score. Of equal scores the earlier step comes first; NaN scores are left out.
std::vector<int64_t> rank_checkpoints(const std::vector<Measured>& measured);

// The acceptance of a part of the held-out tokens or rows.
struct PartScore {
  std::string name;     // a range of answer positions, such as "1-16", or a domain
  Estimate acceptance;  // mean over requests of the mean within each; interval of bounded_mean() over conversations
  int64_t requests = 0, conversations = 0, tokens = 0;
};
// Returns the acceptance in each range of answer positions (stretch). Ranges that no answer reaches are left out.
std::vector<PartScore> by_stretch(const std::vector<TokenRow>& rows, const Evaluation& evaluation);
// Returns the acceptance in each domain, sorted by name; rows without a domain are grouped under "". The result is
// empty if no row has a domain.
std::vector<PartScore> by_domain(const std::vector<TokenRow>& rows, const Evaluation& evaluation);
// Returns the acceptance of all rows, with its interval.
Estimate acceptance_estimate(const std::vector<TokenRow>& rows, const Evaluation& evaluation);

struct Judgement {
  Verdict verdict = Verdict::kInconclusive;  // one of kInconclusive, kImproved, kNoSignificantGain
  // Acceptance with the interval of bounded_mean() over conversations, or cross entropy with a bootstrap interval.
  Estimate before, after;
  Estimate difference;  // after - before, paired, positive = better; 95 % interval of a bootstrap over conversations
  // Lower bound of the true difference: the least acceptance that `after` can have minus the highest that `before` can
  // have. Equal to `difference` unless the evaluations are upper bounds (label_teacher.h).
  Estimate certain;
};
// Compares two evaluations of the same `rows` by acceptance, or by cross entropy if `by_acceptance` is false. If the
// rows have fewer than kMinVerdictConversations conversations, the verdict is kInconclusive. Otherwise the verdict is
// kImproved if the lower end of the interval of `difference` is above zero, else kNoSignificantGain. If the evaluations
// are upper bounds, kImproved needs the lower end of the interval of `certain` above zero; if only that of `difference`
// is, the verdict is kInconclusive.
Judgement judge(const std::vector<TokenRow>& rows, const Evaluation& before, const Evaluation& after,
                bool by_acceptance);

}  // namespace specdec::distill
