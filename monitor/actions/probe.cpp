// Runs probes. A paired probe measures acceptance on fixed requests (the canary set), compares it request by request
// with the baseline, and confirms or refutes an alarm. While speculation is off, a speed probe measures whether
// speculation would pay again.

#include "base/error.h"
#include "base/file.h"
#include "base/format.h"
#include "base/schema/error_report.h"
#include "monitor/actions/actions.h"
#include "monitor/actions/channel.h"

namespace specdec::monitor {

namespace {

constexpr int64_t kEnoughPaired = 30;  // a paired probe with fewer requests decides nothing

// Returns the path of a file of the built-in probe. The file lies in the folder that has the exit codes of the
// commands.
std::string path_of(const ActionContext& context, const char* name) {
  return absolute_path(context.children.folder()) + "/" + name;
}

// Returns the command of the probe, or nothing if no probe is set up.
std::vector<std::string> probe_command(const ActionContext& context, bool of_speed) {
  const Policy& p = context.loop.options.policy;
  if (!p.probe.empty()) return shell(p.probe);
  if (p.canary.empty()) return {};
  const Facts& facts = context.loop.facts;
  const ValidationReport& report = facts.report;
  std::vector<std::string> argv = {context.loop.options.program, "--json", "-q", "validate"};
  const auto add = [&argv](const char* flag, const std::string& value) { argv.insert(argv.end(), {flag, value}); };
  add("--target", absolute_path(facts.served.directory));
  add("--draft", absolute_path(facts.package.draft));
  add("--data", p.canary);
  add("--out", path_of(context, "probe"));
  add("--split", report.split);
  add("--contexts", report.contexts);
  add("--temperature", Json(report.temperature).dump());
  add("--max-requests", "0");
  add("--seed", "0");
  argv.emplace_back("--exit-zero");
  add("--parts", of_speed ? "rollout,speed" : "acceptance");
  if (!of_speed) add("--baseline", path_of(context, "baseline.json"));
  return argv;
}

std::string last_line(const std::string& text) {
  const size_t end = text.find_last_not_of(" \n\r\t");
  if (end == std::string::npos) return "";
  const size_t newline = text.rfind('\n', end);
  const size_t begin = newline == std::string::npos ? 0 : newline + 1;
  return text.substr(begin, end - begin + 1);
}

constexpr const char* kWhere = "the probe's result";

void take_speed(const Json& result, ActionOutcome& outcome) {
  const Json& speed = json_object(result, "speed", 64, kWhere, ErrorKind::kData);
  const Json& measured = json_object(speed, "measured", 16, kWhere, ErrorKind::kData);
  const double low = json_array(measured, "ci", 2, kWhere, ErrorKind::kData).at(0).get<double>();
  outcome.text = "speed-up at least " + Json(low).dump();
  if (low > 1) outcome.occurrence = Occurrence{Event::kWorth, outcome.text, {{"speed", measured}, {"seed", 0}}};
}

// Reads the interval of the drop of acceptance, which is measured on the same requests before and now (paired). Refutes
// the alarm if the whole interval is below --min-loss; confirms the alarm if the interval is above 0 and reaches
// --min-loss. Decides nothing on fewer than kEnoughPaired requests.
void take_acceptance(const Json& result, double min_loss, ActionOutcome& outcome) {
  const Json& paired = json_object(result, "baseline", 16, kWhere, ErrorKind::kData);
  const Json& ci = json_array(paired, "ci", 2, kWhere, ErrorKind::kData);
  const double low = ci.at(0).get<double>(), high = ci.at(1).get<double>();
  const int64_t n = json_int(paired, "paired_requests", {0, kMaxCount}, kWhere, ErrorKind::kData);
  const double difference = json_double(paired, "alpha_difference", {-1, 1}, kWhere, ErrorKind::kData);
  outcome.text = "acceptance on the canary set changed by " + signed_decimals(difference) + " " +
                 signed_interval_text({low, high}) + " over " + std::to_string(n) + " paired requests";
  const Json evidence = {{"baseline", paired}, {"seed", 0}};
  if (n >= kEnoughPaired && low > -min_loss)
    outcome.occurrence = Occurrence{Event::kRefuted, outcome.text, evidence};
  else if (n >= kEnoughPaired && high < 0)
    outcome.occurrence = Occurrence{Event::kConfirmed, outcome.text, evidence};
  else
    outcome.waiting = "the probe decides nothing: " + outcome.text;
}

}  // namespace

bool has_probe(const Policy& policy) { return !policy.probe.empty() || !policy.canary.empty(); }

void write_down(const Probe& probe, ActionWriter& writer) {
  if (has_probe(writer.context().options.policy)) writer.add("probe", probe.key, {{"off", probe.of_speed}});
}

ActionOutcome run_probe(const ActionEntry& action, const ActionContext& context) {
  const bool of_speed = action.payload.value("off", false);
  const std::vector<std::string> argv = probe_command(context, of_speed);
  if (argv.empty()) return not_given();
  make_private_directory(context.children.folder());
  write_file_atomic(context.children.folder() / "baseline.json", context.loop.facts.package.manifest.report.dump());
  const ChildEnd end = run_for(action, context, argv, true);
  ActionOutcome outcome{.code = end.code, .text = "exit " + std::to_string(end.code)};
  if (is_temporary(end.code, action)) {
    outcome.ended = false;
    return outcome;
  }
  try {
    const Json result =
        parse_json(last_line(end.output), kWhere, ErrorKind::kData, {.max_bytes = 16u << 20, .max_depth = 32});
    if (const auto failure = error_message(result)) throw Error(ErrorKind::kData, *failure);
    if (of_speed)
      take_speed(result, outcome);
    else
      take_acceptance(result, context.loop.options.policy.min_loss, outcome);
  } catch (const std::exception& e) {  // nlohmann::json throws its own exceptions for values of other types
    outcome.text += std::string(", and its result cannot be used: ") + e.what();
    outcome.waiting = "probe: " + outcome.text;
  }
  return outcome;
}

}  // namespace specdec::monitor
