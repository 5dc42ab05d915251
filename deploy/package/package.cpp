#include "deploy/package/package.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <set>

#include "base/clock.h"
#include "base/file.h"
#include "base/file_lock.h"
#include "base/hub_cache.h"
#include "base/minisign.h"
#include "base/model_directory.h"
#include "base/schema/binding.h"
#include "base/schema/draft_kind.h"
#include "base/schema/gate_summary.h"
#include "base/sha256.h"
#include "base/shell.h"
#include "base/version.h"
#include "deploy/package/card.h"
#include "deploy/package/checks.h"
#include "deploy/package/export_gguf.h"
#include "deploy/package/launch.h"
#include "deploy/package/quantise.h"
#include "deploy/package/store.h"

namespace specdec::deploy {

namespace {

// Writes the package's files below `root` and collects their entries for the manifest.
class Builder {
 public:
  Builder(fs::path root, const ProgressFn& progress, double total_bytes)
      : root_(std::move(root)), progress_(progress), total_(total_bytes) {}

  void copy(const fs::path& from, const std::string& to) {
    const InputFile in(from, ErrorKind::kModel);
    make_directories((root_ / to).parent_path());
    OutputFile out(root_ / to);
    Sha256 hash;
    std::vector<std::byte> block(std::min<uint64_t>(in.size(), 4u << 20));
    for (uint64_t at = 0; at < in.size();) {
      if (stop_requested()) throw Error(ErrorKind::kNetwork, "stopped by a signal: nothing was published");
      const auto part = std::span(block).first(std::min<uint64_t>(block.size(), in.size() - at));
      in.read(at, part);
      hash.update(part);
      out.write(std::string_view(reinterpret_cast<const char*>(part.data()), part.size()));
      at += part.size();
      done_ += static_cast<double>(part.size());
      if (progress_) progress_({"package", done_ / 1e6, total_ / 1e6, "MB", to});
    }
    out.finish();
    files_.push_back({to, in.size(), hash.hex()});
  }

  void write(const std::string& to, const std::string& bytes) {
    make_directories((root_ / to).parent_path());
    OutputFile out(root_ / to);
    out.write(bytes);
    out.finish();
    files_.push_back({to, bytes.size(), sha256_hex(bytes)});
    if (to.ends_with(".sh") && ::chmod((root_ / to).c_str(), 0755) != 0)
      throw Error(ErrorKind::kIo, (root_ / to).string() + ": cannot make it executable");
  }

  // Adds manifest entries for the files of a directory below the root that another function has already written and
  // fsynced.
  void include(const std::string& directory) {
    for (const auto& entry : fs::recursive_directory_iterator(root_ / directory))
      if (entry.is_regular_file())
        files_.push_back(
            {entry.path().lexically_relative(root_).generic_string(), entry.file_size(), sha256_file(entry.path())});
  }

  std::vector<PackagedFile> files() const {
    std::vector<PackagedFile> sorted = files_;
    std::sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) { return a.path < b.path; });
    return sorted;
  }

 private:
  fs::path root_;
  const ProgressFn& progress_;
  double total_ = 0, done_ = 0;
  std::vector<PackagedFile> files_;
};

struct VariantReport {
  fs::path file;
  Json json;
  ValidationReport report;
};

struct Inputs {
  Json report_json;
  ValidationReport report;
  std::vector<VariantReport> variant_reports;
  Fingerprint target, draft;
  DraftBinding binding;  // from the draft's specdec.json; without one, made from the report
};

// Returns whether the report was made for this pair with target and draft exchanged. A pair of two equal models cannot
// be swapped.
bool are_swapped(const Inputs& in) {
  return in.report.target == in.draft && in.report.draft == in.target && in.target != in.draft;
}

std::string exchanged_command(const PackageOptions& options) {
  std::vector<std::string> words = {"specdec",  "package",
                                    "--target", options.draft.string(),
                                    "--draft",  options.target.string(),
                                    "--report", options.report.string(),
                                    "--store",  options.store.string()};
  if (!options.parent_channel.empty()) words.insert(words.end(), {"--channel", options.parent_channel});
  return shell_words(words);
}

