#include "base/verdict.h"

#include <cstddef>
#include <iterator>

#include "base/error.h"

namespace specdec {

namespace {

struct Row {
  Verdict verdict;
  const char* name;
  int exit_code;
};
constexpr Row kRows[] = {
    {Verdict::kPass, "pass", 0},
    {Verdict::kFail, "fail", 3},
    {Verdict::kNotLossless, "not_lossless", 3},
    {Verdict::kNotWorthIt, "not_worth_it", 6},
    {Verdict::kInconclusive, "inconclusive", 4},
    {Verdict::kStale, "stale", 5},
    {Verdict::kFaster, "faster", 0},
    {Verdict::kHealthy, "healthy", 0},
    {Verdict::kWarn, "warn", 0},
    {Verdict::kDrift, "drift", 3},
    {Verdict::kStaleTarget, "stale_target", 5},
    {Verdict::kImproved, "improved", 0},
    {Verdict::kNoSignificantGain, "no_significant_gain", 3},
};

// Each verdict has the row of its own number.
consteval bool rows_are_in_order() {
  for (size_t i = 0; i < std::size(kRows); ++i)
    if (static_cast<size_t>(kRows[i].verdict) != i) return false;
  return true;
}
static_assert(rows_are_in_order());

const Row& row_of(Verdict verdict) {
  const auto i = static_cast<size_t>(verdict);
  if (i >= std::size(kRows)) throw Error(ErrorKind::kInternal, "verdict " + std::to_string(i) + " has no row");
  return kRows[i];
}

}  // namespace

const char* to_string(Verdict verdict) { return row_of(verdict).name; }

std::optional<Verdict> verdict_named(std::string_view name) {
  for (const Row& row : kRows)
    if (name == row.name) return row.verdict;
  return std::nullopt;
}

int exit_code(Verdict verdict) { return row_of(verdict).exit_code; }

bool is_gate_verdict(Verdict verdict) {
  switch (verdict) {
    case Verdict::kPass:
    case Verdict::kFail:
    case Verdict::kNotLossless:
    case Verdict::kNotWorthIt:
    case Verdict::kInconclusive:
    case Verdict::kStale:
      return true;
    case Verdict::kFaster:
    case Verdict::kHealthy:
    case Verdict::kWarn:
    case Verdict::kDrift:
    case Verdict::kStaleTarget:
    case Verdict::kImproved:
    case Verdict::kNoSignificantGain:
      return false;
  }
  return false;
}

void to_json(Json& json, Verdict verdict) { json = to_string(verdict); }

}  // namespace specdec
