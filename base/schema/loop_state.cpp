#include "base/schema/loop_state.h"

#include "base/sha256.h"

namespace specdec {

namespace {

constexpr JsonNumbers kSeconds{0, 1e12, {}};
constexpr MapRule kFewStages{64};

void visit_result(Fields& f, Json& result) { f.json(defaulted("result"), result, {{"type", {"object", "null"}}}); }

}  // namespace

std::string LoopInputs::key() const {
  Sha256 hash;
  hash.update(target_id);
  for (const LoopLog& log : logs) hash.update(log.path + log.sha256);
  return hash.hex().substr(0, 12);
}

void visit_fields(Fields& f, LoopLog& log) {
  f("path", log.path);
  f("sha256", log.sha256);
}

void visit_fields(Fields& f, LoopInputs& inputs) {
  f("target", inputs.target);
  f("target_id", inputs.target_id);
  f(if_any("target_commit", "The commit of a hub name."), inputs.target_commit);
  f({"settings_sha256", "The digest of LOOP.toml."}, inputs.settings_sha256);
  f("logs", inputs.logs);
}

void visit_fields(Fields& f, LoopStage& stage) {
  f("seconds", stage.seconds, kSeconds);
  f("output", stage.output);
  visit_result(f, stage.result);
}

void visit_fields(Fields& f, LoopStop& stop) {
  f("stage", stop.stage);
  f("exit_code", stop.exit_code);
  f("seconds", stop.seconds, kSeconds);
  visit_result(f, stop.result);
  f(defaulted("reason"), stop.reason);
  f(defaulted("change", "What to change."), stop.change);
  f(defaulted("ran", "False: the stage was not started, because its end was certain."), stop.ran);
}

void visit_fields(Fields& f, LoopState& state) {
  f.type("LoopResult",
         "A run of the loop and its stages (state.json). A run that was not started has a reason and no stages.");
  visit_head(f, state.head, "loop", {});
  f("inputs", state.inputs);
  f("key", state.key);
  f(if_any("started_unix"), state.started_unix, kAnyCount);
  f(if_any("ended_unix"), state.ended_unix, kAnyCount);
  f(if_any("stages"), state.stages, kFewStages);
  f(if_any("begun", "The key of each stage that began."), state.begun, kFewStages);
  f(if_any("stopped", "The stage that stopped the run."), state.stopped);
  f(if_any("reason"), state.reason);
}

}  // namespace specdec