// Returns why the report, the directories and the draft do not belong together; "" if they do.
std::string mismatch(const PackageOptions& options, const Inputs& in, const std::optional<DraftBinding>& own) {
  const std::string report = options.report.string();
  if (in.report.target != in.target || in.report.draft != in.draft) {
    if (are_swapped(in)) return report + ": was made with the roles swapped: exchange --target and --draft";
    std::string differing;
    if (in.report.target != in.target) differing += "target (" + differing_tiers(in.report.target, in.target) + ")";
    if (in.report.draft != in.draft)
      differing += (differing.empty() ? "" : " and ") + ("draft (" + differing_tiers(in.report.draft, in.draft) + ")");
    return report + ": was made for another pair: " + differing + " differ: run specdec validate on this pair";
  }
  if (own && own->target != in.target)
    return options.draft.string() + ": was made for target " + own->target.id.substr(0, 12) + ", this is " +
           in.target.id.substr(0, 12) + " (" + differing_tiers(own->target, in.target) + " differ): distil again";
  return "";
}

// Maps the packaged draft's files to their sources. The tokenizer files are always the target's.
std::map<std::string, fs::path> draft_sources(const PackageOptions& options) {
  std::map<std::string, fs::path> sources;
  for (const std::string& name : model_files(options.draft))
    if (!is_tokenizer_file(name) && name != "specdec.json" && name != "README.md")
      sources["draft/" + name] = options.draft / name;
  for (const std::string& name : model_files(options.target))
    if (is_tokenizer_file(name)) sources["draft/" + name] = options.target / name;
  return sources;
}

std::map<std::string, fs::path> all_sources(const PackageOptions& options) {
  std::map<std::string, fs::path> sources = draft_sources(options);
  if (options.reference.empty())
    for (const std::string& name : model_files(options.target))
      if (name != "specdec.json") sources["target/" + name] = options.target / name;
  return sources;
}

double require_space(const PackageOptions& options, const std::map<std::string, fs::path>& sources) {
  uint64_t bytes = 1 << 20;
  for (const auto& [to, from] : sources) bytes += InputFile(from, ErrorKind::kModel).size();
  for (const auto& [to, from] : sources)  // adds the size of quantised variants, each at most that of its source
    if (to.rfind("draft/", 0) == 0) bytes += options.quantise.size() * InputFile(from, ErrorKind::kModel).size();
  if (!options.gguf.empty())  // at most F32 of 16-bit weights
    for (const auto& [to, from] : sources)
      bytes += (options.gguf == "f32" ? 2 : 1) * InputFile(from, ErrorKind::kModel).size();
  if (const uint64_t free = free_disk_bytes(options.store); free < bytes)
    throw Error(ErrorKind::kIo, options.store.string() + ": the package needs " + std::to_string(bytes >> 20) +
                                    " MiB, " + std::to_string(free >> 20) + " MiB are free");
  return static_cast<double>(bytes);
}

std::string served_name(const PackageOptions& options) {
  const char* kAllowed = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-/";
  std::string name = options.name;
  if (name.empty()) {
    name = model_name(options.target);
    for (char& c : name)
      if (std::string_view(kAllowed).find(c) == std::string_view::npos) c = '-';
  }
  if (name.empty() || name.size() > 128 || name.find_first_not_of(kAllowed) != std::string::npos)
    throw Error(ErrorKind::kUsage, "--name '" + name.substr(0, 140) + "': expected at most 128 of [A-Za-z0-9._/-]");
  return name;
}

// Returns the manifest without `created` and `parent`, as text. Two packages with the same content differ only in these
// two fields.
std::string content_of(PackageManifest manifest) {
  manifest.created = manifest.parent = "";
  return canonical_json(to_json(manifest));
}

// Returns the store's package with the same content, or nothing. Skips packages that are unreadable or damaged.
std::optional<ResolvedPackage> find_same(const fs::path& store, const PackageManifest& manifest) {
  const std::string content = content_of(manifest);
  std::error_code ec;
  for (const auto& entry : fs::directory_iterator(store / "packages", ec)) {
    try {
      auto other = locate_package(entry.path().string());
      if (!other || content_of(other->manifest) != content) continue;
      verify_files(other->root, other->manifest, true);
      return other;
    } catch (const Error&) {
      continue;  // the damaged package stays, and the new package is published beside it
    }
  }
  return std::nullopt;
}

