// `specdec package` and its subcommands verify | sign | quantise | lint. package_store.cpp has the subcommands of the
// store, package_transfer.cpp has push and pull.
#include "deploy/package/package.h"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>
#include <memory>

#include "base/file.h"
#include "base/gguf/model_files.h"
#include "base/hub_cache.h"
#include "base/model_directory.h"
#include "base/schema/gate_summary.h"
#include "base/shell.h"
#include "base/verdict.h"
#include "cli/command.h"
#include "cli/log.h"
#include "cli/package.h"
#include "cli/results.h"
#include "deploy/package/checks.h"
#include "deploy/package/export_gguf.h"
#include "deploy/package/launch.h"
#include "deploy/package/lint.h"
#include "deploy/package/lint_rules.h"
#include "deploy/package/quantise.h"
#include "deploy/package/store.h"

namespace specdec::cli {

namespace {

void require_flags(const std::vector<std::pair<const char*, const std::string*>>& flags) {
  for (const auto& [name, value] : flags)
    if (value->empty()) throw Error(ErrorKind::kUsage, std::string(name) + " is required (see specdec package --help)");
}

// Prints the outcome and returns its exit code. If the exit code is not 0, also prints the reason as the last line on
// stderr, as report_error() does.
template <class T>
int finish(const Global& global, T& result, const deploy::PackageOutcome& outcome, const std::string& verdict,
           const std::string& text) {
  result.head.verdict = outcome.exit_code == exit_code(Verdict::kStale) ? to_string(Verdict::kStale) : verdict;
  result.outcome = outcome;
  if (global.json)
    print(result);
  else if (outcome.exit_code == 0)
    std::printf("%s\n", text.c_str());
  if (outcome.exit_code != 0)
    say("specdec: " + outcome.reason + (outcome.next.empty() ? "" : "; next: " + outcome.next), LogLevel::kError,
        {{"exit_code", outcome.exit_code}});
  return outcome.exit_code;
}

// Reads the passphrase from a file or the environment, never from the command line, which other users can see.
std::string read_passphrase(const PackageFlags& flags) {
  if (flags.key.empty()) return "";
  if (flags.passphrase_file.empty()) {
    const char* const given = std::getenv("MINISIGN_PASSPHRASE");
    return given ? given : "";
  }
  std::string text = read_file(flags.passphrase_file, 4096, ErrorKind::kConfig);
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) text.pop_back();
  return text;
}

// Checks the options of `package`. Throws Error(kUsage).
void check_create(const PackageFlags& flags) {
  const std::string report = flags.reports.empty() ? "" : flags.reports.front();
  require_flags(
      {{"--target", &flags.target}, {"--draft", &flags.draft}, {"--report", &report}, {"--store", &flags.store}});
  if (!flags.channel.empty()) require_channel_name(flags.channel);
  deploy::require_known_engines(flags.engines);
  for (const std::string& format : flags.quantise) deploy::require_known_quantisation(format);
  if (!flags.gguf.empty()) deploy::require_known_gguf_type(flags.gguf);
}

struct CreateResult : PackageResult {
  deploy::PackageOutcome outcome;
  std::string next;
  std::optional<deploy::ChannelChange> channel;
};
void visit_fields(Fields& f, CreateResult& r) {
  f.type("PackageResult", "The package that was made, or why none was made.");
  visit_package_head(f, r, "create", {});
  f("reason", r.outcome.reason);
  const Presence made = r.outcome.digest.empty() || r.outcome.exit_code != 0 ? Presence::kIfAny : Presence::kAlways;
  std::string path = r.outcome.path.string();
  f({"digest", "", made}, r.outcome.digest);
  f({"path", "", made}, path);
  f({"is_new", "", made}, r.outcome.is_new);
  f(if_any("channel"), r.channel);
  f("next", r.next);
  f.json("gate", r.outcome.gate, {{"type", {"object", "null"}}});
  f("warnings", r.outcome.warnings);
}

int run_create(const Global& global, const PackageFlags& flags) {
  const std::string report = flags.reports.front();
  for (const std::string& file : flags.reports)
    if (fs::is_directory(file))
      throw Error(ErrorKind::kData, "--report " + file + ": found a directory, expected its file: give " +
                                        (fs::path(file) / "report.json").string());
  deploy::check_store_directory(flags.store);  // checked before a model is downloaded
  CreateResult result;
  deploy::PackageOptions options;
  const ResolvedModel target = resolve_model(flags.target), draft = resolve_model(flags.draft);
  options.target = target.directory;
  options.draft = draft.draft.empty() ? draft.directory : draft.draft;
  options.report = report;
  options.variant_reports.assign(flags.reports.begin() + 1, flags.reports.end());
  options.quantise = flags.quantise;
  options.gguf = flags.gguf;
  options.store = flags.store;
  options.name = flags.name;
  options.engines = flags.engines;
  // The package refers to a local target by its absolute path, and to a hub model by its name.
  if (flags.reference_target)
    options.reference = fs::is_directory(flags.target) ? fs::canonical(flags.target).string()
                        : fs::exists(flags.target)     ? gguf::real_file(flags.target).string()
                                                       : flags.target;
  options.parent_channel = flags.channel;
  options.allow_failed = flags.allow_failed;
  options.is_public = flags.visibility == "public";
  const deploy::PackageOutcome outcome = deploy::create_package(options, result.now(), make_progress(global));
  for (const std::string& warning : outcome.warnings) log(LogLevel::kWarn, warning);
  std::string verdict = "packaged", text;
  if (outcome.exit_code == 0) {
    std::string next = outcome.next;
    text = std::string(outcome.is_new ? "packaged " : "unchanged ") + "sha256-" + outcome.digest + "\n  " +
           outcome.path.string();
    if (!flags.key.empty())
      deploy::sign_package(outcome.path.string(), flags.key, read_passphrase(flags), result.now());
    if (!flags.channel.empty()) {
      const auto change =
          deploy::promote(flags.store, outcome.digest, flags.channel,
                          {flags.why.empty() ? "packaged" : flags.why, result.now()}, channel_signer(flags));
      result.channel = change;
      text += "\n  channel " + change.channel + (change.changed ? " now names it" : " named it already");
      next = shell_words({"specdec", "serve", flags.store + ":" + change.channel});
    }
    if (is_placeholder_name(outcome.name))
      text += "\n  name  " + outcome.name + ", after its directory: --name gives the model a better one";
    text += "\n  gate  " + outcome.gate_line + "\n  next  " + next;
    result.next = next;
  } else {
    verdict = outcome.verdict ? to_string(*outcome.verdict) : "";
    result.next = outcome.next;
  }
  result.inputs = {{"target", flags.target}, {"draft", flags.draft}, {"report", report}};
  return finish(global, result, outcome, verdict, text);
}

struct Sizes {
  uint64_t before = 0, after = 0;
};
void visit_fields(Fields& f, Sizes& sizes) {
  f.type("Sizes", "Bytes before and after.");
  f("before", sizes.before, kAnyCount);
  f("after", sizes.after, kAnyCount);
}

struct QuantiseResult : PackageResult {
  std::string path, format;
  Sizes bytes;
  double relative_error = 0;
};
void visit_fields(Fields& f, QuantiseResult& r) {
  f.type("PackageQuantiseResult", "A draft in 8 bits.");
  visit_package_head(f, r, "quantise", {"quantised"});
  f("path", r.path);
  f("format", r.format);
  f("bytes", r.bytes);
  f("relative_error", r.relative_error);
}

int run_quantise(const Global& global, const PackageFlags& flags) {
  QuantiseResult result;
  const ResolvedModel model = resolve_model(flags.draft);
  const fs::path draft = model.draft.empty() ? model.directory : model.draft;
  const deploy::QuantisedDraft done = deploy::quantise_draft(draft, flags.format, flags.out, make_progress(global));
  result.head.verdict = "quantised";
  result.path = flags.out;
  result.format = flags.format;
  result.bytes = {done.bytes_before, done.bytes_after};
  result.relative_error = done.relative_error;
  result.inputs = {{"draft", flags.draft}};
  if (global.json)
    print(result);
  else
    std::printf("%s: %s, %.1f of %.1f MB, weights differ by %.2g %% (rms)\n", flags.out.c_str(), flags.format.c_str(),
                static_cast<double>(done.bytes_after) / 1e6, static_cast<double>(done.bytes_before) / 1e6,
                100 * done.relative_error);
  return 0;
}

struct VerifyResult : PackageResult {
  deploy::PackageOutcome outcome;
};
void visit_outcome(Fields& f, deploy::PackageOutcome& outcome) {
  f("reason", outcome.reason);
  f("digest", outcome.digest);
  std::string path = outcome.path.string();
  f("path", path);
}
void visit_fields(Fields& f, VerifyResult& r) {
  f.type("PackageVerifyResult", "A package that is whole.");
  visit_package_head(f, r, "verify", {"ok", "stale"});
  visit_outcome(f, r.outcome);
  f("signer", r.outcome.signer);
}

int run_verify(const Global& global, const PackageFlags& flags) {
  VerifyResult result;
  const deploy::PackageOutcome outcome = deploy::verify_package(flags.package, flags.public_key);
  result.inputs = {{"package", flags.package}};
  return finish(global, result, outcome, "ok",
                "ok sha256-" + outcome.digest + (outcome.signer.empty() ? "" : ", signed with key " + outcome.signer));
}

struct SignResult : PackageResult {
  deploy::PackageOutcome outcome;
};
void visit_fields(Fields& f, SignResult& r) {
  f.type("PackageSignResult", "A package that was signed.");
  visit_package_head(f, r, "sign", {"signed", "stale"});
  visit_outcome(f, r.outcome);
}

int run_sign(const Global& global, const PackageFlags& flags) {
  SignResult result;
  const deploy::PackageOutcome outcome =
      deploy::sign_package(flags.package, flags.key, read_passphrase(flags), result.now());
  result.inputs = {{"package", flags.package}};
  return finish(global, result, outcome, "signed", "signed sha256-" + outcome.digest);
}

struct LintResult : PackageResult {
  std::vector<deploy::Finding> findings;
  std::optional<GateSummary> gate;
  std::string next;
};
void visit_fields(Fields& f, LintResult& r) {
  f.type("PackageLintResult", "What lint found.");
  visit_package_head(f, r, "lint", {"ok", "error"});
  f("findings", r.findings);
  f("gate", r.gate);
  f("next", r.next);
}

int run_lint(const Global& global, const PackageFlags& flags) {
  LintResult result;
  const bool text = flags.format == "text" && !global.json;
  fs::path target, draft;
  std::optional<ValidationReport> report;
  std::optional<ResolvedPackage> package;
  if (!flags.package.empty()) {
    package = deploy::require_package(flags.package);
    target = package->target;
    draft = package->draft;
    report = validation_report_from_json(package->manifest.report, flags.package);
  } else {
    require_flags({{"PACKAGE, or --target and --draft", &flags.target}, {"--draft", &flags.draft}});
    target = resolve_model(flags.target).directory;
    draft = resolve_model(flags.draft).directory;
    if (!flags.report.empty()) report = validation_report_from_json(read_json(flags.report), flags.report);
  }
  bool fatal = false;
  const std::vector<deploy::Finding>& findings = result.findings = deploy::lint_draft(target, draft, report);
  for (const deploy::Finding& f : findings) {
    fatal |= f.fatal;
    if (text)
      std::printf("%s: %s: %s [%s]\n", f.fatal ? "error" : "warning", f.file.c_str(), f.text.c_str(), f.rule.c_str());
  }
  if (flags.format == "sarif")
    std::printf("%s\n", deploy::sarif(findings).dump(2, ' ', false, Json::error_handler_t::replace).c_str());
  // The output includes the gate's verdict with the figure that decided it, and the command to run next.
  const GateCommand again = report && !flags.package.empty() ? command_of(*report, "gate")
                            : report ? command_again(*report, flags.target, flags.draft, flags.report)
                                     : GateCommand{flags.target, flags.draft, "DATA", "gate"};
  ValidationReport unmeasured;
  unmeasured.verdict = Verdict::kInconclusive;
  std::string next = next_command(report && !fatal ? *report : unmeasured, again);
  if (report && !fatal && report->verdict == Verdict::kPass && !flags.package.empty())
    next = shell_words({"specdec", "serve", flags.package});
  if (report) result.gate = gate_summary(*report);
  result.next = next;
  result.head.verdict = fatal ? "error" : "ok";
  result.inputs = {{"target", target.string()}, {"draft", draft.string()}};
  if (global.json || flags.format == "json")
    print(result);
  else if (text)
    std::printf("%sgate: %s\nnext: %s\n", findings.empty() ? "nothing to complain about\n" : "",
                report ? gate_line(*report).c_str() : "not measured", next.c_str());
  return fatal ? exit_code(ErrorKind::kModel) : 0;
}

}  // namespace

