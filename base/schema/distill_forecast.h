// forecast.json of `distill --forecast` (schema "specdec.distill_forecast/1"): what a run will bring and cost.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/draft_speed.h"
#include "base/schema/distill_report.h"

namespace specdec {

// The run on one sample: its acceptance on the held-out rows, and its cost.
struct ForecastSample {
  double rows = 0;
  DistillFigure acceptance;
  std::string path;
  int64_t steps = 0, tokens = 0;
  double seconds = 0, tokens_per_second = 0;
};

// Acceptance after training on n rows: limit - scale * n^(-exponent).
struct LearningCurve {
  double limit = 0, scale = 0, exponent = 1;
  double at(double rows) const;
};

// The whole run.
struct ForecastRun {
  double rows = 0, tokens = 0, seconds = 0;
  DistillFigure acceptance, gain;  // gain: over the draft before training
  double extrapolation = 1;        // rows of the whole run / rows of the largest sample
  bool far = false;
};

struct ForecastSpeed {
  double draft_cost = 0;
  std::map<int, double> verify_cost;  // by K
  double plain_seconds = 0;           // duration of a step without a draft
  int64_t conversations = 0;
  SpeedPrediction sample;  // with the largest sample's draft
  // The prediction for the whole run; absent if its acceptance is not known.
  std::optional<int64_t> k = {};
  std::optional<double> length = {}, speedup = {};
  std::optional<Interval> ci = {};
  std::optional<DistillFigure> break_even_tokens = {};
};

struct ForecastReport : DistillHead {
  static constexpr int kVersion = 1;
  Verdict verdict = Verdict::kInconclusive;
  std::vector<ForecastSample> samples;
  std::optional<double> before;  // acceptance of the draft before training
  int64_t conversations = 0;
  double level = 0.95;
  ForecastRun run;
  std::optional<LearningCurve> curve;
  std::optional<ForecastSpeed> speed;
  std::string next, next_reason;  // next: "" if no command is suggested
};
void visit_fields(Fields& f, ForecastReport& report);

}  // namespace specdec