Inputs read_inputs(const PackageOptions& options) {
  Inputs in;
  in.report_json = read_json(options.report, ErrorKind::kData);
  in.report = validation_report_from_json(in.report_json, options.report.string());
  for (const fs::path& file : options.variant_reports) {
    const Json json = read_json(file, ErrorKind::kData);
    in.variant_reports.push_back({file, json, validation_report_from_json(json, file.string())});
  }
  in.target = fingerprint_model(options.target);
  in.draft = fingerprint_model(options.draft);
  return in;
}

// Decides whether the pair may be packaged. If not, sets outcome.exit_code to a value other than 0. Always fills in the
// gate's result and the next command.
void object(const PackageOptions& options, const Inputs& in, const std::optional<DraftBinding>& own,
            PackageOutcome& outcome) {
  outcome.reason = mismatch(options, in, own);
  for (const VariantReport& v : in.variant_reports)
    if (outcome.reason.empty() && v.report.target != in.target)
      outcome.reason = v.file.string() + ": was made for another target (" +
                       differing_tiers(v.report.target, in.target) + " differ)";
  const bool is_stale = !outcome.reason.empty();
  outcome.exit_code = is_stale ? exit_code(Verdict::kStale) : 0;
  const auto summarise = [&](const fs::path& file, const ValidationReport& report) {
    outcome.gate = json_of(gate_summary(report));
    outcome.gate_line = gate_line(report);
    ValidationReport judged = report;
    if (is_stale && own && own->target != in.target) judged.verdict = Verdict::kStale;
    GateCommand command = command_again(report, options.target.string(), options.draft.string(), file);
    // The report belongs to another pair, so the next command is to validate this pair.
    if (is_stale && judged.verdict != Verdict::kStale)
      judged = {}, judged.verdict = Verdict::kInconclusive, command.out += "-again";
    outcome.next = are_swapped(in) ? exchanged_command(options) : next_command(judged, command);
  };
  summarise(options.report, in.report);
  if (outcome.exit_code != 0 || options.allow_failed) return;
  const auto judge = [&](const fs::path& file, const ValidationReport& report) {
    outcome.exit_code = exit_code(report.verdict);
    if (outcome.exit_code == 0) return true;
    outcome.verdict = report.verdict;
    summarise(file, report);
    outcome.reason = file.string() + ": verdict " + to_string(report.verdict) +
                     (report.reason.empty() ? "" : ": " + one_line(report.reason)) +
                     " (--allow-failed packages it nevertheless)";
    return false;
  };
  bool good = judge(options.report, in.report);
  for (const VariantReport& v : in.variant_reports) good = good && judge(v.file, v.report);
}

// Quantises the packaged draft to each requested format, and assigns the given validation reports to these variants.
std::vector<DraftVariant> make_variants(const PackageOptions& options, const Inputs& in, const fs::path& package,
                                        const ProgressFn& progress) {
  std::vector<DraftVariant> variants;
  for (const std::string& format : std::set<std::string>(options.quantise.begin(), options.quantise.end())) {
    DraftVariant variant{format, {}, 0, nullptr};
    variant.relative_error =
        quantise_draft(package / "draft", format, package / variant.directory(), progress).relative_error;
    variant.fingerprint = fingerprint_model(package / variant.directory());
    variants.push_back(std::move(variant));
  }
  for (const VariantReport& v : in.variant_reports) {
    const auto found = std::find_if(variants.begin(), variants.end(),
                                    [&](const DraftVariant& variant) { return variant.fingerprint == v.report.draft; });
    if (found == variants.end())
      throw Error(
          ErrorKind::kData,
          v.file.string() + ": measured draft " + v.report.draft.id.substr(0, 12) +
              ", which is no variant of --quantise here: run specdec package quantise on this draft, then validate");
    found->report = v.json;
  }
  return variants;
}

// Writes a model of the package as gguf/<role>.gguf, and adds its warnings to the outcome's.
void write_gguf(const PackageOptions& options, const fs::path& model, const std::string& role, const std::string& name,
                const fs::path& package, PackageOutcome& outcome, const ProgressFn& progress) {
  make_directories(package / "gguf");
  const GgufResult done = export_gguf(
      {.model = model, .out = package / "gguf" / (role + ".gguf"), .type = options.gguf, .name = name}, progress);
  for (const std::string& warning : done.warnings) outcome.warnings.push_back("gguf/" + role + ".gguf: " + warning);
}