void describe_package_results(Results& results) {
  results.add<CreateResult>({.commands = {"package"}});
  results.add<VerifyResult>({.commands = {"package verify"}});
  results.add<SignResult>({.commands = {"package sign"}});
  results.add<QuantiseResult>({.commands = {"package quantise"}});
  results.add<LintResult>({.commands = {"package lint"}, .exit_codes = {7}, .without_flags = {"--format"}});
}

deploy::ChannelSigner channel_signer(const PackageFlags& flags) { return {flags.key, read_passphrase(flags)}; }

void add_key_flags(CLI::App& app, PackageFlags& flags, const std::string& what) {
  app.add_option("--key", flags.key, what)->type_name("FILE");
  app.add_option("--passphrase-file", flags.passphrase_file,
                 "File with the passphrase of an encrypted key; else the environment's MINISIGN_PASSPHRASE")
      ->type_name("FILE");
}

namespace {

void add_create_flags(CLI::App& app, PackageFlags& flags) {
  app.add_option("--target", flags.target, "MODEL that answers")->type_name("MODEL")->group("Create");
  app.add_option("--draft", flags.draft, "MODEL that drafts")->type_name("MODEL")->group("Create");
  app.add_option("--report", flags.reports,
                 "report.json of specdec validate for this pair; repeat it for quantised drafts")
      ->type_name("FILE")
      ->group("Create");
  app.add_option("--quantise,--quantize", flags.quantise,
                 "Also package the draft in these formats, comma separated: fp8,int8")
      ->type_name(CLI::detail::join(deploy::known_quantisations(), "|"))
      ->delimiter(',')
      ->group("Create");
  app.add_option("--gguf", flags.gguf,
                 "Also package target and draft as GGUF of this type, for llama.cpp: " +
                     CLI::detail::join(deploy::known_gguf_types(), ", "))
      ->type_name(CLI::detail::join(deploy::known_gguf_types(), "|"))
      ->group("Create");
  app.add_option("--store", flags.store, "Directory of packages/ and refs/, created if it is missing")
      ->type_name("STORE")
      ->group("Create");
  app.add_option("--name", flags.name,
                 "Served model name; default: the target directory's name, or what its config.json says where that is "
                 "\"target\", "
                 "\"model\", …")
      ->type_name("NAME")
      ->group("Create");
  app.add_option("--engines", flags.engines,
                 "Launch files, comma separated: " + CLI::detail::join(deploy::known_engines(), ",") + "; default: all")
      ->type_name(CLI::detail::join(deploy::known_engines(), "|"))
      ->delimiter(',')
      ->group("Create");
  app.add_flag("--allow-failed", flags.allow_failed, "Package even if the verdict is not pass; the manifest records it")
      ->group("Create");
  app.add_flag("--reference-target", flags.reference_target,
               "Refer to the target at its present place instead of copying it")
      ->group("Create");
  app.add_option("--visibility", flags.visibility,
                 "public: anyone may read the package, and the manifest says so; a private one is not pushed to a "
                 "public hub repository")
      ->check(CLI::IsMember({"private", "public"}))
      ->capture_default_str()
      ->group("Create");
  app.add_option("--channel", flags.channel, "Promote to this channel afterwards")->type_name("NAME")->group("Create");
  add_key_flags(app, flags, "Sign it, and the channel, with this secret key of minisign before that");
  for (const char* name : {"--key", "--passphrase-file"}) app.get_option(name)->group("Create");
}

}  // namespace

