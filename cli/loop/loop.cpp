#include "cli/loop/loop.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <memory>
#include <optional>
#include <set>
#include <span>

#include "base/clock.h"
#include "base/file.h"
#include "base/file_lock.h"
#include "base/fingerprint.h"
#include "base/format.h"
#include "base/json.h"
#include "base/model_directory.h"
#include "base/progress.h"
#include "base/schema/shard_index.h"
#include "base/sha256.h"
#include "base/shell.h"
#include "base/verdict.h"
#include "cli/child_process.h"
#include "cli/log.h"
#include "cli/loop/advice.h"
#include "cli/loop/checks.h"
#include "cli/loop/runs.h"
#include "cli/results.h"
#include "cli/stop_deadline.h"
#include "data/regenerate/regenerate.h"
#include "data/shards/ingest_report.h"
#include "data/shards/shard_reader.h"
#include "data/sources/sources.h"
#include "distill/settings/defaults.h"

namespace specdec::cli {

namespace {

struct Stage {
  std::string name;
  std::vector<std::string> arguments;
  fs::path output;                         // this path must exist after the stage
  std::vector<std::string> launcher = {};  // command that starts the stage's processes; empty = one process
  std::string directory = "";              // subdirectory of the run that the stage writes; "" = it writes elsewhere
  std::string key = "";                    // digest of the stage's settings (cli/loop/runs.h)
};

// How often a stage with a launcher is restarted after some of its processes were lost.
constexpr int kMostRestarts = 3;

Json parse_result(const std::string& output) {
  const size_t end = output.find_last_not_of(" \n\r\t");
  if (end == std::string::npos) return nullptr;
  const Json value = Json::parse(output.begin(), output.begin() + static_cast<std::ptrdiff_t>(end) + 1, nullptr, false);
  return value.is_discarded() ? Json(nullptr) : value;
}

// Returns the part of a run's log from `offset` on, at most the last 64 KiB, which are enough to contain the last
// error.
std::string log_since(const fs::path& log, uint64_t offset) {
  constexpr uint64_t kMostBytes = 64 << 10;
  if (!fs::exists(log)) return "";
  const InputFile in(log, ErrorKind::kIo);
  const uint64_t begin = std::max(std::min(offset, in.size()), in.size() - std::min(in.size(), kMostBytes));
  std::string text(in.size() - begin, '\0');
  in.read(begin, std::as_writable_bytes(std::span(text)));
  return text;
}

// Returns the last error message in a stage's log, without the prefix "specdec: error: ", or "" if there is none.
std::string last_error(const std::string& text) {
  const std::string mark = "specdec: error: ";
  const size_t at = text.rfind(mark);
  if (at == std::string::npos) return "";
  const size_t begin = at + mark.size();
  return text.substr(begin, text.find('\n', begin) - begin);
}

LoopInputs run_inputs(const LoopSettings& s, const ResolvedModel& target, const std::string& named) {
  LoopInputs inputs{named, fingerprint_model(target.directory).id, target.hub_commit, sha256_file(s.file), {}};
  for (const std::string& file : data::expand_sources(s.logs)) inputs.logs.push_back({file, sha256_file(file)});
  return inputs;
}

// Returns whether the logs name the target as the writer of the answers: by its fingerprint (as `serve --record` does)
// or by its name (as gateways do).
bool is_target(const std::string& writer, const LoopInputs& inputs) {
  const std::string whole = inputs.target.substr(0, inputs.target.find('@'));
  return (writer.size() >= 12 && inputs.target_id.starts_with(writer)) || writer == whole ||
         writer == fs::path(whole).filename();
}

// Returns whether the data directory has answers that were written by another model than the target, according to the
// logs.
bool written_by_another(const fs::path& data, const LoopInputs& inputs) {
  const ShardIndex index = shard_index_from_json(read_json(data / "index.json"), (data / "index.json").string());
  if (index.written_by != "unknown" && index.written_by != "target" && !is_target(index.written_by, inputs))
    return true;
  const fs::path file = data / data::kIngestReportFile;
  if (!fs::exists(file)) return false;
  const data::IngestReport report = data::ingest_report_from_json(read_json(file), file.string());
  return std::any_of(report.writers.begin(), report.writers.end(),
                     [&](const auto& w) { return !w.first.empty() && !is_target(w.first, inputs); });
}

// The stages of one run, in order. Distill and validate read the regenerated data if another model wrote the ingested
// answers, else the ingested data.
class Stages {
 public:
  Stages(const LoopSettings& settings, const LoopInputs& inputs, fs::path run)
      : s_(settings), inputs_(inputs), run_(std::move(run)) {}

