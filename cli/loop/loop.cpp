#include "cli/loop/loop.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <memory>

#include "base/clock.h"
#include "base/file.h"
#include "base/fingerprint.h"
#include "base/json.h"
#include "base/model_directory.h"
#include "base/sha256.h"
#include "cli/child_process.h"

namespace specdec::cli {

namespace {

struct Stage {
  std::string name;
  std::vector<std::string> arguments;
  fs::path output;   // must exist afterwards
};

// state.json of one run: which stages ended well. Written after each; a stage is skipped only if its output is still there.
class RunState {
 public:
  RunState(fs::path file, const std::string& key) : file_(std::move(file)) {
    state_ = {{"schema", "specdec.loop/1"}, {"key", key}, {"stages", Json::object()}};
    if (!fs::exists(file_)) return;
    const Json old = read_json(file_);
    require_schema(old, "loop", 1, file_.string());
    if (!old.contains("stages") || !old["stages"].is_object() || old.value("key", "") != key)
      throw Error(ErrorKind::kData, file_.string() + ": not the state of this run: remove its directory to start again");
    state_ = old;
  }

  bool done(const Stage& stage) const { return state_["stages"].contains(stage.name) && fs::exists(stage.output); }

  void record(const Stage& stage, double seconds, const Json& result) {
    state_["stages"][stage.name] = {{"seconds", seconds}, {"output", stage.output.string()}, {"result", result}};
    write_file_atomic(file_, state_.dump(1) + "\n");
  }
  void finish(const std::string& verdict) {
    state_["verdict"] = verdict;
    write_file_atomic(file_, state_.dump(1) + "\n");
  }
  const Json& json() const { return state_; }

