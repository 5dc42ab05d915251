#include "deploy/serve/engine/serve_command.h"

#include <algorithm>
#include <memory>
#include <optional>

#include "base/error.h"
#include "base/fingerprint.h"
#include "base/hub_cache.h"
#include "base/output_directory.h"
#include "base/schema/gate_summary.h"
#include "base/schema/package_manifest.h"
#include "deploy/models/load_pair.h"
#include "deploy/package/launch.h"
#include "deploy/serve/engine/stepper_runner.h"
#include "deploy/serve/schedule/recorder.h"
#include "deploy/serve/server.h"
#include "engine/decode/runners/model_runner.h"

namespace specdec::deploy {

namespace {

constexpr int kMaxK = 32;  // the maximum of --max-k; a validation report may contain a larger K

// Returns the names that GET /v1/models lists and that requests may use: options.model_names or, by default, the names
// that model_names() finds for the target's directory. A package has its target in "store/sha256-…/target", which says
// nothing, so the original directory counts, which the gate's report states. Without a report the name is made from the
// package's digest.
std::vector<std::string> served_names(const ServeOptions& options, const LoadedPair& pair,
                                      const std::optional<ValidationReport>& report) {
  if (!options.model_names.empty()) return options.model_names;
  const bool is_packaged = !pair.package_digest.empty();
  if (is_packaged && (!report || report->target_path.empty())) return {"package-" + pair.package_digest.substr(0, 12)};
  return model_names(is_packaged ? fs::path(report->target_path) : pair.target_dir, pair.target_dir);
}

// Returns the gate's report in the package; none if the user gave another draft, because the report does not judge that
// pair.
std::optional<ValidationReport> packaged_report(const ServeOptions& options,
                                                const std::optional<ResolvedPackage>& package) {
  if (!options.draft.empty() || !package || !package->manifest.report.is_object()) return std::nullopt;
  return validation_report_from_json(package->manifest.report, package->root.string() + "/manifest.json: report");
}

// Returns the dtype in which the gate measured the package's pair, as --dtype names it; the pair is served in this
// dtype. Returns "" if --dtype auto gives the same dtype, or if the package does not name a dtype.
std::string gated_dtype(const std::optional<ResolvedPackage>& package, const std::string& name) {
  if (!package || !package->manifest.report.is_object()) return "";
  const Json dtype = package->manifest.report.value("/inputs/dtype"_json_pointer, Json());
  if (dtype != "fp32" && dtype != "bf16" && dtype != "fp16" && dtype != "int8") return "";
  try {
    const model::DecoderConfig config = model::load_decoder_config(packaged_target(*package, name).directory);
    const bool is_own =
        config.quantisation.method == model::Quantisation::Method::kNone && dtype == model::dtype_flag(config.dtype);
    return is_own ? "" : dtype.get<std::string>();
  } catch (const Error&) {  // load_pair() reports the error, after the check for a stale draft
    return "";
  }
}

// Sets device.dtype to the dtype in which the gate measured the pair, unless --dtype gives another. Returns a log line
// about the dtype, which is a warning if --dtype gives another; "" if the dtype is the same anyway.
std::string take_gated_dtype(const std::string& gated, DeviceOptions& device) {
  if (gated.empty() || gated == device.dtype) return "";
  if (device.dtype != "auto")
    return "warning: the gate measured this package in " + gated + ", and --dtype " + device.dtype +
           " serves it in another";
  device.dtype = gated;
  return "decoding in " + gated + ", in which the gate measured this package (--dtype changes it)";
}

// The chat template, or the error of loading it. The template is loaded before the server starts threads, because
// checking a template forks the process. The error is reported later, because a stale draft must be reported before any
// other error.
struct Chat {
  std::optional<text::ChatTemplate> chat_template;
  std::optional<Error> error;
  std::shared_ptr<const VerifiedFiles> verified;  // the package's files, of which the template is one
};

Chat load_chat(const std::string& target, const std::optional<ResolvedPackage>& package, bool allow_stale) {
  constexpr uint64_t kMaxTemplateFile = 16u << 20;
  Chat chat;
  try {
    if (package) require_trusted(*package);
    if (package && !allow_stale) chat.verified = verify_small_files(*package, kMaxTemplateFile);
    chat.chat_template = text::ChatTemplate::load(package ? packaged_target(*package, target).directory
                                                          : resolve_model(target).directory);
  } catch (const Error& e) {
    chat.error = e;
  }
  return chat;
}

PairOptions pair_options(const ServeOptions& options, const std::function<void(const std::string&)>& note) {
  PairOptions wanted;
  wanted.target = options.package.empty() ? options.target : options.package;
  wanted.draft = options.draft;
  wanted.device = options.device;
  wanted.tensor_parallel = options.tensor_parallel;
  wanted.allow_stale = options.allow_stale;
  wanted.speculate = options.speculation.k != 0;
  wanted.drafts_wanted = options.speculation.suffix ? 0 : options.speculation.k;
  wanted.chat = false;
  wanted.sequences = options.max_batch;
  wanted.tokens_per_sequence = options.max_context;
  wanted.may_give_up = true;
  wanted.cache_bytes = options.cache_mib << 20;
  wanted.on_plan = [note](const model::MemoryPlan& plan) { note("memory: " + plan.text()); };
  return wanted;
}

// Returns options for the K controller that start from the gate's measurements of this pair. The user's flags take
// precedence.
StepperRunnerOptions stepping_of(const ServeOptions& options, const std::optional<ValidationReport>& report) {
  StepperRunnerOptions stepping;
  stepping.speculation = options.speculation;
  if (!report) return stepping;
  if (report->alpha.n > 0) stepping.prior_overlap = std::clamp(report->alpha.value, 0.01, 0.99);
  const LaunchPlan plan = launch_plan(*report, "", "");
  // If the gate did not pass, its schedule has only K = 0: decoding is plain until the controller has measured a gain
  // itself.
  stepping.schedule = ranges_of(plan.schedule);
  stepping.text_max_k = options.speculation.max_k;  // the gate judged the draft model, not suffix drafts
  // A draft that changes the output is never used, whatever its speed.
  const int tried_k = report->verdict == Verdict::kNotLossless ? 0 : plan.tried_k;
  if (!options.max_k_given) stepping.speculation.max_k = std::min(std::max(plan.max_k(), tried_k), kMaxK);
  if (!options.verify_given) stepping.speculation.verify = parse_verify_rule(plan.verify);
  return stepping;
}

// Returns a warning for a package whose gate did not pass; "" if it passed or if --k 0 disables drafting.
std::string gate_warning(const ServeOptions& options, const ValidationReport& report) {
  if (report.verdict == Verdict::kPass || options.speculation.k == 0) return "";
  const char* const does = options.speculation.k > 0 ? "it drafts because --k says so"
                           : report.verdict == Verdict::kNotLossless && !options.max_k_given
                               ? "it is served without its draft"
                               : "it starts without drafting and drafts only where it measures a gain";
  return "warning: the gate did not pass this package: " + gate_brief(report, "manifest.json") + ": " + does +
         "; next: " + next_command(report, command_of(report, "gate"));
}

NamedDraft read_draft(const LoadedPair& pair, decode::CausalModel& target, PairOptions options, const std::string& name,
                      const std::function<void(const std::string&)>& note) {
  options.draft = name;
  const LoadedDraft loaded = load_draft(pair, options);
  if (!loaded.warning.empty()) note("warning: " + loaded.warning);
  return {name, fingerprint_model(loaded.directory).id,
          decode::make_draft_runner(loaded.draft, target, loaded.cache_bytes)};
}

}  // namespace

ServeOutcome run_serve_command(const ServeOptions& options, const ServeHooks& hooks, const Clock& clock) {
  validate(options.speculation);
  validate(options.device);
  if (!options.record_dir.empty()) {
    check_shared_directory(options.record_dir, "--record");
    require_no_other_recorder(options.record_dir);
  }
  const auto note = [&hooks](const std::string& line) {
    if (hooks.on_note && !line.empty()) hooks.on_note(line);
  };
  PairOptions wanted = pair_options(options, note);
  const std::string target_name = wanted.target;
  const std::optional<ResolvedPackage> package = locate_package(target_name);
  if (package) wanted.target = package->root.string();  // a channel may move, so it is resolved only once
  if (!options.package.empty() && !package)
    throw Error(ErrorKind::kModel, options.package +
                                       ": no package (a directory with manifest.json, STORE:CHANNEL or sha256-...): "
                                       "use --target for a model");
  const Chat chat = load_chat(wanted.target, package, options.allow_stale);
  const text::GrammarChecker grammars;  // starts a child process, which must happen before any thread starts
  std::optional<Server> server;
  if (!chat.error) server.emplace(options, ServeLimits{}, clock);
  wanted.rank_command = hooks.rank_command;
  wanted.on_rank_lost = hooks.on_lost;
  wanted.progress = hooks.progress;
  if (options.draft.empty()) note(take_gated_dtype(gated_dtype(package, wanted.target), wanted.device));
  const LoadedPair pair = load_pair(wanted);
  if (!pair.target) return {true, pair.warning};
  if (chat.error) throw *chat.error;
  if (chat.verified) chat.verified->require_unchanged();
  if (!pair.warning.empty()) note("warning: " + pair.warning);
  if (!pair.given_up.empty()) note("warning: " + pair.given_up);
  for (const std::string& line : pair.notes) note("info: " + line);
  const std::optional<ValidationReport> report = packaged_report(options, package);
  if (report) note(gate_warning(options, *report));

  const auto target = pair.make_target_runner(pair.plan.target_cache_bytes);
  NamedDraft draft;
  if (pair.draft)
    draft = {wanted.draft.empty() ? target_name : wanted.draft, fingerprint_model(pair.draft_dir).id,
             decode::make_draft_runner(pair.draft, *target, pair.plan.draft_cache_bytes)};
  const std::string draft_id = draft.id;
  StepperRunner runner(*target, std::move(draft), stepping_of(options, report), clock);
  if (options.speculation.k != 0)
    runner.drafts().set_loader([&](const std::string& name) { return read_draft(pair, *target, wanted, name, note); });

  ServedModel model;
  model.card.names = served_names(options, pair, report);
  model.card.target = fingerprint_model(pair.target_dir).id;
  model.card.draft = draft_id;
  model.card.package = pair.package_digest;
  model.card.created = clock.unix_seconds();
  // The served context is what the model and its KV cache can hold, so requests that can never fit are refused at once.
  model.card.max_context = std::min(target->max_length(), target->capacity_tokens());
  if (options.max_context > 0) model.card.max_context = std::min(options.max_context, model.card.max_context);
  model.tokenizer = pair.tokenizer.get();
  model.chat_template = chat.chat_template ? &*chat.chat_template : nullptr;
  model.grammars = &grammars;
  if (model.chat_template) {
    const std::string& source = model.chat_template->tool_source();
    model.tool_format =
        options.tool_call_parser == "auto" ? tool_format_of(source) : parse_tool_format(options.tool_call_parser);
    if (options.split_reasoning) model.reasoning = reasoning_markers_of(source);
  }
  model.eos_ids = pair.config.eos_ids;
  model.vocab_size = target->vocab_size();
  model.max_context = model.card.max_context;
  server->run(std::move(model), runner,
              {hooks.stop_asked, [&] { note("listening on " + server->address()); }, hooks.reload_asked},
              &runner.drafts());
  return {};
}

}  // namespace specdec::deploy