  enum class Regenerate { kNo, kYes, kNotYetKnown };
  Regenerate regenerates() const {
    if (s_.regenerate != "auto") return s_.regenerate == "always" ? Regenerate::kYes : Regenerate::kNo;
    if (!fs::exists(data() / "index.json")) return Regenerate::kNotYetKnown;
    return written_by_another(data(), inputs_) ? Regenerate::kYes : Regenerate::kNo;
  }

  // Returns the data directory that distill learns from; known once the stage `data` is done.
  fs::path learnt() const { return regenerates() == Regenerate::kYes ? run_ / "regenerated" : data(); }

  std::vector<Stage> all() const {
    const Regenerate regenerated = regenerates();
    const fs::path learnt = this->learnt();
    const std::string trained = run_ / "distill", draft = run_ / "distill" / "draft", gate = run_ / "gate";
    std::vector<std::string> ingest = {"--json", "data", "ingest"};
    ingest.insert(ingest.end(), s_.logs.begin(), s_.logs.end());
    ingest.insert(ingest.end(), {"--target", s_.target, "--out", data()});
    // Every run uses the same salt, so that a name gets the same hash in every run.
    if (!has_flag("data", "--salt")) ingest.insert(ingest.end(), {"--salt", s_.work / "salt"});
    std::vector<std::string> distill = {"--json", "distill", "--target", s_.target, "--data",
                                        learnt,   "--draft", s_.draft,   "--out",   trained};
    if (fs::exists(trained)) distill.push_back("--resume");
    std::vector<Stage> stages = {{"data", with("data", ingest), data() / "index.json", {}, "data"}};
    if (regenerated != Regenerate::kNo) stages.push_back(regenerate());
    stages.push_back({"distill", with("distill", distill), fs::path(draft) / "config.json", s_.launcher, "distill"});
    stages.push_back({"validate",
                      with("validate", {"--json", "validate", "--target", s_.target, "--draft", draft, "--data", learnt,
                                        "--out", gate}),
                      run_ / "gate" / "report.json",
                      {},
                      "gate"});
    stages.push_back({"package",
                      with("package", {"--json", "package", "--target", s_.target, "--draft", draft, "--report",
                                       run_ / "gate" / "report.json", "--store", s_.store, "--channel", s_.channel}),
                      s_.store / "refs" / s_.channel});
    std::string key;
    for (Stage& stage : stages) stage.key = key = key_of(stage.name, key);
    return stages;
  }

 private:
  fs::path data() const { return run_ / "data"; }

  std::vector<std::string> with(const std::string& stage, std::vector<std::string> arguments) const {
    const auto extra = s_.stage_flags.find(stage);
    if (extra != s_.stage_flags.end()) arguments.insert(arguments.end(), extra->second.begin(), extra->second.end());
    return arguments;
  }

  // Returns a digest of the stage's settings in LOOP.toml and of `before`, the key of the stage before it.
  std::string key_of(const std::string& stage, const std::string& before) const {
    Json settings = Json::array({before, stage, with(stage, {})});
    if (stage == "distill") settings.push_back(s_.draft);
    if (stage == "package") settings.insert(settings.end(), {s_.store.string(), s_.channel});
    return sha256_hex(settings.dump()).substr(0, 12);
  }