void add_package(Cli& cli) {
  auto flags = std::make_shared<PackageFlags>();
  CLI::App* app = cli.app.add_subcommand(
      "package", "Publishes a validated pair as one immutable directory; keeps the channels of a store");
  app->require_subcommand(0, 1);
  add_create_flags(*app, *flags);
  app->footer(
      "Examples:\n"
      "  specdec package --target T --draft run/draft --report gate/report.json --store store --channel production\n"
      "  specdec package quantise --draft run/draft --format fp8 --out run/draft-fp8     # then validate it; --report "
      "takes several\n"
      "  specdec package verify store:production\n"
      "  specdec package lint --target T --draft run/draft\n"
      "  specdec package promote sha256-1a2b3c4d --store store --channel production --why 'canary was fine'\n"
      "  specdec package rollback --store store --channel production\n"
      "Exit codes: 3, 4, 6 the report's verdict; 5 the report or draft belongs to another target; 7 damaged or bad "
      "input.");

  CLI::App* verify = app->add_subcommand(
      "verify", "Checks fingerprints, sizes and digests, and that there are no extra files and no links");
  verify->add_option("package", flags->package, "PACKAGE directory, STORE:CHANNEL or STORE:sha256-…")
      ->type_name("PACKAGE|STORE:CHANNEL")
      ->required();
  verify
      ->add_option("--public-key,--trusted", flags->public_key,
                   "File of minisign public keys: one of them must have signed it")
      ->type_name("FILE");
  CLI::App* sign = app->add_subcommand("sign", "Signs the manifest with a secret key of minisign");
  sign->add_option("package", flags->package, "PACKAGE directory, STORE:CHANNEL or STORE:sha256-…")
      ->type_name("PACKAGE|STORE:CHANNEL")
      ->required();
  add_key_flags(*sign, *flags, "Secret key file (minisign -G)");
  sign->get_option("--key")->required();
  CLI::App* quantise = app->add_subcommand(
      "quantise", "Converts a draft to 8 bits, in the form that vLLM, SGLang and transformers load");
  quantise->alias("quantize");
  quantise->add_option("--draft", flags->draft, "MODEL; for a package its draft")->type_name("MODEL")->required();
  quantise->add_option("--format", flags->format, "fp8 (compressed-tensors) or int8 (gptq)")
      ->required()
      ->check(CLI::IsMember(deploy::known_quantisations()));
  quantise->add_option("--out", flags->out, "Directory to create")->type_name("DIR")->required();
  CLI::App* lint = app->add_subcommand("lint", "Finds what engines refuse or serve badly, in drafts made by any tool");
  lint->add_option("package", flags->package, "PACKAGE; or --target and --draft")->type_name("PACKAGE|STORE:CHANNEL");
  lint->add_option("--target", flags->target, "MODEL")->type_name("MODEL");
  lint->add_option("--draft", flags->draft, "MODEL or the directory of an EAGLE-3 head")->type_name("MODEL");
  lint->add_option("--report", flags->report,
                   "report.json of validate, to check that the draft was measured as it is now")
      ->type_name("FILE");
  lint->add_option("--format", flags->format, "text, json or sarif (code scanning)")
      ->check(CLI::IsMember({"text", "json", "sarif"}))
      ->capture_default_str();
  const auto select = [&cli, flags](PackageCommand run) {
    cli.selected = [&cli, flags, run] { return run(cli.global, *flags); };
  };
  quantise->callback([select] { select(run_quantise); });
  verify->callback([select] { select(run_verify); });
  sign->callback([select] { select(run_sign); });
  lint->callback([select] { select(run_lint); });
  add_store_commands(*app, *flags, select);
  add_transfer_commands(*app, *flags, select);
  app->callback([&cli, app, flags, select] {
    if (!app->get_subcommands().empty()) return;
    cli.check = [flags] { check_create(*flags); };
    select(run_create);
  });
}

}  // namespace specdec::cli
