#include "distill/train/timed_evaluation.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <string>

namespace specdec::distill {

namespace {

// Number of rows that are scored first. After that, each step scores at most as many rows as are scored already.
constexpr size_t kFirstRows = 2;

// Returns the number of rows to score next, if `done` rows took `taken` seconds and `seconds` are left.
size_t next_rows(size_t done, double taken, double seconds) {
  if (done == 0) return kFirstRows;
  const double fit = seconds * static_cast<double>(done) / std::max(taken, 1e-9);
  return fit >= static_cast<double>(done) ? done : static_cast<size_t>(std::max(0.0, fit));
}

}  // namespace

Evaluation evaluate_within(double seconds, const Clock& clock, const TrainedDraft& draft, Teacher* teacher,
                           std::vector<TokenRow>& rows, const EvaluationOptions& options) {
  const auto score = [&](const EvaluationOptions& part) {
    return teacher ? evaluate(draft, *teacher, rows, part) : evaluate(draft, nullptr, rows, part);
  };
  if (options.ranks->broadcast(std::isinf(seconds) ? "all" : "") == "all" || rows.empty()) return score(options);
  const double begin = clock.seconds();
  std::vector<RowScore> scores;
  bool is_bound = false;
  while (scores.size() < rows.size()) {
    const double taken = clock.seconds() - begin;
    const size_t wanted = next_rows(scores.size(), taken, seconds - taken),
                 count = std::stoull(options.ranks->broadcast(std::to_string(wanted)));
    if (count == 0) break;
    EvaluationOptions part = options;
    part.begin = scores.size();
    part.end = std::min(part.begin + count, rows.size());
    if (options.step)
      part.step = [&, share = part.end - part.begin](double done) {
        options.step((static_cast<double>(part.begin) + done * static_cast<double>(share)) /
                     static_cast<double>(rows.size()));
      };
    const Evaluation scored = score(part);
    scores.insert(scores.end(), scored.rows.begin(), scored.rows.end());
    is_bound |= scored.is_bound;
  }
  rows.resize(scores.size());
  return evaluation_of(std::move(scores), is_bound);
}

Evaluation first_rows(const Evaluation& evaluation, size_t rows) {
  if (rows >= evaluation.rows.size()) return evaluation;
  return evaluation_of({evaluation.rows.begin(), evaluation.rows.begin() + static_cast<ptrdiff_t>(rows)},
                       evaluation.is_bound);
}

int64_t count_conversations(const std::vector<TokenRow>& rows) {
  std::set<std::string> seen;
  for (const TokenRow& row : rows) seen.insert(row.conversation);
  return static_cast<int64_t>(seen.size());
}

}  // namespace specdec::distill