 private:
  fs::path file_;
  Json state_;
};

Json parse_result(const std::string& output) {
  const size_t end = output.find_last_not_of(" \n\r\t");
  if (end == std::string::npos) return nullptr;
  const Json value = Json::parse(output.begin(), output.begin() + static_cast<std::ptrdiff_t>(end) + 1, nullptr, false);
  return value.is_discarded() ? Json(nullptr) : value;
}

// What a stage's result is worth saying in one line.
std::string headline(const std::string& stage, const Json& r) {
  char text[160] = "";
  if (!r.is_object()) return text;
  const auto number = [](const Json& v) { return v.is_number() ? v.get<double>() : 0.0; };
  if (stage == "validate" && r.contains("acceptance"))
    std::snprintf(text, sizeof text, "acceptance %.3f [%.3f, %.3f]", number(r["acceptance"].value("alpha", Json())),
                  number(r["acceptance"]["ci"][0]), number(r["acceptance"]["ci"][1]));
  else if (r.contains("verdict") && r["verdict"].is_string())
    std::snprintf(text, sizeof text, "%s", r["verdict"].get<std::string>().c_str());
  return text;
}

std::string run_key(const LoopSettings& s) {
  Sha256 hash;
  hash.update(fingerprint_model(s.target).id);
  hash.update(read_file(s.file, 1u << 20, ErrorKind::kConfig));
  for (const std::string& log : s.logs) {
    std::vector<fs::path> files;
    if (fs::is_directory(log)) {
      for (const auto& entry : fs::recursive_directory_iterator(log))
        if (entry.is_regular_file()) files.push_back(entry.path());
      std::sort(files.begin(), files.end());
    } else {
      files.push_back(log);
    }
    for (const fs::path& file : files) hash.update(file.string() + sha256_file(file));
  }
  return hash.hex().substr(0, 12);
}

std::vector<Stage> plan(const LoopSettings& s, const fs::path& run) {
  const auto with = [&](const std::string& stage, std::vector<std::string> arguments) {
    const auto extra = s.stage_flags.find(stage);
    if (extra != s.stage_flags.end()) arguments.insert(arguments.end(), extra->second.begin(), extra->second.end());
    return arguments;
  };
  const std::string data = run / "data", trained = run / "distill", gate = run / "gate", draft = run / "distill" / "draft";
  std::vector<std::string> ingest = {"--json", "data", "ingest"};
  ingest.insert(ingest.end(), s.logs.begin(), s.logs.end());
  ingest.insert(ingest.end(), {"--target", s.target, "--out", data});
  std::vector<std::string> distill = {"--json", "distill", "--target", s.target, "--data", data, "--draft", s.draft, "--out", trained};
  if (fs::exists(trained)) distill.push_back("--resume");
  return {{"data", with("data", ingest), run / "data" / "index.json"},
          {"distill", with("distill", distill), fs::path(draft) / "config.json"},
          {"validate", with("validate", {"--json", "validate", "--target", s.target, "--draft", draft, "--data", data, "--out", gate}),
           run / "gate" / "report.json"},
          {"package", with("package", {"--json", "package", "--target", s.target, "--draft", draft, "--report", run / "gate" / "report.json",
                                       "--store", s.store, "--channel", s.channel}),
           s.store / "refs" / s.channel}};
}

}  // namespace

int run_loop(const Global& global, const LoopSettings& given) {
  LoopSettings settings = given;
  settings.target = resolve_model(given.target).directory.string();  // of a hub name one commit for all stages
  const SystemClock clock;
  fs::create_directories(settings.work);
  const FileLock lock(settings.work / "lock");
  const std::string key = run_key(settings);
  const fs::path run = settings.work / "runs" / key;
  fs::create_directories(run);
  RunState state(run / "state.json", key);
  const fs::path log = run / "log.txt";
  if (global.verbosity >= 0) std::fprintf(stderr, "loop run %s in %s\n", key.c_str(), run.c_str());
  for (const Stage& stage : plan(settings, run)) {
    if (state.done(stage)) {
      if (global.verbosity >= 0) std::fprintf(stderr, "%-9s done before\n", stage.name.c_str());
      continue;
    }
    const double start = clock.seconds();
    const ChildResult child = run_child(global.program, stage.arguments, global.verbosity > 0 ? fs::path() : log);
    const double seconds = clock.seconds() - start;
    const Json result = parse_result(child.output);
    if (global.verbosity >= 0)
      std::fprintf(stderr, "%-9s exit %d in %.0f s  %s\n", stage.name.c_str(), child.exit_code, seconds, headline(stage.name, result).c_str());
    if (child.exit_code != 0) {
      state.finish(stage.name + " failed");
      if (global.json) std::printf("%s\n", state.json().dump().c_str());
      std::fprintf(stderr, "specdec: error: loop: %s ended with exit code %d (its log: %s)\n", stage.name.c_str(), child.exit_code, log.c_str());
      return child.exit_code;
    }
    state.record(stage, seconds, result);
  }
  state.finish("promoted");
  if (global.json) std::printf("%s\n", state.json().dump().c_str());
  else std::printf("promoted: %s:%s\n", settings.store.c_str(), settings.channel.c_str());
  return 0;
}

void add_loop(Cli& cli) {
  CLI::App* loop = cli.app.add_subcommand("loop", "The whole loop in one go: data, distill, validate, package, promote");
  loop->require_subcommand(1);
  loop->footer("Example:\n  specdec loop run LOOP.toml        what is in LOOP.toml: specdec loop run --help");
  CLI::App* sub = loop->add_subcommand("run", "Runs LOOP.toml; what is done already is skipped, the same trigger twice does the work once");
  auto file = std::make_shared<std::string>();
  sub->add_option("file", *file, "LOOP.toml")->required();
  sub->footer(
      "LOOP.toml:\n"
      "  [loop]\n  target = \"models/target\"\n  logs = [\"traffic/*.jsonl\"]\n  work = \"loop\"\n  store = \"store\"\n"
      "  channel = \"production\"\n  draft = \"prune:1\"\n"
      "  [distill]            # the other tables are the stages' flags: [data] [distill] [validate] [package]\n  time-limit = \"15m\"\n"
      "Example:\n  specdec loop run LOOP.toml\n"
      "  specdec monitor check --package store:production --source traffic/acceptance --state monitor.db --on-drift 'specdec loop run LOOP.toml'\n"
      "Exit codes: 0 promoted, 75 another loop is at work, else that of the stage that stopped it.");
  sub->callback([&cli, file] { cli.selected = [&cli, file] { return run_loop(cli.global, read_loop_settings(*file)); }; });
}

}  // namespace specdec::cli
