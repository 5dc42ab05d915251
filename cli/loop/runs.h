// The runs of a loop: reads and writes the state of each run, WORK/runs/<key>/state.json, and decides from the states
// whether and how the next run starts.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/schema/loop_state.h"

namespace specdec::cli {

// The verdicts in state.json of a run that ended well and of one that has not ended. One that failed has "STAGE
// failed".
inline constexpr const char *kPromoted = "promoted", *kRunning = "running";

// The end of one stage's process.
struct StageEnd {
  std::string stage;
  int exit_code = 0;
  double seconds = 0;
  Json result = nullptr;   // the stage's JSON, null if it gave none
  std::string error = "";  // the stage's error message; "" = none
  bool ran = true;         // false if the stage was not started, because its end was certain
};
// Returns the end of a stage that printed `printed` on stdout and logged the error `logged` ("" = none). If `printed`
// is the JSON of an error, the stage has no result, and StageEnd::error is the message of that JSON instead of
// `logged`.
StageEnd stage_end(const std::string& stage, int exit_code, double seconds, const Json& printed,
                   const std::string& logged);

// Returns the exit code of a distill stage whose launcher ended with `launcher_code`. Launchers use their own codes for
// failed processes, so the exit code in the JSON that rank 0 printed counts instead. If rank 0 printed nothing and
// there is a checkpoint, the stage was killed and can be resumed: 75.
int launched_exit_code(int launcher_code, const Json& printed, bool has_checkpoint);

// The state of one run, which is written to its state.json before and after each stage. A stage has a key, a digest of
// its settings and of the key of the stage before it. It is skipped only if it succeeded with this key and its output
// still exists, so a changed setting repeats its own stage and those after it.
class RunState {
 public:
  // Reads an existing state. If the state was written with other settings, its verdict is dropped. Throws Error(kData)
  // for a file that is not the state of this run.
  RunState(std::filesystem::path directory, const LoopInputs& inputs, int64_t now);

  const std::filesystem::path& directory() const { return directory_; }
  const LoopState& state() const { return state_; }
  bool done(const std::string& stage, const std::string& key, const std::filesystem::path& output) const;
  // Returns whether the stage began earlier with another key, so that its output is useless.
  bool began_otherwise(const std::string& stage, const std::string& key) const;
  // Records that the stage begins. If its key has changed, also forgets the stages after it.
  void begin(const std::string& stage, const std::string& key);
  void record(const std::string& stage, const std::filesystem::path& output, double seconds, const Json& result);
  // End the run: with the verdict kPromoted, or with the stage that stopped the run and its exit code.
  void promoted(int64_t now);
  void stopped(const StageEnd& end, int64_t now, const std::string& reason = "", const std::string& change = "");

 private:
  void finish(const std::string& verdict, int64_t now);
  void write() const;
  std::filesystem::path directory_;
  LoopState state_;
};

// The facts about an earlier run that the next one needs.
struct EarlierRun {
  std::string key, target_id, settings_sha256, verdict;  // verdict is "running" until the run ends
  int64_t started = 0, ended = 0;                        // Unix seconds; 0 = unknown
  // Time when the state was last written. It orders runs that began in the same second.
  std::filesystem::file_time_type written;
  int stopped_code = 0;                       // exit code of the stage that stopped it, 0 = none
  bool has_data = false;                      // true if its data stage is done
  bool ran = true;                            // false if stopped_stage was not even started
  std::string stopped_stage, reason, change;  // the stage that failed, why, and what to change (cli/loop/advice.h)

  // True if a verdict, and not an error, stopped the run.
  bool judged() const { return stopped_code == 3 || stopped_code == 4 || stopped_code == 6; }
};
// Returns the runs, newest first. Directories without a readable state are skipped.
std::vector<EarlierRun> earlier_runs(const std::filesystem::path& work);

// Returns the key of the run to continue: the run with the key of `inputs`, whatever its settings were, else a run of
// the same target and settings that was interrupted after its data stage. Such a run keeps the logs that it began with,
// because logs grow all the time and a run on the newest logs would have to start over. Returns nullopt if a new run is
// needed.
std::optional<std::string> run_to_continue(const std::vector<EarlierRun>& runs, const LoopInputs& inputs);

// The reason why no run may start now. One reason is a verdict on the same inputs; `exit_code` is then the exit code of
// that verdict. An inconclusive verdict (4) counts only during the cooldown. The other reason is a verdict on other
// logs of the same target and settings, less than `cooldown_s` seconds ago and with no promotion for this target since;
// `exit_code` is then 75. Runs whose last stage was never started (EarlierRun::ran) do not count as the other reason,
// because they cost nothing.
struct Refusal {
  int exit_code = 0;
  std::string reason;
};
std::optional<Refusal> refusal(const std::vector<EarlierRun>& runs, const LoopInputs& inputs, double cooldown_s,
                               int64_t now);

// Removes all runs except the newest `keep`, and the directories of runs that were killed before they wrote a state.
// `current` is always kept.
void remove_old_runs(const std::filesystem::path& work, const std::string& current, int64_t keep);

}  // namespace specdec::cli
