#include "cli/engine/forecast_text.h"

#include <cmath>

#include "base/format.h"
#include "cli/progress_line.h"

namespace specdec::cli {

namespace {

double real_or_none(const Json& value) { return value.is_number() ? value.get<double>() : NAN; }

std::string interval_text(const Json& ci, const char* pattern) {
  return "[" + format(pattern, real_or_none(ci.at(0))) + ", " + format(pattern, real_or_none(ci.at(1))) + "]";
}

std::string samples_text(const Json& f) {
  std::string text = format("before       acceptance %.4f\n", real_or_none(f.at("before")));
  for (const Json& s : f.at("samples"))
    text += format("%-12s %8.0f rows   acceptance %.4f %s   %.0f tokens in %s, %.0f tokens/s\n", "sample",
                   real_or_none(s.at("rows")), real_or_none(s.at("value")), interval_text(s.at("ci"), "%.4f").c_str(),
                   real_or_none(s.at("tokens")), readable_duration(real_or_none(s.at("seconds"))).c_str(),
                   real_or_none(s.at("tokens_per_second")));
  return text;
}

std::string run_text(const Json& f) {
  const Json& run = f.at("run");
  const std::string time = format("%.0f tokens in about %s", real_or_none(run.at("tokens")),
                                  readable_duration(real_or_none(run.at("seconds"))).c_str());
  const Json& acceptance = run.at("acceptance");
  std::string text = format("%-12s %8.0f rows   ", "whole run", real_or_none(run.at("rows")));
  text += acceptance.at("value").is_null() ? "acceptance somewhere in " + interval_text(acceptance.at("ci"), "%.4f")
                                           : format("acceptance %.4f ", real_or_none(acceptance.at("value"))) +
                                                 interval_text(acceptance.at("ci"), "%.4f");
  text += "   " + time + "\n";
  if (f.contains("curve"))
    text += format("curve        %.4f - %.4g / rows^%.3f; %.1f times the largest sample%s\n",
                   real_or_none(f["curve"].at("limit")), real_or_none(f["curve"].at("scale")),
                   real_or_none(f["curve"].at("exponent")), real_or_none(run.at("extrapolation")),
                   run.at("far").get<bool>() ? ", FAR beyond what was measured" : "");
  return text;
}

std::string tokens_text(const Json& tokens) {
  return tokens.is_number() ? format("%.3g", tokens.get<double>()) : std::string("never");
}

std::string speed_text(const Json& f) {
  if (!f.contains("speed")) return "";
  const Json& s = f["speed"];
  const Json& now = s.at("sample");
  const bool known = s.contains("speedup");
  const Json& best = known ? s : now;
  const std::string k = std::to_string(best.at("k").get<int>());
  std::string text = format("costs        c = %.3f, v = %.3f at K = %s, %.3g s a plain step (%s)\n",
                            real_or_none(s.at("draft_cost")), real_or_none(s.at("verify_cost").at(k)), k.c_str(),
                            real_or_none(s.at("plain_seconds")), s.at("costs").get<std::string>().c_str());
  text += format("speed-up     %.2f ", real_or_none(best.at("speedup")));
  text += known ? interval_text(s.at("ci"), "%.2f") : std::string("with the largest sample");
  text += format(" with K = %s, %.2f tokens a step\n", k.c_str(), real_or_none(best.at("length")));
  if (!known) return text;
  const Json& tokens = s.at("break_even_tokens");
  return text + "pays back    " +
         (tokens.at("value").is_null()
              ? std::string("never")
              : "after " + tokens_text(tokens.at("value")) + " answered tokens [" + tokens_text(tokens.at("ci").at(0)) +
                    ", " + tokens_text(tokens.at("ci").at(1)) + "]") +
         "\n";
}

}  // namespace

std::string forecast_text(const Json& f, const std::string& out) {
  std::string text =
      "verdict      " + f.at("verdict").get<std::string>() + ": " + f.at("reason").get<std::string>() + "\n";
  text += samples_text(f) + run_text(f) + speed_text(f) + "forecast     " + out + "/forecast.json\n";
  text += "next         " + f.at("next_reason").get<std::string>() + "\n";
  if (f.contains("next")) text += "             " + f["next"].get<std::string>() + "\n";
  return text;
}

}  // namespace specdec::cli
