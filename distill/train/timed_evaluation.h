// Measures a draft on as many held-out rows as the time allows.
#pragma once

#include "base/clock.h"
#include "distill/train/evaluate.h"

namespace specdec::distill {

// Scores the first rows, as many as `seconds` allow and at least one, and removes the others from `rows`. With infinite
// time the rows are scored as evaluate() does. `teacher` may be null, and is made for these rows. All ranks score as
// many rows as rank 0 decides.
Evaluation evaluate_within(double seconds, const Clock& clock, const TrainedDraft& draft, Teacher* teacher,
                           std::vector<TokenRow>& rows, const EvaluationOptions& options);

// Keeps the first rows of an evaluation.
Evaluation first_rows(const Evaluation& evaluation, size_t rows);

int64_t count_conversations(const std::vector<TokenRow>& rows);

}  // namespace specdec::distill
