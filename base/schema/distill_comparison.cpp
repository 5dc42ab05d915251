#include "base/schema/distill_comparison.h"

namespace specdec {

void visit_fields(Fields& f, ComparedDraft& d) {
  f.type("ComparedDraft",
         "One kind of draft after its share of the limits. overlap is the acceptance by position in the draft; k, "
         "length, speedup and ci are those of the best K.");
  f("draft", d.draft);
  f("path", d.path);
  f("parameters", d.parameters, kAnyCount);
  f("acceptance", d.acceptance);
  f("steps", d.steps, kAnyCount);
  f("tokens", d.tokens, kAnyCount);
  f("seconds", d.seconds);
  f("k", d.k, kAnyCount);
  f("length", d.length);
  f("draft_cost", d.draft_cost);
  f("verify_cost", d.verify_cost, {1024});
  f("overlap", d.overlap, kAnyNumber, 1024);
  f("speedup", d.speedup);
  f("ci", d.ci);
  f("conversations", d.conversations, kAnyCount);
  f("ties_with_first", d.ties_with_first);
}

void visit_fields(Fields& f, ComparisonReport& r) {
  f.type("DistillComparisonResult",
         "The kinds of drafts that `distill --compare` trained, by predicted speed-up (comparison.json).");
  f.schema("distill_comparison", ComparisonReport::kVersion);
  visit_verdict(f, r.verdict, {Verdict::kFaster, Verdict::kNotWorthIt});
  visit_head(f, r);
  f("drafts", r.drafts, {64, true});
  f({"level", "Of all intervals."}, r.level);
  f(if_any("engine"), r.engine);
  f(if_any("next"), r.next);
  f("next_reason", r.next_reason);
}

}  // namespace specdec
