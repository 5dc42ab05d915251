// Measures a draft on as many held-out rows as the time allows.
#pragma once

#include "base/clock.h"
#include "distill/train/evaluate.h"

namespace specdec::distill {

// Scores as many of the first rows as `seconds` allow, at least one, and removes the others from `rows`. With infinite
// `seconds`, all rows are scored. `teacher` must be made for `rows`; null = measure cross entropy only. Rank 0 decides
// the number of rows for all ranks.
Evaluation evaluate_within(double seconds, const Clock& clock, const TrainedDraft& draft, Teacher* teacher,
                           std::vector<TokenRow>& rows, const EvaluationOptions& options);

// Returns the evaluation of only its first `rows` rows.
Evaluation first_rows(const Evaluation& evaluation, size_t rows);

int64_t count_conversations(const std::vector<TokenRow>& rows);

}  // namespace specdec::distill
