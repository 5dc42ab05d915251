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

// The verdict in state.json of a run that ended well, and of a run that has not ended. The verdict of a run that failed
// is "STAGE failed".
inline constexpr const char *kPromoted = "promoted", *kRunning = "running";

// How one stage's process ended: exit code, duration, and what the process printed.
struct StageEnd {
  std::string stage;
  int exit_code = 0;
  double seconds = 0;
  Json result = nullptr;   // the JSON that the stage printed, null if it printed none
  std::string error = "";  // error message that the stage logged or printed; "" = none
  bool ran = true;         // false: not started, because too few conversations are held out for a verdict
};
// Returns the StageEnd of a stage that printed `printed` on stdout and logged the error `logged` ("" = none). If
// `printed` is the JSON of an error, the stage has no result, and StageEnd::error is the message of that JSON instead
// of `logged`.
StageEnd stage_end(const std::string& stage, int exit_code, double seconds, const Json& printed,
                   const std::string& logged);

// Returns the exit code of a distill stage whose launcher ended with `launcher_code`. Launchers have codes of their own
// for failed processes, so the exit code in the JSON that rank 0 printed counts instead. If rank 0 printed nothing and
// there is a checkpoint, the stage was killed and can be resumed, so the result is 75 ("try again").
int launched_exit_code(int launcher_code, const Json& printed, bool has_checkpoint);

// state.json of one run (schema "specdec.loop/1"): the stages that succeeded, and the verdict. The file is written
// before and after each stage. Each stage has a key: a digest of the stage's settings and of the previous stage's key.
// A stage is skipped only if it succeeded with the same key and its output still exists. So a changed setting repeats
// the stage that it belongs to and all later stages.
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

// The facts about an earlier run that decide how the next run starts.
struct EarlierRun {
  std::string key, target_id, settings_sha256, verdict;  // verdict is "running" until the run ends
  int64_t started = 0, ended = 0;                        // Unix seconds; 0 = unknown
  // Time when the state was last written. It orders runs that began in the same second.
  std::filesystem::file_time_type written;
  int stopped_code = 0;                       // exit code of the stage that stopped the run, 0 = none
  bool has_data = false;                      // true if the run's data stage is done
  bool ran = true;                            // false if stopped_stage was not even started (StageEnd::ran)
  std::string stopped_stage, reason, change;  // the stage that failed, why, and what to change (cli/loop/advice.h)

  // True if a verdict, and not an error, stopped the run.
  bool judged() const { return stopped_code == 3 || stopped_code == 4 || stopped_code == 6; }
};
// Returns the runs, newest first. Directories without a readable state are skipped.
std::vector<EarlierRun> earlier_runs(const std::filesystem::path& work);

// Returns the key of the run to continue, nullopt if a new run is needed. First choice is the run with the key of
// `inputs`, whatever its settings were. Second choice is a run of the same target and settings, with other logs, that
// was interrupted after its data stage. It goes on with the logs that it began with: logs grow all the time, and a run
// on the newest logs would have to start over.
std::optional<std::string> run_to_continue(const std::vector<EarlierRun>& runs, const LoopInputs& inputs);

// Why no run may start now. There are two possible reasons:
// * A run with the same logs, target and settings ended with a verdict; `exit_code` is the exit code of that verdict.
//   An inconclusive verdict (4) counts only during the cooldown.
// * A run with other logs but the same target and settings ended with a verdict less than `cooldown_s` seconds ago, and
//   no package for this target was promoted since; `exit_code` is 75. Runs whose last stage was never started
//   (EarlierRun::ran) do not count, because they cost nothing.
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
