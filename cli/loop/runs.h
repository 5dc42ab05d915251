// The runs of a loop: WORK/runs/<key>/state.json of each, and what earlier runs mean for the next one.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"

namespace specdec::cli {

// What a run is made of. The key is a digest of all of it.
struct RunInputs {
  std::string target, target_id, target_commit;           // as given, fingerprint, commit of a hub name ("" = none)
  std::string settings_sha256;                            // of the bytes of LOOP.toml
  std::vector<std::pair<std::string, std::string>> logs;  // path, sha256
  std::string key() const;
};
Json to_json(const RunInputs& inputs);

// A run that ended well says this where the results of other commands have a verdict. It judges nothing.
inline constexpr const char* kPromoted = "promoted";

// state.json of one run (schema "specdec.loop/1"): which stages ended well, and the verdict. Written after each; a
// stage is skipped only if its output is still there.
class RunState {
 public:
  // Reads what is there. Throws Error(kData) for a file that is no state of this run.
  RunState(std::filesystem::path directory, const RunInputs& inputs, int64_t now);

  const std::filesystem::path& directory() const { return directory_; }
  const Json& json() const { return state_; }
  bool done(const std::string& stage, const std::filesystem::path& output) const;
  void record(const std::string& stage, const std::filesystem::path& output, double seconds, const Json& result);
  // The end: kPromoted, or the stage that stopped the run with its exit code.
  void promoted(int64_t now);
  void stopped(const std::string& stage, int exit_code, double seconds, const Json& result, int64_t now,
               const std::string& reason = "", const std::string& change = "");

 private:
  void finish(const std::string& verdict, int64_t now);
  std::filesystem::path directory_;
  Json state_;
};

// An earlier run, as far as the next one asks.
struct EarlierRun {
  std::string key, target_id, settings_sha256, verdict;  // verdict "running" until its end
  int64_t started = 0, ended = 0;                        // unix seconds; 0 unknown
  std::filesystem::file_time_type written;    // when its state was, which orders runs that began in the same second
  int stopped_code = 0;                       // of the stage that stopped it, 0 = none
  bool has_data = false;                      // its data stage is done
  std::string stopped_stage, reason, change;  // what stopped it, and what to change (cli/loop/advice.h)

  bool judged() const {
    return stopped_code == 3 || stopped_code == 4 || stopped_code == 6;
  }  // by a verdict, not by an error
};
// Newest first. Directories without a readable state are left out.
std::vector<EarlierRun> earlier_runs(const std::filesystem::path& work);

// The run that these inputs are to go on with: their own, or one of the same target and settings that was interrupted
// after its data stage (logs grow all the time: with the newest ones it would begin again each time). nullopt: a new
// one.
std::optional<std::string> run_to_continue(const std::vector<EarlierRun>& runs, const RunInputs& inputs);

// Why nothing is to be done now: a verdict on the same data (`exit_code` is its own; 4, inconclusive, only until the
// cooldown has passed), or a verdict on other data of the same target and settings less than `cooldown_s` ago (75).
struct Refusal {
  int exit_code = 0;
  std::string reason;
};
std::optional<Refusal> refusal(const std::vector<EarlierRun>& runs, const RunInputs& inputs, double cooldown_s,
                               int64_t now);

// Removes all but the newest `keep` runs, `current` among them whatever its age, and what was killed before it had a
// state.
void remove_old_runs(const std::filesystem::path& work, const std::string& current, int64_t keep);

}  // namespace specdec::cli
