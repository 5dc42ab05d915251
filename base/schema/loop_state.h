// state.json of a run of `specdec loop run` (schema "specdec.loop/1"): the stages that succeeded, and the verdict.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/fields.h"
#include "base/schema/result_head.h"

namespace specdec {

struct LoopLog {
  std::string path, sha256;
};
// The inputs of a run. key() is a digest of target_id and logs, and names the run. The settings are not part of it, but
// of the keys of the stages.
struct LoopInputs {
  std::string target, target_id, target_commit;  // as given; fingerprint; commit of a hub name ("" = none)
  std::string settings_sha256;                   // digest of the bytes of LOOP.toml
  std::vector<LoopLog> logs;
  std::string key() const;
};
void visit_fields(Fields& f, LoopInputs& inputs);

// A stage of a run that succeeded.
struct LoopStage {
  double seconds = 0;
  std::string output;
  Json result = nullptr;  // the JSON that the stage printed, null if it printed none
};
// The stage that stopped a run.
struct LoopStop {
  std::string stage;
  int exit_code = 0;
  double seconds = 0;
  Json result = nullptr;
  std::string reason, change;  // why it stopped, and what to change (cli/loop/advice.h)
  bool ran = true;             // false: not started, because its outcome was known before
};
struct LoopState {
  static constexpr int kVersion = 1;
  ResultHead head;  // the verdict is "running" until the run ends
  LoopInputs inputs;
  std::string key;
  std::optional<int64_t> started_unix, ended_unix;
  std::optional<std::map<std::string, LoopStage>> stages;  // none: no run was started
  std::map<std::string, std::string> begun;  // the key of each stage that began; empty in earlier versions
  std::optional<LoopStop> stopped;
  std::string reason;  // why no run was started
};
void visit_fields(Fields& f, LoopState& state);

}  // namespace specdec
