// comparison.json of `distill --compare` (schema "specdec.distill_comparison/1"): the kinds of drafts that were
// trained, by predicted speed-up.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/schema/distill_report.h"

namespace specdec {

// One kind of draft after its share of the limits.
struct ComparedDraft {
  std::string draft, path;  // the kind, such as "prune:2"; its run, relative to the comparison's directory
  int64_t parameters = 0;
  DistillFigure acceptance;
  int64_t steps = 0, tokens = 0;
  double seconds = 0;
  int k = 0;  // the best K; 0: no costs could be measured
  double length = 1, draft_cost = 0;
  std::map<int, double> verify_cost;  // by K
  std::vector<double> overlap;        // acceptance by position in the draft
  double speedup = 0;                 // with the best K
  Interval ci = {};
  int64_t conversations = 0;
  bool ties_with_first = false;  // its interval overlaps that of the draft ranked first
};
void visit_fields(Fields& f, ComparedDraft& draft);

struct ComparisonReport : DistillHead {
  static constexpr int kVersion = 1;
  Verdict verdict = Verdict::kNotWorthIt;  // kFaster or kNotWorthIt
  std::vector<ComparedDraft> drafts;       // the fastest first
  double level = 0.95;
  std::optional<std::string> engine;  // the engine that the costs are of; none = this one
  std::string next, next_reason;      // next: "" if no command is suggested
};
void visit_fields(Fields& f, ComparisonReport& report);

}  // namespace specdec
