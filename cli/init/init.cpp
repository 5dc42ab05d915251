#include "cli/init/init.h"

#include <glob.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>

#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "base/output_directory.h"
#include "base/schema/package_manifest.h"
#include "base/schema/result_head.h"
#include "base/shell.h"
#include "base/version.h"
#include "cli/command.h"
#include "cli/exec_engine.h"
#include "cli/init/assets.h"
#include "cli/results.h"

namespace specdec::cli {

namespace {

struct Template {
  const char *part, *path, *text;
};
const Template kTemplates[] = {{"loop", "LOOP.toml", kLoopToml},
                               {"loop", "specdec.toml", kSpecdecToml},
                               {"github", ".github/workflows/specdec.yml", kGithubYaml},
                               {"gitlab", ".gitlab/specdec.yml", kGitlabYaml},
                               {"systemd", "systemd/specdec.service", kServiceUnit},
                               {"systemd", "systemd/specdec.timer", kTimerUnit},
                               {"systemd", "systemd/specdec-serve.service", kServeUnit},
                               {"kubernetes", "kubernetes/specdec-storage.yaml", kStorageYaml},
                               {"kubernetes", "kubernetes/specdec-secret.yaml", kSecretYaml},
                               {"kubernetes", "kubernetes/specdec-serve.yaml", kServeYaml},
                               {"kubernetes", "kubernetes/specdec-cronjob.yaml", kCronJobYaml},
                               {"slurm", "slurm/specdec.sbatch", kSlurmScript},
                               {"slurm", "slurm/submit.sh", kSlurmSubmit},
                               {"slurm", "slurm/distill.sbatch", kSlurmJob},
                               {"job", "kubernetes/submit.sh", kKubernetesSubmit},
                               {"job", "kubernetes/distill-job.yaml", kJobYaml},
                               {"jobset", "kubernetes/specdec-jobset.yaml", kJobSetYaml},
                               {"pytorchjob", "kubernetes/specdec-pytorchjob.yaml", kPyTorchJobYaml},
                               {"monitoring", "monitoring/specdec-rules.yml", kRulesYaml},
                               {"monitoring", "monitoring/specdec-dashboard.json", kDashboardJson}};

const std::map<std::string, std::string> kNext = {
    {"loop",
     "@RECORDING@specdec loop run LOOP.toml --plan, then without --plan: the first draft; specdec serve @PACKAGE@ "
     "--record @RECORDED@ writes what it reads next"},
    {"github", "commit .github/workflows/specdec.yml; give a self-hosted runner the label specdec"},
    {"gitlab", "include .gitlab/specdec.yml in .gitlab-ci.yml; give a runner the tag specdec; add a pipeline schedule"},
    {"systemd",
     "cp systemd/* /etc/systemd/system/ && systemctl daemon-reload && systemctl enable --now specdec.timer; once "
     "@PACKAGE@ is there, systemctl enable --now specdec-serve"},
    {"kubernetes",
     "@IMAGES@kubectl apply -f kubernetes/specdec-storage.yaml and kubectl cp . specdec-files:/specdec@OUTSIDE@; fill "
     "in "
     "and apply kubernetes/specdec-secret.yaml; apply kubernetes/specdec-cronjob.yaml and, once @PACKAGE@ is there, "
     "kubernetes/specdec-serve.yaml"},
    {"slurm",
     "fit the #SBATCH lines to the cluster; to run the whole loop as a job, write launcher = [\"srun\"] into LOOP.toml "
     "and sbatch slurm/specdec.sbatch; to run distill alone as a job, write launcher = [\"bash\", \"slurm/submit.sh\"] "
     "and run the loop where sbatch is"},
    {"job",
     "@IMAGES@put this directory into the volume claim specdec (kubernetes/specdec-storage.yaml)@OUTSIDE@, write "
     "launcher "
     "= [\"bash\", \"kubernetes/submit.sh\"] into LOOP.toml, and run the loop where kubectl and this directory are"},
    {"jobset",
     "@IMAGES@put the target and the data of specdec data ingest into the volume claim specdec "
     "(kubernetes/specdec-storage.yaml)@OUTSIDE@, then kubectl apply -f kubernetes/specdec-jobset.yaml"},
    {"pytorchjob",
     "@IMAGES@put the target and the data of specdec data ingest into the volume claim specdec "
     "(kubernetes/specdec-storage.yaml)@OUTSIDE@, then kubectl apply -f kubernetes/specdec-pytorchjob.yaml"},
    {"monitoring",
     "name monitoring/specdec-rules.yml in Prometheus' rule_files; import monitoring/specdec-dashboard.json into "
     "Grafana"}};

// Quotes `value` as a JSON string, which TOML (basic string) and YAML (double-quoted scalar) read in the same way.
// Throws Error(kUsage) for control characters and invalid UTF-8.
std::string quoted(const std::string& flag, const std::string& value) {
  if (std::any_of(value.begin(), value.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; }))
    throw Error(ErrorKind::kUsage, flag + ": a control character cannot be written into the files, found " +
                                       Json(value).dump(-1, ' ', true, Json::error_handler_t::replace));
  try {
    return Json(value).dump();
  } catch (const Json::exception&) {
    throw Error(ErrorKind::kUsage, flag + ": expected UTF-8");
  }
}

std::string quoted_list(const std::string& flag, const std::vector<std::string>& values) {
  std::string text;
  for (const std::string& value : values) text += (text.empty() ? "" : ", ") + quoted(flag, value);
  return "[" + text + "]";
}

// Both functions escape a path for systemd.syntax(7). unit_path() escapes %, which begins a specifier; unit_word() also
// applies C escapes for a quoted word. WorkingDirectory= takes the rest of the line literally, so it needs only
// unit_path().
std::string unit_path(const std::string& path) {
  std::string text;
  for (const char c : path) text += c == '%' ? "%%" : std::string(1, c);
  return text;
}
std::string unit_word(const std::string& path) {
  if (path.find_first_of(" '\"\\$;") == std::string::npos) return unit_path(path);
  std::string text;
  for (const char c : unit_path(path))
    text += c == '"' || c == '\\' ? std::string("\\") + c : c == '$' ? "$$" : std::string(1, c);
  return '"' + text + '"';
}

// Returns a line Environment="NAME=value" of a systemd unit, in which $ is an ordinary character.
std::string unit_environment(const std::string& assignment) {
  std::string text;
  for (const char c : unit_path(assignment)) text += c == '"' || c == '\\' ? std::string("\\") + c : std::string(1, c);
  return "Environment=\"" + text + "\"\n";
}

// Returns the lines of a systemd unit that set PATH and SPECDEC_TORCH_LIB. PATH has the directory of specdec, because
// specdec.toml runs `specdec` without its directory (on-drift), and the directory of torchrun, because LOOP.toml may
// name it as the launcher.
std::string unit_environment(const InitProgram& program) {
  std::string path = fs::path(program.path).parent_path().string();
  // `torch` is PREFIX/lib/python3.N/site-packages/torch/lib, so PREFIX is five levels up.
  fs::path prefix = program.torch;
  for (int up = 0; up < 5 && !prefix.empty(); ++up) prefix = prefix.parent_path();
  if (std::error_code none; !prefix.empty() && fs::exists(prefix / "bin/torchrun", none))
    path += ":" + (prefix / "bin").string();
  std::string lines =
      unit_environment("PATH=" + path + ":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
  if (!program.torch.empty()) lines += unit_environment("SPECDEC_TORCH_LIB=" + program.torch);
  return lines.substr(0, lines.size() - 1);
}

// Replaces every @NAME@ of the template in one pass, so a @NAME@ inside a value is not replaced.
std::string fill(const std::string& text, const std::map<std::string, std::string>& values) {
  std::string filled;
  for (size_t at = 0; at < text.size();) {
    const size_t begin = text.find('@', at), end = begin == std::string::npos ? begin : text.find('@', begin + 1);
    const auto value = end == std::string::npos ? values.end() : values.find(text.substr(begin + 1, end - begin - 1));
    if (value == values.end()) {
      const size_t next = std::min(begin, text.size() - 1) + 1;
      filled += text.substr(at, next - at);
      at = next;
    } else {
      filled += text.substr(at, begin - at) + value->second;
      at = end + 1;
    }
  }
  return filled;
}

// Returns the package that is served and monitored: STORE:CHANNEL with the channel o.channel. For the channel
// "candidate" it is STORE:production, because a candidate is only tried beside the production package.
std::string watched(const InitOptions& o) {
  return o.store + ":" + (o.channel == "candidate" ? "production" : o.channel);
}

// Returns the directory to which `serve --record` must write, so that the loop finds the recorded logs: the directory
// of the first log pattern.
std::string recorded(const InitOptions& o) {
  const fs::path pattern = o.logs.front(), parent = pattern.parent_path();
  const bool is_plain = !parent.empty() && parent.string().find_first_of("*?[") == std::string::npos;
  return is_plain ? parent.string() : "recorded";
}

bool matches(const fs::path& pattern) {
  glob_t found{};
  const bool any = ::glob(pattern.c_str(), 0, nullptr, &found) == 0 && found.gl_pathc > 0;
  ::globfree(&found);
  return any;
}

// Returns whether any of the log patterns matches a file. Patterns are relative to the directory of LOOP.toml.
bool has_logs(const InitOptions& o) {
  return std::any_of(o.logs.begin(), o.logs.end(),
                     [&](const std::string& pattern) { return matches(o.directory / pattern); });
}

// Rewrites `path`, which is relative to the current directory, to be relative to `directory`, where `init` writes.
// Returns `path` unchanged if it exists in `directory`, and also if it exists in neither place: then it may be a hub
// name, or a file that is created later.
std::string seen_from(const fs::path& directory, const std::string& path) {
  if (path.empty() || fs::path(path).is_absolute() || matches(directory / path) || !matches(path)) return path;
  const fs::path here = fs::absolute(path).lexically_normal(), there = fs::absolute(directory).lexically_normal();
  return here.lexically_relative(there.has_filename() ? there : there.parent_path()).string();
}

// Returns the options with every path relative to the directory that is written, and with the acceptance records beside
// the logs as the source if no source is given.
InitOptions settled(InitOptions o) {
  o.target = seen_from(o.directory, o.target);
  for (std::string& log : o.logs) log = seen_from(o.directory, log);
  for (std::string& source : o.sources)
    if (source.find("://") == std::string::npos) source = seen_from(o.directory, source);
  if (const size_t colon = o.draft.find(':'); o.draft.starts_with("model:") || o.draft.starts_with("config:"))
    o.draft = o.draft.substr(0, colon + 1) + seen_from(o.directory, o.draft.substr(colon + 1));
  if (o.sources.empty() && !o.logs.empty()) o.sources = {recorded(o) + "/acceptance"};
  return o;
}

// Returns the image for machines with a GPU: the name of the CPU image with "-cuda" appended to its tag, as the
// Dockerfile names it.
std::string cuda_image(const InitOptions& o) {
  if (!o.cuda_image.empty()) return o.cuda_image;
  return o.image.find('@') == std::string::npos ? o.image + "-cuda" : o.image;
}

// Returns the first step for Kubernetes, which is to push the image and name its registry. Returns "" if the image's
// name already has a registry.
std::string image_step(const InitOptions& o) {
  if (o.image.find('/') != std::string::npos) return "";
  return "build and push the image (docs/install.md), and give its name: specdec init --image REGISTRY/" + o.image +
         " --force; then ";
}

// Returns a warning about paths outside of this directory, because a copy of the directory would not contain them.
std::string outside_step(const InitOptions& o) {
  std::vector<std::string> outside;
  const auto add = [&](const std::string& path) {
    const fs::path p = path;
    if (path.find("://") == std::string::npos && (p.is_absolute() || (!path.empty() && *p.begin() == "..")))
      outside.push_back(path);
  };
  add(o.target), add(o.store), add(o.work), add(o.state);
  for (const std::string& log : o.logs) add(log);
  if (outside.empty()) return "";
  return " (" + shell_words(outside) + (outside.size() == 1 ? " is" : " are") +
         " not in this directory: copy what is there into it, and run init again with paths in this directory)";
}

// Returns what the user does next with the files of a part. Without logs the loop cannot run, so recording comes first.
std::string next_step(const InitOptions& o, const std::string& part) {
  const std::string recording = has_logs(o)
                                    ? ""
                                    : shell_words({"specdec", "serve", "--target", o.target}) + " --record " +
                                          shell_words({recorded(o)}) +
                                          " answers your users and writes the logs, of which there are none yet; then ";
  return fill(kNext.at(part), {{"RECORDING", recording},
                               {"RECORDED", shell_words({recorded(o)})},
                               {"IMAGES", image_step(o)},
                               {"OUTSIDE", outside_step(o)},
                               {"PACKAGE", shell_words({watched(o)})}});
}

struct WrittenFile {
  std::string path, part, action;
};
void visit_fields(Fields& f, WrittenFile& file) {
  f.type("InitFile", "A file and what was done with it.");
  f("path", file.path);
  f("part", file.part);
  f.one_of("action", file.action, {"written", "unchanged", "kept", "replaced"});
}

struct NextStep {
  std::string part, text;
};
void visit_fields(Fields& f, NextStep& step) {
  f.type("NextStep", "What to do with the files of one part.");
  f("part", step.part);
  f("text", step.text);
}

struct InitResult {
  ResultHead head;
  Json inputs;
  std::vector<WrittenFile> files;
  std::vector<NextStep> next;
};
void visit_fields(Fields& f, InitResult& r) {
  f.type("InitResult", "The files of a loop that runs unattended.");
  visit_head(f, r.head, "init", {"done"});
  f.json("inputs", r.inputs);
  f("files", r.files);
  f("next", r.next);
}

int run_init(const Global& global, const InitOptions& given) {
  const InitOptions options = settled(given);
  const PublicFiles for_a_repository;
  const SystemClock clock;
  const double start = clock.seconds();
  InitResult result;
  result.head.started = format_utc(clock.unix_seconds());
  check_shared_directory(options.directory, "DIR");
  const std::vector<InitFile> files = init_files(options, {global.program, torch_of_environment(global).string()});
  make_directories(options.directory);
  std::vector<std::string> parts;
  int kept = 0;
  for (const InitFile& file : files) {
    const std::string action = write_init_file(options, file);
    kept += action == "kept";
    result.files.push_back({(options.directory / file.path).string(), file.part, action});
    if (parts.empty() || parts.back() != file.part) parts.push_back(file.part);
    if (!global.json) std::printf("%-9s %s\n", action.c_str(), (options.directory / file.path).c_str());
  }
  result.inputs = {{"directory", fs::absolute(options.directory).lexically_normal().string()},
                   {"target", options.target},
                   {"logs", options.logs}};
  for (const std::string& part : parts) result.next.push_back({part, next_step(options, part)});
  result.head.seconds = clock.seconds() - start;
  if (global.json) {
    std::printf("%s\n", json_of(result).dump().c_str());
    return 0;
  }
  if (kept) std::printf("kept files differ from what would be written: --force replaces them\n");
  std::printf("next, in %s:\n", options.directory.c_str());
  for (const NextStep& step : result.next) std::printf("  %-11s %s\n", step.part.c_str(), step.text.c_str());
  return 0;
}

}  // namespace

const std::vector<std::string>& init_parts() {
  static const std::vector<std::string> kParts = [] {
    std::vector<std::string> parts;
    for (const Template& t : kTemplates)
      if (parts.empty() || parts.back() != t.part) parts.emplace_back(t.part);
    return parts;
  }();
  return kParts;
}

std::vector<InitFile> init_files(const InitOptions& given, const InitProgram& program) {
  const InitOptions o = settled(given);
  require_channel_name(o.channel);
  for (const std::string& part : o.only)
    if (std::find(init_parts().begin(), init_parts().end(), part) == init_parts().end())
      throw Error(ErrorKind::kUsage,
                  "--only: expected loop, github, gitlab, systemd, kubernetes, slurm, job, jobset, pytorchjob or "
                  "monitoring, found '" +
                      part + "'");
  if (o.logs.empty() || o.sources.empty()) throw Error(ErrorKind::kUsage, "--logs and --source: expected at least one");
  const std::string directory = fs::absolute(o.directory).lexically_normal().string();
  quoted("DIR", directory);  // called only for its check: unit files must not contain control characters either
  quoted("SPECDEC_TORCH_LIB", program.torch);
  const std::map<std::string, std::string> values = {{"TARGET", quoted("--target", o.target)},
                                                     {"LOGS", quoted_list("--logs", o.logs)},
                                                     {"WORK", quoted("--work", o.work)},
                                                     {"STORE", quoted("--store", o.store)},
                                                     {"CHANNEL", quoted("--channel", o.channel)},
                                                     {"DRAFT", quoted("--draft", o.draft)},
                                                     {"PACKAGE", quoted("--store", watched(o))},
                                                     {"SOURCES", quoted_list("--source", o.sources)},
                                                     {"STATE", quoted("--state", o.state)},
                                                     {"REPORT", quoted("--state", o.state + ".report.json")},
                                                     {"REQUESTS", std::to_string(o.requests_per_day)},
                                                     {"IMAGE", quoted("--image", o.image)},
                                                     {"IMAGE_CUDA", quoted("--cuda-image", cuda_image(o))},
                                                     {"IMAGE_NAME_CUDA", one_line(cuda_image(o))},
                                                     {"RECORDED_DIRECTORY", quoted("--logs", recorded(o))},
                                                     {"COMMENT_PACKAGE", one_line(watched(o))},
                                                     {"UNIT_PACKAGE", unit_word(watched(o))},
                                                     {"DIRECTORY", unit_path(directory)},
                                                     {"PROGRAM", unit_word(program.path)},
                                                     {"UNIT_ENVIRONMENT", unit_environment(program)},
                                                     {"JSON_DIRECTORY", quoted("DIR", directory)},
                                                     {"SHELL_DIRECTORY", shell_words({directory})},
                                                     {"SHELL_PROGRAM", shell_words({program.path})}};
  std::vector<InitFile> files;
  for (const Template& t : kTemplates)
    if (o.only.empty() || std::find(o.only.begin(), o.only.end(), t.part) != o.only.end())
      files.push_back({t.path, t.part, fill(t.text, values)});
  return files;
}

std::string write_init_file(const InitOptions& options, const InitFile& file) {
  const fs::path path = options.directory / file.path;
  const bool there = fs::exists(fs::symlink_status(path));
  if (there && fs::is_regular_file(path) && read_file(path) == file.text) return "unchanged";
  if (there && !options.force) return "kept";
  make_directories(path.parent_path());
  write_file_atomic(path, file.text);
  return there ? "replaced" : "written";
}

void add_init(Cli& cli) {
  auto o = std::make_shared<InitOptions>();
  CLI::App* sub = cli.app.add_subcommand("init",
                                         "Writes LOOP.toml and the files that run it unattended: GitHub, GitLab, "
                                         "systemd, Kubernetes, Slurm; Prometheus rules, Grafana dashboard");
  sub->add_option("directory", o->directory, "Directory to write, created if it is missing")
      ->type_name("DIR")
      ->capture_default_str();
  sub->add_option("--target", o->target, "MODEL that answers: directory or org/name")
      ->type_name("MODEL")
      ->capture_default_str();
  sub->add_option("--logs", o->logs, "Traffic: files, directories or globs; may be repeated")
      ->type_name("FILE|DIR")
      ->capture_default_str();
  sub->add_option("--draft", o->draft, "prune:N | model:MODEL | config:FILE | eagle3")
      ->type_name("prune:N|model:MODEL|config:FILE")
      ->capture_default_str();
  sub->add_option("--work", o->work, "Directory of the runs")->type_name("DIR")->capture_default_str();
  sub->add_option("--store", o->store, "Directory of the packages")->type_name("STORE")->capture_default_str();
  sub->add_option("--channel", o->channel,
                  "Channel to promote to when the gate has passed; with candidate, the monitor watches production")
      ->type_name("NAME")
      ->capture_default_str();
  sub->add_option("--source", o->sources,
                  "Source that the monitor reads: acceptance records or the URL of a /metrics page; may be repeated; "
                  "default: acceptance/ beside the logs, where serve --record writes it")
      ->type_name("FILE|DIR|URL");
  sub->add_option("--state", o->state, "The monitor's memory")->type_name("FILE")->capture_default_str();
  sub->add_option("--requests-per-day", o->requests_per_day, "Volume of the traffic; 0 = unknown")
      ->capture_default_str()
      ->check(at_least(0));
  sub->add_option("--image", o->image, "Container image of what runs in Kubernetes on CPUs")
      ->type_name("IMAGE")
      ->capture_default_str();
  sub->add_option("--cuda-image", o->cuda_image,
                  "Container image of what runs there with a GPU; default: that of --image with -cuda after its tag")
      ->type_name("IMAGE");
  sub->add_option("--only", o->only,
                  "Comma-separated list of loop, github, gitlab, systemd, kubernetes, slurm, job, jobset, pytorchjob, "
                  "monitoring; default: all")
      ->type_name(CLI::detail::join(init_parts(), "|"))
      ->delimiter(',');
  sub->add_flag("--force", o->force, "Replace files that differ; without it they are kept");
  sub->footer(
      "Examples:\n"
      "  specdec init\n"
      "  specdec init /srv/draft --target org/name --logs '/var/lib/specdec/recorded/*.jsonl' --only loop,systemd\n"
      "Exit codes: 0 done, files that differ are kept; 2 a value that cannot be written.");
  sub->callback([&cli, o, sub] {
    // Paths given as flags are relative to the current directory; the defaults are relative to the directory that is
    // written.
    for (const auto& [flag, path] : {std::pair{"--work", &o->work}, {"--store", &o->store}, {"--state", &o->state}})
      if (sub->count(flag) > 0) *path = seen_from(o->directory, *path);
    cli.selected = [&cli, o] { return run_init(cli.global, *o); };
  });
}

void describe_init_result(Results& results) { results.add<InitResult>({.commands = {"init"}}); }

}  // namespace specdec::cli
