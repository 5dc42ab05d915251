#include "base/schema/distill_forecast.h"

#include <cmath>

namespace specdec {

double LearningCurve::at(double rows) const { return limit - scale * std::pow(rows, -exponent); }

void visit_fields(Fields& f, ForecastSample& s) {
  f.type("ForecastSample", "The run on one sample: its acceptance on the held-out rows, and what it cost.");
  f("rows", s.rows);
  visit_figure(f, s.acceptance);
  f("path", s.path);
  f("steps", s.steps, kAnyCount);
  f("tokens", s.tokens, kAnyCount);
  f("seconds", s.seconds);
  f("tokens_per_second", s.tokens_per_second);
}

void visit_fields(Fields& f, LearningCurve& c) {
  f.type("LearningCurve", "Acceptance after training on n rows: limit - scale * n^(-exponent).");
  f("limit", c.limit);
  f("scale", c.scale);
  f("exponent", c.exponent);
}

void visit_fields(Fields& f, ForecastRun& r) {
  f.type("ForecastRun",
         "What the whole run will bring and cost. far: more than 16 times the rows of the largest sample.");
  f("rows", r.rows);
  f("tokens", r.tokens);
  f("seconds", r.seconds);
  f("acceptance", r.acceptance);
  f("gain", r.gain);
  f("extrapolation", r.extrapolation);
  f("far", r.far);
}

void visit_fields(Fields& f, SpeedPrediction& p) {
  f.type("PredictedSpeed", "A predicted speed-up with the K that makes it highest, and the tokens of a step.");
  f("k", p.k, kAnyCount);
  f("length", p.length);
  f("speedup", p.speedup);
}

void visit_fields(Fields& f, ForecastSpeed& s) {
  f.type("ForecastSpeed",
         "The predicted speed-up of the whole run at batch 1, and that of the largest sample's draft. Absent figures "
         "are those of a run whose acceptance is not known.");
  f.constant("costs", "measured");
  f("draft_cost", s.draft_cost);
  f("verify_cost", s.verify_cost, {1024});
  f("plain_seconds", s.plain_seconds);
  f("conversations", s.conversations, kAnyCount);
  f("sample", s.sample);
  f(if_any("k"), s.k, kAnyCount);
  f(if_any("length"), s.length);
  f(if_any("speedup"), s.speedup);
  f(if_any("ci"), s.ci);
  f(if_any("break_even_tokens"), s.break_even_tokens);
}

void visit_fields(Fields& f, ForecastReport& r) {
  f.type("DistillForecastResult", "What `distill --forecast` expects of a run (forecast.json).");
  f.schema("distill_forecast", ForecastReport::kVersion);
  using enum Verdict;
  visit_verdict(f, r.verdict, {kImproved, kNoSignificantGain, kNotWorthIt, kInconclusive});
  visit_head(f, r);
  f("samples", r.samples, {4096, true});
  f({"before", "Acceptance of the draft before training."}, r.before);
  f("conversations", r.conversations, kAnyCount);
  f({"level", "Of all intervals."}, r.level);
  f("run", r.run);
  f(if_any("curve"), r.curve);
  f(if_any("speed"), r.speed);
  f(if_any("next"), r.next);
  f("next_reason", r.next_reason);
}

}  // namespace specdec
