#include "base/verdict.h"

#include <algorithm>
#include <cstddef>
#include <iterator>

#include "base/error.h"

namespace specdec {

namespace {

struct Row {
  Verdict verdict;
  const char* name;
  int exit_code;
  bool of_gate;  // whether validate can end with this verdict
};
constexpr Row kRows[] = {
    {Verdict::kPass, "pass", 0, true},
    {Verdict::kFail, "fail", 3, true},
    {Verdict::kNotLossless, "not_lossless", 3, true},
    {Verdict::kNotWorthIt, "not_worth_it", 6, true},
    {Verdict::kInconclusive, "inconclusive", 4, true},
    {Verdict::kStale, "stale", 5, true},
    {Verdict::kFaster, "faster", 0, false},
    {Verdict::kHealthy, "healthy", 0, false},
    {Verdict::kWarn, "warn", 0, false},
    {Verdict::kDrift, "drift", 3, false},
    {Verdict::kStaleTarget, "stale_target", 5, false},
    {Verdict::kImproved, "improved", 0, false},
    {Verdict::kNoSignificantGain, "no_significant_gain", 3, false},
};

// row_of() uses a verdict's number as the index of its row.
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

bool is_gate_verdict(Verdict verdict) { return row_of(verdict).of_gate; }

std::string readable(std::string_view name) {
  std::string out(name);
  std::replace(out.begin(), out.end(), '_', ' ');
  return out;
}

void visit_verdict(Fields& f, Verdict& verdict, const std::vector<Verdict>& allowed) {
  std::vector<const char*> names;
  for (const Verdict one : allowed) names.push_back(to_string(one));
  std::string name = to_string(verdict);
  f.one_of("verdict", name, names);
  if (f.reads()) verdict = *verdict_named(name);
}

void visit_gate_verdict(Fields& f, Verdict& verdict) {
  std::vector<Verdict> allowed;
  for (const Row& row : kRows)
    if (row.of_gate) allowed.push_back(row.verdict);
  visit_verdict(f, verdict, allowed);
}

void to_json(Json& json, Verdict verdict) { json = to_string(verdict); }

}  // namespace specdec
