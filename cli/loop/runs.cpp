#include "cli/loop/runs.h"

#include <algorithm>

#include "base/clock.h"
#include "base/file.h"
#include "base/schema/error_report.h"
#include "base/verdict.h"
#include "cli/loop/loop.h"

namespace specdec::cli {

namespace {

fs::path runs_of(const fs::path& work) { return work / "runs"; }

std::optional<EarlierRun> read_earlier(const fs::path& directory) {
  try {
    const fs::path file = directory / "state.json";
    const LoopState state = read_fields<LoopState>(read_json(file), file.string());
    if (!state.stages) return std::nullopt;
    EarlierRun run;
    run.key = directory.filename().string();
    run.written = fs::last_write_time(file);
    run.verdict = state.head.verdict;
    run.started = state.started_unix.value_or(0);
    run.ended = state.ended_unix.value_or(0);
    if (state.stopped) {
      run.stopped_code = state.stopped->exit_code;
      run.stopped_stage = state.stopped->stage;
      run.reason = state.stopped->reason;
      run.change = state.stopped->change;
      run.ran = state.stopped->ran;
    }
    run.target_id = state.inputs.target_id;
    run.settings_sha256 = state.inputs.settings_sha256;
    run.has_data = state.stages->contains("data");
    return run;
  } catch (const Error&) {
  } catch (const fs::filesystem_error&) {
  }
  return std::nullopt;
}

std::string ago(int64_t seconds) {
  if (seconds < 7200) return std::to_string(seconds / 60) + " minutes ago";
  return std::to_string(seconds / 3600) + " hours ago";
}

}  // namespace

RunState::RunState(fs::path directory, const LoopInputs& inputs, int64_t now) : directory_(std::move(directory)) {
  const std::string key = directory_.filename().string();
  const fs::path file = directory_ / "state.json";
  if (!fs::exists(file)) {
    state_.head.verdict = kRunning;
    state_.head.started = format_utc(now);
    state_.started_unix = now;
    state_.key = key;
    state_.inputs = inputs;
    state_.stages.emplace();
    return;
  }
  state_ = read_fields<LoopState>(read_json(file), file.string());
  if (!state_.stages || state_.key != key)
    throw Error(ErrorKind::kData, file.string() + ": not the state of this run: remove its directory to start again");
  if (state_.inputs.settings_sha256 == inputs.settings_sha256) return;
  state_.inputs.settings_sha256 = inputs.settings_sha256;
  state_.head.verdict = kRunning;
  state_.stopped.reset();
  state_.ended_unix.reset();
}

bool RunState::began_otherwise(const std::string& stage, const std::string& key) const {
  const auto begun = state_.begun.find(stage);  // states of older versions have none
  return begun != state_.begun.end() && begun->second != key;
}

bool RunState::done(const std::string& stage, const std::string& key, const fs::path& output) const {
  return state_.stages->contains(stage) && !began_otherwise(stage, key) && fs::exists(output);
}

void RunState::begin(const std::string& stage, const std::string& key) {
  bool is_repeated = false;
  if (began_otherwise(stage, key))
    for (const LoopStage& s : loop_stages())
      if (is_repeated |= s.name == stage) state_.stages->erase(s.name);
  state_.begun[stage] = key;
  write();
}

void RunState::record(const std::string& stage, const fs::path& output, double seconds, const Json& result) {
  (*state_.stages)[stage] = {seconds, output.string(), result};
  state_.head.seconds += seconds;
  state_.head.verdict = kRunning;
  state_.stopped.reset();
  write();
}

void RunState::promoted(int64_t now) {
  state_.stopped.reset();
  finish(kPromoted, now);
}

int launched_exit_code(int launcher_code, const Json& printed, bool has_checkpoint) {
  if (printed.is_object() && printed.value("exit_code", Json()).is_number_integer())
    return printed.at("exit_code").get<int>();
  if (printed.is_object() && printed.value("verdict", Json()).is_string())
    if (const auto verdict = verdict_named(printed.at("verdict").get<std::string>())) return exit_code(*verdict);
  return launcher_code != 0 && has_checkpoint ? 75 : launcher_code;
}

StageEnd stage_end(const std::string& stage, int exit_code, double seconds, const Json& printed,
                   const std::string& logged) {
  if (const auto message = error_message(printed)) return {stage, exit_code, seconds, nullptr, *message};
  return {stage, exit_code, seconds, printed, logged};
}

void RunState::stopped(const StageEnd& end, int64_t now, const std::string& reason, const std::string& change) {
  state_.stopped = LoopStop{end.stage, end.exit_code, end.seconds, end.result, reason, change, end.ran};
  state_.head.seconds += end.seconds;
  finish(end.stage + " failed", now);
}

void RunState::finish(const std::string& verdict, int64_t now) {
  state_.head.verdict = verdict;
  state_.ended_unix = now;
  write();
}

void RunState::write() const { write_file_atomic(directory_ / "state.json", json_of(state_).dump(1) + "\n"); }

std::vector<EarlierRun> earlier_runs(const fs::path& work) {
  std::vector<EarlierRun> runs;
  if (!fs::is_directory(runs_of(work))) return runs;
  for (const auto& entry : fs::directory_iterator(runs_of(work)))
    if (auto run = read_earlier(entry.path())) runs.push_back(std::move(*run));
  std::sort(runs.begin(), runs.end(), [](const EarlierRun& a, const EarlierRun& b) {
    return std::tie(b.started, b.written, b.key) < std::tie(a.started, a.written, a.key);
  });
  return runs;
}

std::optional<std::string> run_to_continue(const std::vector<EarlierRun>& runs, const LoopInputs& inputs) {
  const std::string key = inputs.key();
  for (const EarlierRun& run : runs)
    if (run.key == key) return key;
  for (const EarlierRun& run : runs) {
    const int code = run.stopped_code;  // 2 and 7 mean wrong settings or data, which resuming does not fix
    const bool interrupted = run.verdict != kPromoted && (code == 0 || code == 8 || code >= 74);
    if (interrupted && run.has_data && run.target_id == inputs.target_id &&
        run.settings_sha256 == inputs.settings_sha256)
      return run.key;
  }
  return std::nullopt;
}

std::optional<Refusal> refusal(const std::vector<EarlierRun>& runs, const LoopInputs& inputs, double cooldown_s,
                               int64_t now) {
  const std::string key = inputs.key();
  const auto counts = [&](const EarlierRun& run) {
    return run.judged() && run.target_id == inputs.target_id && run.settings_sha256 == inputs.settings_sha256;
  };
  const auto cooling = [&](const EarlierRun& run) { return static_cast<double>(now - run.ended) < cooldown_s; };
  const auto said = [&](const EarlierRun& run) {
    std::string text =
        "run " + run.key + " ended with exit code " + std::to_string(run.stopped_code) + " " + ago(now - run.ended);
    if (!run.reason.empty()) text += " (" + run.stopped_stage + ": " + run.reason + "; to change: " + run.change + ")";
    return text;
  };
  // A verdict on the same logs takes precedence over verdicts on other logs, even if both runs ended within the same
  // second.
  for (const EarlierRun& run : runs)
    if (counts(run) && run.key == key && (cooling(run) || run.stopped_code != 4))
      return Refusal{run.stopped_code,
                     said(run) + " on the same logs, target and settings: nothing has changed (--force tries again)"};
  bool promoted_since = false;
  for (const EarlierRun& run : runs) {
    promoted_since |= run.verdict == kPromoted && run.target_id == inputs.target_id;
    if (counts(run) && run.key != key && run.ran && cooling(run) && !promoted_since)
      return Refusal{75, said(run) + ": the next try is from " +
                             format_utc(run.ended + static_cast<int64_t>(cooldown_s)) +
                             " on (cooldown in LOOP.toml, or --force)"};
  }
  return std::nullopt;
}

void remove_old_runs(const fs::path& work, const std::string& current, int64_t keep) {
  std::vector<std::string> old;
  int64_t kept = 1;
  for (const EarlierRun& run : earlier_runs(work))
    if (run.key != current && ++kept > keep) old.push_back(run.key);
  for (const auto& entry : fs::directory_iterator(runs_of(work)))  // adds runs killed before they wrote a state
    if (entry.path().filename() != current && entry.is_directory() && !fs::exists(entry.path() / "state.json"))
      old.push_back(entry.path().filename().string());
  for (const std::string& key : old) {
    const fs::path gone = runs_of(work) / (key + ".partial");
    rename_file(runs_of(work) / key, gone);  // renamed first, so that a crash cannot leave a run half removed
    remove_tree(gone);
  }
}

}  // namespace specdec::cli
