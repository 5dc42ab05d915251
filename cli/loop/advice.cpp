#include "cli/loop/advice.h"

#include <cmath>
#include <limits>

#include "base/format.h"
#include "base/verdict.h"

namespace specdec::cli {

namespace {

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

double real(const Json& object, const char* key) {
  if (!object.is_object()) return kNone;
  const auto at = object.find(key);
  return at != object.end() && at->is_number() ? at->get<double>() : kNone;
}
Json part(const Json& object, const char* key) { return object.is_object() ? object.value(key, Json()) : Json(); }
std::string words(const Json& object, const char* key) {
  const Json value = part(object, key);
  return value.is_string() ? value.get<std::string>() : "";
}
std::string interval(const Json& object) {
  const Json ci = part(object, "ci");
  return ci.is_array() && ci.size() == 2 && ci[0].is_number() && ci[1].is_number()
             ? " " + interval_text({ci[0].get<double>(), ci[1].get<double>()})
             : "";
}
std::string verdict_of(const Json& result) { return readable(words(result, "verdict")); }

std::string command_of(const std::string& stage) {
  for (const LoopStage& s : loop_stages())
    if (s.name == stage) return s.command;
  return stage;
}

// Returns the LOOP.toml setting that makes the limit of this training four times as large, or the limit "4h" if the
// training had none.
std::string train_longer(const Json& trained) {
  const Json options = part(trained, "options");
  if (const double seconds = real(options, "time_limit_seconds"); seconds > 0)
    return "[distill] time-limit = \"" + decimals(4 * seconds, 0) + "s\"";
  if (const double epochs = real(options, "epochs"); epochs > 0) return "[distill] epochs = " + decimals(4 * epochs, 0);
  if (const double steps = real(options, "max_steps"); steps > 0)
    return "[distill] max-steps = " + decimals(4 * steps, 0);
  return "[distill] time-limit = \"4h\"";
}

// Returns whether the last measured checkpoint was the best one, which means that more training would have helped.
bool still_rising(const Json& trained) {
  const Json training = part(trained, "training"), measured = part(part(training, "selection"), "measured");
  return measured.is_array() && !measured.empty() && measured.back().is_object() &&
         real(measured.back(), "step") == real(training, "kept_step");
}

// Returns the LOOP.toml setting that corresponds to the training limit in a `specdec distill` command.
std::string limit_of(const std::string& command) {
  for (const char* name : {"time-limit", "epochs", "max-steps"}) {
    const std::string flag = std::string(" --") + name + " ";
    const size_t at = command.find(flag);
    if (at == std::string::npos) continue;
    const size_t begin = at + flag.size();
    const std::string value = command.substr(begin, command.find(' ', begin) - begin);
    return std::string("[distill] ") + name + " = " + (std::string(name) == "time-limit" ? "\"" + value + "\"" : value);
  }
  return "a longer run: " + command;
}

int64_t layers_of(const LoopSettings& s) {
  int layers = 0;
  return std::sscanf(s.draft.c_str(), "prune:%d", &layers) == 1 ? layers : 0;
}
std::string prune(int64_t layers) { return "[loop] draft = \"prune:" + std::to_string(layers) + "\""; }

std::string better_draft(const LoopSettings& s, const Json& trained) {
  if (!trained.is_object() || still_rising(trained))
    return train_longer(trained) + ": the draft was still getting better when the training ended";
  const int64_t layers = layers_of(s);
  return layers > 0 ? prune(layers + 1) + ", or more logs: the draft had stopped getting better"
                    : "more logs, or a larger draft: it had stopped getting better";
}

std::string failed_acceptance(const Json& result) {
  const Json acceptance = part(result, "acceptance"), inputs = part(result, "inputs");
  const double alpha = real(acceptance, "alpha"), floor = real(inputs, "floor");
  if (std::isnan(alpha)) return "";
  std::string text = "acceptance " + decimals(alpha) + interval(acceptance);
  if (!std::isnan(floor))
    text += ", floor " + decimals(floor, 2) + (alpha < floor ? ": " + decimals(floor - alpha) + " short of it" : "");
  return text;
}

std::string measured_speed(const Json& result) {
  const Json measured = part(part(result, "speed"), "measured");
  const double speedup = real(measured, "speedup");
  return std::isnan(speedup) ? "" : "speed-up " + decimals(speedup) + interval(measured) + ", 1 is plain decoding";
}

Advice of_gate(const LoopSettings& s, int exit_code, const Json& result, const Json& trained) {
  const std::string acceptance = failed_acceptance(result), speed = measured_speed(result),
                    own = words(result, "reason");
  std::string figures = acceptance + (acceptance.empty() || speed.empty() ? "" : "; ") + speed;
  if (figures.empty() && own.empty()) figures = "it gave no reason";
  if (!own.empty()) figures += (figures.empty() ? "" : "; ") + own;
  const int64_t layers = layers_of(s);
  switch (exit_code) {
    case 3:
      if (verdict_named(words(result, "verdict")) == Verdict::kNotLossless)
        return {figures,
                "specdec doctor: the engine's answers differ with the draft, which no setting mends; report it with "
                "the gate's report"};
      return {figures, better_draft(s, trained)};
    case 6:
      return {figures,
              layers > 1 ? prune(layers - 1) + ": a smaller draft costs less a token" : better_draft(s, trained)};
    case 5:
      return {figures, "specdec loop run --force: the target changed while the loop ran"};
    default:
      return {figures,
              "[data] holdout = 0.2, or more logs: the gate needs more requests to be sure; on a busy machine run it "
              "again when it is idle"};
  }
}

}  // namespace

std::string headline(const std::string& stage, const Json& result) {
  if (!result.is_object()) return "";
  if (stage == "validate") {
    const std::string acceptance = failed_acceptance(result), speed = measured_speed(result);
    return verdict_of(result) + (acceptance.empty() ? "" : ": " + acceptance) + (speed.empty() ? "" : "; " + speed);
  }
  const std::string verdict = verdict_of(result), reason = words(result, "reason");
  return verdict + (reason.empty() || verdict.empty() ? "" : ": ") + reason;
}

Advice advise(const LoopSettings& settings, const StageEnd& end, const Json& trained) {
  const auto& [stage, exit_code, seconds, result, error, ran] = end;
  if (exit_code >= 74 && error.empty())
    return {"it was interrupted", "specdec loop run " + settings.file.string() + ": it goes on where it was"};
  if (result.is_object() && stage == "validate") return of_gate(settings, exit_code, result, trained);
  if (result.is_object() && stage == "distill") {
    const std::string reason = verdict_of(result) + ": " + words(result, "reason");
    if (exit_code == 3) return {reason, better_draft(settings, result)};
    // A run that was too short for a verdict suggests a longer limit in "next".
    if (words(result, "next").starts_with("specdec distill ")) return {reason, limit_of(words(result, "next"))};
    return {reason, "[data] holdout = 0.2, or more logs"};
  }
  std::string reason = error.empty() ? headline(stage, result) : error;
  if (reason.empty()) reason = "it gave no reason";
  if (exit_code >= 74) return {reason, "specdec loop run " + settings.file.string() + ": it goes on where it was"};
  return {reason, "what that line names; flags of the stage stand in [" + stage + "] of " + settings.file.string() +
                      " (specdec " + command_of(stage) + " --help)"};
}

}  // namespace specdec::cli