// Returns the manifest without the lists of files and variants, which are added later.
PackageManifest manifest_of(const PackageOptions& options, const Inputs& in, int64_t now) {
  PackageManifest manifest;
  manifest.target = in.target;
  manifest.draft = in.draft;
  manifest.draft_kind = in.binding.kind;
  manifest.tokenizer_digest = in.target.tokenizer;
  manifest.target_reference = options.reference;
  manifest.report = in.report_json;
  manifest.allowed_failed = in.report.verdict != Verdict::kPass ||
                            std::any_of(in.variant_reports.begin(), in.variant_reports.end(),
                                        [](const auto& v) { return v.report.verdict != Verdict::kPass; });
  manifest.is_public = options.is_public;
  manifest.provenance = to_json(in.binding);
  manifest.parent = options.parent_channel.empty() ? "" : read_channel(options.store, options.parent_channel);
  manifest.created = format_utc(now);
  manifest.tool_version = kToolVersion;
  return manifest;
}

LaunchPlan plan_of(const PackageOptions& options, const Inputs& in, const std::string& name) {
  LaunchPlan plan = launch_plan(in.report, name, options.reference);
  plan.variants = options.quantise;
  plan.has_gguf = !options.gguf.empty();
  const auto own_gguf = [](const fs::path& model) {
    for (const std::string& name : model_files(model))
      if (name.ends_with(".gguf")) return name;
    return std::string();
  };
  plan.target_gguf = own_gguf(options.target);
  plan.draft_gguf = own_gguf(options.draft);
  plan.checkpoint_dtype = checkpoint_dtype(read_json(options.target / "config.json", ErrorKind::kModel));
  plan.kind = kind_of_draft(options.draft);
  if (plan.kind != DraftKind::kModel)
    plan.head = head_facts(read_json(options.target / "config.json", ErrorKind::kModel),
                           read_json(options.draft / "config.json", ErrorKind::kModel));
  return plan;
}

}  // namespace

