#include "cli/engine/forecast_text.h"

#include <cmath>

#include "base/format.h"
#include "cli/progress_line.h"

namespace specdec::cli {

namespace {

std::string interval_text(const DistillFigure& figure) {
  return format("[%.4f, %.4f]", figure.low.value_or(NAN), figure.high.value_or(NAN));
}

std::string samples_text(const ForecastReport& f) {
  std::string text = format("before       acceptance %.4f\n", f.before.value_or(NAN));
  for (const ForecastSample& s : f.samples)
    text += format("%-12s %8.0f rows   acceptance %.4f %s   %lld tokens in %s, %.0f tokens/s\n", "sample", s.rows,
                   s.acceptance.value.value_or(NAN), interval_text(s.acceptance).c_str(),
                   static_cast<long long>(s.tokens), readable_duration(s.seconds).c_str(), s.tokens_per_second);
  return text;
}

std::string run_text(const ForecastReport& f) {
  const ForecastRun& run = f.run;
  std::string text = format("%-12s %8.0f rows   ", "whole run", run.rows);
  text += run.acceptance.value ? format("acceptance %.4f ", *run.acceptance.value) : "acceptance somewhere in ";
  text += interval_text(run.acceptance) +
          format("   %.0f tokens in about %s\n", run.tokens, readable_duration(run.seconds).c_str());
  if (f.curve)
    text +=
        format("curve        %.4f - %.4g / rows^%.3f; %.1f times the largest sample%s\n", f.curve->limit,
               f.curve->scale, f.curve->exponent, run.extrapolation, run.far ? ", FAR beyond what was measured" : "");
  return text;
}

std::string tokens_text(std::optional<double> tokens) { return tokens ? format("%.3g", *tokens) : "never"; }

std::string speed_text(const ForecastReport& f) {
  if (!f.speed) return "";
  const ForecastSpeed& s = *f.speed;
  const bool known = s.speedup.has_value();
  const int k = known ? static_cast<int>(s.k.value()) : s.sample.k;
  std::string text = format("costs        c = %.3f, v = %.3f at K = %d, %.3g s a plain step (measured)\n", s.draft_cost,
                            s.verify_cost.at(k), k, s.plain_seconds);
  text += format("speed-up     %.2f ", known ? *s.speedup : s.sample.speedup);
  text += known ? format("[%.2f, %.2f]", s.ci.value().low, s.ci.value().high) : "with the largest sample";
  text += format(" with K = %d, %.2f tokens a step\n", k, known ? s.length.value() : s.sample.length);
  if (!known) return text;
  const DistillFigure& tokens = s.break_even_tokens.value();
  return text + "pays back    " +
         (tokens.value ? "after " + tokens_text(tokens.value) + " answered tokens [" + tokens_text(tokens.low) + ", " +
                             tokens_text(tokens.high) + "]"
                       : "never") +
         "\n";
}

}  // namespace

std::string forecast_text(const ForecastReport& f, const std::string& out) {
  std::string text = "verdict      " + std::string(to_string(f.verdict)) + ": " + f.reason + "\n";
  text += samples_text(f) + run_text(f) + speed_text(f) + "forecast     " + out + "/forecast.json\n";
  text += "next         " + f.next_reason + "\n";
  if (!f.next.empty()) text += "             " + f.next + "\n";
  return text;
}

}  // namespace specdec::cli
