// A redistillation runs `specdec loop run` or the user's own command, or writes the manifest of a Kubernetes Job that
// runs the loop elsewhere.
#include "base/error.h"
#include "base/file.h"
#include "monitor/actions/actions.h"
#include "monitor/actions/channel.h"
#include "monitor/actions/job.h"
#include "monitor/actions/questions.h"

namespace specdec::monitor {

namespace {

// Returns the command of a redistillation, or nothing if no command has to run here.
std::vector<std::string> redistil_command(const CheckOptions& options) {
  const Policy& p = options.policy;
  if (!p.redistil.empty()) return shell(p.redistil);
  // With --job the cluster runs the loop, so `specdec loop run` is not started here. Only the user's command runs here,
  // if there is one; it applies the manifest.
  if (!p.job.empty() || p.loop.empty()) return {};
  return {options.program, "loop", "run", absolute_path(p.loop)};
}

// Looks for the new package of a redistillation that succeeded: a package in the candidate channel, or a new package in
// the channel of the served package. With a Kubernetes Job a missing package is not a failure, because the Job makes
// the package later.
std::optional<Occurrence> find_package(const LoopContext& context, bool is_job, ActionOutcome& outcome) {
  const CheckOptions& options = context.options;
  if (!options.policy.candidate.empty()) {
    const Untried untried = untried_candidate(context);
    outcome.waiting = untried.waiting;
    if (untried.package)
      return candidate_occurrence(context, *untried.package, {{"candidate", untried.package->digest}});
  }
  const auto package = locate_package(options.package);
  if (package && package->digest != context.facts.package.digest)
    return Occurrence{Event::kNewPackage, options.package + " names " + package->digest.substr(0, 12)};
  if (is_job) return std::nullopt;
  return Occurrence{Event::kFailed, "the redistillation ended well, but no new package is in the channel"};
}

}  // namespace

void write_down(const Redistil& redistil, ActionWriter& writer) {
  const Policy& p = writer.context().options.policy;
  Json payload = {{"target", redistil.target}, {"records", redistil.records}};
  if (!p.job.empty()) {
    payload["job"] = absolute_path(p.job);
    payload["manifest"] = job_manifest(redistil.key, p.job_image, {"specdec", "loop", "run", p.loop});
  }
  writer.add("redistil", redistil.key, std::move(payload));
}

ActionOutcome run_redistil(const ActionEntry& action, const ActionContext& context) {
  const Json& payload = action.payload;
  const bool is_job = payload.contains("job");
  ActionOutcome outcome;
  if (is_job) {
    const std::string file = payload["job"];
    write_file_atomic(file, payload["manifest"].get<std::string>());
    outcome.text = "wrote " + file;
  }
  const std::vector<std::string> argv = redistil_command(context.loop.options);
  if (argv.empty()) {
    if (is_job) return outcome;
    outcome = not_given();
    outcome.occurrence = Occurrence{Event::kFailed, outcome.text};
    return outcome;
  }
  outcome.code = run_for(action, context, argv).code;
  outcome.text += (outcome.text.empty() ? "exit " : ", exit ") + std::to_string(outcome.code);
  if (is_temporary(outcome.code, action))
    outcome.ended = false;
  else if (outcome.code != 0)
    outcome.occurrence =
        Occurrence{Event::kFailed, "the redistillation ended with exit code " + std::to_string(outcome.code)};
  else
    outcome.occurrence = find_package(context.loop, is_job, outcome);
  return outcome;
}

}  // namespace specdec::monitor