PackageOutcome create_package(const PackageOptions& options, int64_t now, const ProgressFn& progress) {
  const std::string name = served_name(options);
  PackageOutcome outcome;
  outcome.name = name;
  Inputs in = read_inputs(options);
  const auto own = read_binding(options.draft);
  object(options, in, own, outcome);
  if (outcome.exit_code != 0) return outcome;
  in.binding =
      own ? *own : DraftBinding{in.target, "model", "", {{"bound_by", "validate"}, {"report", in.report.started}}};
  if (in.report.verdict != Verdict::kPass)
    outcome.warnings.push_back("the gate did not pass: " + gate_brief(in.report, options.report.string()) +
                               "; the launch files start without the draft; next: " + outcome.next);
  const bool head = kind_of_draft(options.draft) != DraftKind::kModel;
  for (const Finding& finding : check_pair(options.target, options.draft, head)) {
    if (finding.fatal) throw Error(ErrorKind::kModel, finding.file + ": " + finding.text);
    outcome.warnings.push_back(finding.file + ": " + finding.text);
  }
  const std::vector<std::string>& engines = options.engines.empty() ? known_engines() : options.engines;
  if (!options.gguf.empty()) require_known_gguf_type(options.gguf);
  if (head && !options.gguf.empty())
    outcome.warnings.push_back("an EAGLE-3 head is not written as GGUF: llama.cpp.sh converts it with its target");
  const LaunchPlan plan = plan_of(options, in, name);
  const auto launch = launch_files(plan, engines);
  if (!plan.target_gguf.empty() || !plan.draft_gguf.empty())
    for (const std::string& engine : engines)
      if (engine != "llama.cpp")
        outcome.warnings.push_back("a model of this package is a GGUF file, which its launch file for " + engine +
                                   " cannot start: use llama.cpp or specdec serve");
  if (plan.kind != DraftKind::kModel)
    for (const std::string& engine : engines)
      if (const std::string why = head_obstacle(engine, plan.head); !why.empty())
        outcome.warnings.push_back(why + ": its launch file for " + engine + " starts without the draft");

  PackageManifest manifest = manifest_of(options, in, now);
  const PublicFiles in_a_store;
  const fs::path workshop = options.store / "tmp", packages = options.store / "packages";
  const auto sources = all_sources(options);
  const double bytes = require_space(options, sources);
  NewStore directories(options.store);
  for (const fs::path& written : {workshop, options.store / "refs"}) remove_partials(written, 24 * 3600);
  const Published published = publish_from(workshop, [&](const fs::path& tmp) {
    outcome.hold = std::make_shared<const DirectoryLock>(tmp, DirectoryLock::Kind::kShared);
    Builder builder(tmp, progress, bytes);
    // The target's is the first file, because llama.cpp does not have every model.
    if (plan.has_gguf && options.reference.empty() && plan.target_gguf.empty())
      write_gguf(options, options.target, "target", name, tmp, outcome, progress);
    for (const auto& [to, from] : sources) builder.copy(from, to);
    if (plan.has_gguf && !head && plan.draft_gguf.empty())
      write_gguf(options, tmp / "draft", "draft", name + "-draft", tmp, outcome, progress);
    if (fs::exists(tmp / "gguf")) builder.include("gguf");
    builder.write("draft/specdec.json", to_json(in.binding).dump(2) + "\n");
    manifest.variants = make_variants(options, in, tmp, progress);
    for (const DraftVariant& variant : manifest.variants) builder.include(variant.directory());
    builder.write("draft/README.md", model_card(plan, in.report, in.binding, options.target, manifest.variants));
    for (const auto& [file, text] : launch) builder.write("engines/" + file, text);
    manifest.files = builder.files();
    manifest.validate(options.report.string());
    if (const auto same = find_same(options.store, manifest)) {
      outcome.hold = same->hold;
      return same->root;
    }
    const std::string text = canonical_json(to_json(manifest)) + "\n";
    write_file_atomic(tmp / "manifest.json", text);
    return packages / ("sha256-" + sha256_hex(text));
  });
  directories.keep();
  outcome.path = published.path;
  outcome.is_new = published.is_new;
  outcome.digest = package_digest(published.path);
  outcome.next = shell_words({"specdec", "serve", published.path.string()});
  return outcome;
}

PackageOutcome sign_package(const std::string& argument, const fs::path& secret_key, const std::string& passphrase,
                            int64_t now) {
  const ResolvedPackage package = require_package(argument);
  verify_files(package.root, package.manifest, false);
  const std::string text = sign_minisign(
      read_file(package.root / "manifest.json"), secret_key, passphrase,
      "timestamp:" + std::to_string(now) + "\tfile:manifest.json\thashed\tpackage:sha256-" + package.digest);
  // The new signature is first written outside the package. If it were written inside and this process died, the
  // package would contain a file that its manifest does not list.
  const fs::path store = package.root.parent_path().parent_path(),
                 workshop = fs::is_directory(store / "tmp") ? store / "tmp" : package.root.parent_path();
  const fs::path fresh =
      workshop / ("sha256-" + package.digest + "." + std::to_string(::getpid()) + ".minisig.partial");
  const PublicFiles in_a_store;
  OutputFile out(fresh);
  out.write(text);
  out.finish();
  rename_file(fresh, package.root / kSignatureFile);
  PackageOutcome outcome;
  outcome.path = package.root;
  outcome.digest = package.digest;
  return outcome;
}

PackageOutcome verify_package(const std::string& argument, const fs::path& keys) {
  PackageOutcome outcome;
  const ResolvedPackage package = require_package(argument);
  outcome.path = package.root;
  outcome.digest = package.digest;
  if (const fs::path signature = package.root / kSignatureFile; !keys.empty()) {
    if (!fs::exists(signature))
      throw Error(ErrorKind::kData, package.root.string() + ": not signed (no " + kSignatureFile + ")");
    outcome.signer = verify_minisign(read_file(package.root / "manifest.json"), read_file(signature, 1u << 16),
                                     read_minisign_keys(keys), signature.string())
                         .signer;
  }
  outcome.reason = resolve_model(package.root.string()).stale_reason;
  if (!outcome.reason.empty()) outcome.exit_code = exit_code(Verdict::kStale);
  return outcome;
}

}  // namespace specdec::deploy
