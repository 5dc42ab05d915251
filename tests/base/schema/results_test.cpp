// Tests round trips, earlier versions and refusals of the results of doctor and the loop.
#include "tests/base/sample_results.h"
#include "tests/base/schema/schema_checks.h"
#include "tests/base/scratch.h"

namespace specdec {
namespace {

using testing::check_schema;
using testing::refuse;

template <class T>
Json read(const Json& json) {
  return json_of(read_fields<T>(json, "file"));
}

TEST(GpuChecks, RoundTripAndRefusals) {
  const Json json = json_of(testing::sample_gpus());
  EXPECT_EQ(read<GpuChecks>(json), json);
  refuse(json, ErrorKind::kData, "none: missing", [](Json& j) { j.erase("none"); }, read<GpuChecks>);
  refuse(json, ErrorKind::kData, "gpus[0]: cases", [](Json& j) { j["gpus"][0]["cases"] = -1; }, read<GpuChecks>);
  refuse(
      json, ErrorKind::kData, "faults[0]: what: missing", [](Json& j) { j["gpus"][0]["faults"][0].erase("what"); },
      read<GpuChecks>);
}

TEST(LoopState, RoundTripAndRefusals) {
  const Json json = json_of(testing::sample_loop());
  check_schema(json, ErrorKind::kData, {"schema", "verdict", "started", "seconds", "tool_version", "inputs", "key"},
               read<LoopState>);
  refuse(json, ErrorKind::kData, "stages", [](Json& j) { j["stages"] = 1; }, read<LoopState>);
  refuse(
      json, ErrorKind::kData, "stages: data: seconds", [](Json& j) { j["stages"]["data"]["seconds"] = -1; },
      read<LoopState>);
  refuse(json, ErrorKind::kData, "exit_code", [](Json& j) { j["stopped"]["exit_code"] = "3"; }, read<LoopState>);
  refuse(
      json, ErrorKind::kData, "inputs: target_id: missing", [](Json& j) { j["inputs"].erase("target_id"); },
      read<LoopState>);
}

TEST(LoopState, ARunThatWasNotStartedHasNoStages) {
  LoopState state;
  state.reason = "the cooldown has not passed";
  const Json json = json_of(state);
  EXPECT_FALSE(json.contains("stages") || json.contains("started_unix") || json.contains("stopped")) << json;
  state.stages.emplace();
  EXPECT_EQ(json_of(state).at("stages"), Json::object()) << "a run that was started has them, even if none is done";
}

// States of earlier versions have no keys of stages, and no reason, change and ran of the stage that stopped them.
TEST(LoopState, EarlierStatesAreRead) {
  Json json = json_of(testing::sample_loop());
  json.erase("begun");
  for (const char* key : {"reason", "change", "ran"}) json["stopped"].erase(key);
  const LoopState state = read_fields<LoopState>(json, "state.json");
  EXPECT_TRUE(state.begun.empty());
  EXPECT_TRUE(state.stopped->ran);
  EXPECT_EQ(state.stopped->change, "");
}

}  // namespace
}  // namespace specdec