  bool has_flag(const std::string& stage, const std::string& flag) const {
    const auto flags = s_.stage_flags.find(stage);
    return flags != s_.stage_flags.end() &&
           std::find(flags->second.begin(), flags->second.end(), flag) != flags->second.end();
  }

  // The table [regenerate] may name an endpoint that already serves the target. --target-files then gives the directory
  // of the target, for its tokenizer.
  Stage regenerate() const {
    const fs::path out = run_ / "regenerated";
    const bool elsewhere = has_flag("regenerate", "--target");
    std::vector<std::string> arguments = {
        "--json", "data", "regenerate", data(), elsewhere ? "--target-files" : "--target", s_.target, "--out", out};
    if (fs::exists(data::progress_file(out))) arguments.push_back("--resume");
    return {"regenerate", with("regenerate", arguments), out / "index.json", {}, "regenerated"};
  }

  const LoopSettings& s_;
  const LoopInputs& inputs_;
  fs::path run_;
};

struct PlannedStage {
  std::string stage, when;
  std::vector<std::string> arguments, launcher;
};
void visit_fields(Fields& f, PlannedStage& stage) {
  f.type("PlannedStage", "A stage, whether it is to run, and its command.");
  f("stage", stage.stage);
  f("when", stage.when);
  f("arguments", stage.arguments);
  f(if_any("launcher"), stage.launcher);
}

struct LoopPlan {
  std::string verdict, key, reason;
  LoopInputs inputs;
  std::vector<PlannedStage> stages;
};
void visit_fields(Fields& f, LoopPlan& plan) {
  f.type("LoopPlan", "What `loop run --plan` would do.");
  f.schema("loop_plan", 1);
  f.one_of("verdict", plan.verdict, {"planned", "refused"});
  f("key", plan.key);
  f("inputs", plan.inputs);
  f("stages", plan.stages);
  f(if_any("reason"), plan.reason);
}

int print_plan(const Global& global, const LoopInputs& inputs, const Stages& stages, const fs::path& run,
               const std::optional<Refusal>& refused) {
  const std::string key = run.filename().string();
  LoopPlan plan = {refused ? "refused" : "planned", key, refused ? refused->reason : "", inputs, {}};
  std::string text =
      "run " + key + " in " + run.string() + "\n" + (refused ? "would not start: " + refused->reason + "\n" : "");
  const std::optional<RunState> state =
      fs::exists(run / "state.json") ? std::optional<RunState>(std::in_place, run, inputs, 0) : std::nullopt;
  for (const Stage& stage : stages.all()) {
    const bool done = state && state->done(stage.name, stage.key, stage.output);
    const bool unsure = stage.name == "regenerate" && stages.regenerates() == Stages::Regenerate::kNotYetKnown;
    const std::string when = done     ? "done"
                             : unsure ? "if another model wrote the answers; distill and validate read its output then"
                                      : "to run";
    plan.stages.push_back({stage.name, when, stage.arguments, stage.launcher});
    const std::string launcher = stage.launcher.empty() ? "" : shell_words(stage.launcher) + " ";
    text += stage.name + " (" + when + ")\n  " + launcher + "specdec " + shell_words(stage.arguments) + "\n";
  }
  std::printf("%s", global.json ? (json_of(plan).dump() + "\n").c_str() : text.c_str());
  return refused ? refused->exit_code : 0;
}

// Prints a line to stderr, except with -q, and appends it to the run's log.
void tell(const Global& global, const fs::path& log, const std::string& line) {
  if (global.verbosity >= 0) say(line);
  append_line(log, line);
}

// Returns the text of distill's result, or "" if there is none.
std::string result_file(const fs::path& run) {
  const fs::path file = run / "result.json";
  return fs::exists(file) ? read_file(file) : "";
}

// Shows a line of a stage's log if it is progress or a warning; other log lines and errors are not shown here.
void hand_on(const Stage& stage, const std::string& line) {
  for (const char* silent : {"info: ", "debug: ", "specdec: error: "})
    if (line.starts_with(silent)) return;
  say(stage.name + ": " + line, line.starts_with("warning: ") ? LogLevel::kWarn : LogLevel::kInfo);
}

// Runs one stage. The stage's stderr is written to the run's log; its progress and warnings are also shown. With -v,
// stderr goes to this process's stderr instead, in the same log format.
ChildResult run_stage(const Global& global, const LoopSettings& settings, const Stage& stage, const fs::path& log) {
  const bool shown = global.verbosity > 0;
  std::vector<std::string> arguments = {"--log-format", shown ? global.log_format : "text"};
  arguments.insert(arguments.end(), stage.arguments.begin(), stage.arguments.end());
  ChildErrors errors;
  if (!shown) errors.file = log;
  if (global.verbosity == 0) errors.on_line = [&stage](const std::string& line) { hand_on(stage, line); };
  const fs::path directory = settings.file.parent_path();
  if (stage.launcher.empty()) return run_child(global.program, arguments, errors, directory);
  std::vector<std::string> line = stage.launcher;  // /usr/bin/env finds the launcher in PATH
  line.push_back(global.program);
  line.insert(line.end(), arguments.begin(), arguments.end());
  const fs::path trained = stage.output.parent_path().parent_path();
  const std::string before = result_file(trained);
  ChildResult child = run_child("/usr/bin/env", line, errors, directory);
  // A launcher that queues a job may not pass on the job's stdout, so the result is read from the file that the job
  // wrote.
  if (const std::string after = result_file(trained); !parse_result(child.output).is_object() && after != before)
    child.output = after;
  child.exit_code =
      launched_exit_code(child.exit_code, parse_result(child.output), fs::exists(trained / "checkpoints/latest"));
  return child;
}

// Runs stage `index`, and starts the stage again if some of its processes were lost. The stage then resumes from its
// last checkpoint.
ChildResult run_to_end(const Global& global, const LoopSettings& settings, const Stages& stages, size_t index,
                       const fs::path& log) {
  for (int restarts = 0;; ++restarts) {
    const Stage stage = stages.all()[index];  // evaluated each time, because its arguments depend on whether it resumes
    ChildResult child = run_stage(global, settings, stage, log);
    if (stage.launcher.empty() || child.exit_code != 75 || stop_requested() || restarts == kMostRestarts) return child;
    tell(global, log,
         stage.name + ": a process was lost: start " + std::to_string(restarts + 2) + " of at most " +
             std::to_string(kMostRestarts + 1));
  }
}

// Returns the result of a distill stage that cannot reach a verdict because too few conversations are held out; the
// stage then need not be started. Returns nothing if enough conversations are held out.
std::optional<StageEnd> certain_end(const fs::path& learnt) {
  const data::ShardReader reader(learnt);
  std::set<std::string> conversations;
  for (const TokenRow& row : reader.rows("holdout")) conversations.insert(row.conversation);
  const auto found = static_cast<int64_t>(conversations.size()), needed = distill::kMinHeldOutConversations;
  if (found >= needed) return std::nullopt;
  const std::string reason = "only " + std::to_string(found) +
                             " held-out conversations, and a verdict needs at least " + std::to_string(needed) +
                             ": nothing was trained";
  return StageEnd{.stage = "distill",
                  .exit_code = exit_code(Verdict::kInconclusive),
                  .result = Json{{"verdict", Verdict::kInconclusive}, {"reason", reason}},
                  .ran = false};
}

// Removes what a stage wrote with other settings: `directory` in the run's directory, and everything there whose name
// begins with "<directory>.". Each path is renamed first, so that a crash cannot leave it half removed.
void remove_outputs(const fs::path& run, const std::string& directory) {
  std::vector<fs::path> paths;
  for (const auto& entry : fs::directory_iterator(run))
    if (const std::string name = entry.path().filename().string();
        !directory.empty() && (name == directory || name.starts_with(directory + ".")))
      paths.push_back(entry.path());
  for (const fs::path& path : paths) {
    const fs::path gone = path.string() + ".partial";
    if (path.extension() != ".partial") rename_file(path, gone);
    remove_tree(path.extension() == ".partial" ? path : gone);
  }
}

// Runs the stages one after the other; returns 0 or the exit code of the stage that failed.
int run_stages(const Global& global, const LoopSettings& settings, const Stages& stages, RunState& state) {
  const SystemClock clock;
  const fs::path log = state.directory() / "log.txt";
  for (size_t i = 0; i < stages.all().size(); ++i) {
    Stage stage = stages.all()[i];  // evaluated each time, because the stages after data depend on its result
    if (state.done(stage.name, stage.key, stage.output)) {
      if (global.verbosity >= 0) say(stage.name + ": done before");
      continue;
    }
    if (state.began_otherwise(stage.name, stage.key)) remove_outputs(state.directory(), stage.directory);
    state.begin(stage.name, stage.key);
    stage = stages.all()[i];  // evaluated again: the removed outputs change its arguments
    const double start = clock.seconds();
    const uint64_t said_before = fs::exists(log) ? fs::file_size(log) : 0;
    const auto run = [&] {
      const ChildResult child = run_to_end(global, settings, stages, i, log);
      return stage_end(stage.name, child.exit_code, clock.seconds() - start, parse_result(child.output),
                       last_error(log_since(log, said_before)));
    };
    const std::optional<StageEnd> certain = stage.name == "distill" ? certain_end(stages.learnt()) : std::nullopt;
    const StageEnd end = certain ? *certain : run();
    tell(global, log,
         format("%-10s exit %d in %.0f s  ", stage.name.c_str(), end.exit_code, end.seconds) +
             headline(stage.name, end.result));
    if (end.exit_code == 0) {
      state.record(stage.name, stage.output, end.seconds, end.result);
      continue;
    }
    const auto& done = *state.state().stages;
    const Json trained = done.contains("distill") ? done.at("distill").result : Json();
    const Advice advice = advise(settings, end, trained);
    state.stopped(end, clock.unix_seconds(), advice.reason, advice.change);
    const std::string line = "specdec: error: loop: " + stage.name + " ended with exit code " +
                             std::to_string(end.exit_code) + ": " + advice.reason + ". To change: " + advice.change +
                             " (log: " + log.string() + ")";
    append_line(log, line);
    const int code = stop_requested() ? stop_exit_code() : end.exit_code;
    say(line, LogLevel::kError, {{"exit_code", code}, {"stage", stage.name}});
    return code;
  }
  state.promoted(clock.unix_seconds());
  append_line(log, "promoted");
  return 0;
}

// Throws, before anything is written, for settings that a stage would reject hours later.
void check_settings(const LoopSettings& settings) {
  const LoopInputs none;
  for (const Stage& stage : Stages(settings, none, settings.work / "runs" / "new").all())
    check_stage(settings, stage.name, stage.arguments);
  check_places(settings, settings.target);
}

}  // namespace

int run_loop(const Global& global, const LoopSettings& given, const LoopOrder& order) {
  set_stop_seconds(kStopSecondsOfParents);
  LoopSettings settings = given;
  const ResolvedModel target = resolve_model(given.target);  // a hub name is resolved to one commit for all stages
  settings.target = fs::absolute(target.directory).string();
  check_settings(settings);
  const SystemClock clock;
  std::optional<FileLock> lock;
  if (!order.plan) {
    make_private_directory(settings.work);
    make_directories(settings.work / "runs");
    lock.emplace(settings.work / "lock");
    // Removes the partial files of killed runs. No process is writing them, because this process holds the loop's lock.
    for (const fs::path& below : {settings.work, settings.work / "runs"}) remove_partials(below, 0);
    for (const auto& entry : fs::directory_iterator(settings.work / "runs"))  // also in runs that will not be continued
      if (entry.is_directory()) remove_partials(entry.path(), 0);
  }
  const LoopInputs inputs = run_inputs(settings, target, given.target);
  const auto earlier = earlier_runs(settings.work);
  const std::optional<std::string> continued = run_to_continue(earlier, inputs);
  const std::string key = continued.value_or(inputs.key());
  const std::optional<Refusal> refused =
      order.force ? std::nullopt : refusal(earlier, inputs, settings.cooldown_s, clock.unix_seconds());
  const fs::path run = settings.work / "runs" / key;
  const Stages stages(settings, inputs, run);
  if (order.plan) return print_plan(global, inputs, stages, run, refused);
  if (refused) {
    LoopState state;
    state.head = {refused->exit_code == 75 ? "cooldown" : "unchanged", format_utc(clock.unix_seconds())};
    state.inputs = inputs;
    state.key = key;
    state.reason = refused->reason;
    if (global.json) std::printf("%s\n", json_of(state).dump().c_str());
    say("specdec: loop: " + refused->reason, LogLevel::kError, {{"exit_code", refused->exit_code}});
    return refused->exit_code;
  }
  make_directories(run);
  // Removes partial files that a killed run left. Other stages publish whole directories or clean up themselves.
  for (const fs::path& below : {run, run / "gate"}) remove_partials(below, 0);
  RunState state(run, inputs, clock.unix_seconds());
  if (global.verbosity >= 0) say("loop run " + key + " in " + run.string());
  if (continued && key != inputs.key() && global.verbosity >= 0)
    say("it was interrupted: it goes on with the logs of then");
  const int code = run_stages(global, settings, stages, state);
  if (global.json)
    std::printf("%s\n", json_of(state.state()).dump().c_str());
  else if (code == 0)
    std::printf("promoted: %s:%s\n", settings.store.c_str(), settings.channel.c_str());
  remove_old_runs(settings.work, key, settings.keep);
  return code;
}

void add_loop(Cli& cli) {
  CLI::App* loop = cli.app.add_subcommand("loop", "Runs the whole loop: data, distill, validate, package, promote");
  loop->require_subcommand(1);
  loop->footer("Example:\n  specdec loop run LOOP.toml        # the keys of LOOP.toml: specdec loop run --help");
  CLI::App* sub = loop->add_subcommand(
      "run", "Runs LOOP.toml; stages that are done are skipped, so the same trigger twice does the work once");
  auto file = std::make_shared<std::string>();
  auto order = std::make_shared<LoopOrder>();
  sub->add_option("file", *file, "LOOP.toml")->type_name("FILE")->required();
  sub->add_flag("--plan", order->plan, "Print what would run, with every command, and write nothing");
  sub->add_flag("--force", order->force, "Run even if an earlier verdict on this target and these settings forbids it");
  sub->footer(
      "LOOP.toml:\n"
      "  [loop]\n  target = \"models/target\"\n  logs = [\"traffic/*.jsonl\"]\n  work = \"loop\"\n  store = \"store\"\n"
      "  channel = \"production\"\n  draft = \"prune:1\"\n"
      "  [distill]            # the other tables are the stages' flags: [data] [regenerate] [distill] [validate] "
      "[package]\n  time-limit = \"15m\"\n"
      "Examples:\n  specdec init         # writes one\n  specdec loop run LOOP.toml --plan\n  specdec loop run "
      "LOOP.toml\n"
      "  specdec monitor check --package store:production --source traffic/acceptance --state monitor.db --on-drift "
      "'specdec loop run LOOP.toml'\n"
      "Exit codes: 0 promoted, 75 another loop is running or the cooldown of an earlier verdict has not passed, else "
      "that of the stage that stopped it.");
  sub->callback([&cli, file, order] {
    cli.selected = [&cli, file, order] {
      const Command commands = command_tree(cli.app);
      return run_loop(cli.global, read_loop_settings(*file, &commands), *order);
    };
  });
}

void describe_loop_results(Results& results) {
  results.add<LoopPlan>({.commands = {"loop run"}, .exit_codes = {75}});
  results.add<LoopState>({.commands = {"loop run"}, .exit_codes = {75}});
}

}  // namespace specdec::cli
