// Tests round trips, earlier versions and refusals of the results of doctor, the loop and distill.
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

TEST(DistillReport, RoundTripAndRefusals) {
  const Json json = json_of(testing::sample_distill());
  EXPECT_EQ(json["acceptance"]["difference"]["ci"], Json::array({0.15, nullptr}));
  check_schema(json, ErrorKind::kData,
               {"schema", "verdict", "started", "seconds", "tool_version", "inputs", "reason", "options", "data"},
               read<DistillReport>);
  const auto refused = [&](const char* reason, const std::function<void(Json&)>& change) {
    refuse(json, ErrorKind::kData, reason, change, read<DistillReport>);
  };
  refused("verdict: expected improved, no_significant_gain or inconclusive", [](Json& j) { j["verdict"] = "faster"; });
  refused("after: ci: expected [low, high]", [](Json& j) { j["acceptance"]["after"]["ci"] = {0.1}; });
  refused("rest: expected a number or null", [](Json& j) { j["acceptance"]["rest"] = "much"; });
  refused("by_position[0]: after: missing", [](Json& j) { j["acceptance"]["by_position"][0].erase("after"); });
  refused("training: selection: by: missing", [](Json& j) { j["training"]["selection"].erase("by"); });
  refused("training: steps", [](Json& j) { j["training"]["steps"] = 0.5; });
  refused("cost: device", [](Json& j) { j["cost"]["device"] = 1; });
  refused("draft: id", [](Json& j) { j["draft"].erase("id"); });
}

TEST(DistillReport, WithoutATargetItHasACrossEntropy) {
  const Json json = json_of(testing::sample_distill(false));
  EXPECT_FALSE(json.contains("acceptance"));
  EXPECT_FALSE(json["cross_entropy"]["after"].contains("greedy_agreement"));
  EXPECT_FALSE(json["cross_entropy"].contains("by_position"));
  EXPECT_EQ(read<DistillReport>(json), json);
}

TEST(DistillReport, NumbersThatAreNotFiniteAreNull) {
  const Json json = json_of(distill_figure({NAN, {-INFINITY, 1}, 3}));
  EXPECT_EQ(json.dump(), R"({"ci":[null,1.0],"value":null})");
  EXPECT_EQ(read<DistillFigure>(json), json);
}

// Reads results as they were written before they had a cost, the parts of the acceptance and the next command, and
// results of runs without data.
TEST(DistillReport, EarlierAndShortResultsAreRead) {
  Json json = json_of(testing::sample_distill());
  for (const char* key : {"cost", "next", "next_reason", "draft_vocab"}) json.erase(key);
  for (const char* key : {"rest", "certain", "by_position", "by_domain"}) json["acceptance"].erase(key);
  for (const char* key : {"chosen", "layers", "deeper_acceptance"}) json["training"].erase(key);
  const DistillReport earlier = read_fields<DistillReport>(json, "result.json");
  EXPECT_FALSE(earlier.cost || earlier.scores->certain);
  EXPECT_TRUE(earlier.scores->by_acceptance && earlier.scores->by_position.empty() && earlier.next.empty());
  for (const char* key : {"acceptance", "training", "draft"}) json.erase(key);
  const DistillReport without = read_fields<DistillReport>(json, "result.json");
  EXPECT_FALSE(without.scores || without.training || without.draft);
}

TEST(ForecastReport, RoundTripAndRefusals) {
  const Json json = json_of(testing::sample_forecast());
  check_schema(json, ErrorKind::kData,
               {"schema", "verdict", "started", "seconds", "tool_version", "inputs", "reason", "options", "samples",
                "conversations", "level", "run", "next_reason"},
               read<ForecastReport>);
  const auto refused = [&](const char* reason, const std::function<void(Json&)>& change) {
    refuse(json, ErrorKind::kData, reason, change, read<ForecastReport>);
  };
  refused("verdict: expected improved", [](Json& j) { j["verdict"] = "pass"; });
  refused("samples[1]: ci: expected [low, high]", [](Json& j) { j["samples"][1]["ci"] = 1; });
  refused("run: gain: missing", [](Json& j) { j["run"].erase("gain"); });
  refused("curve: limit", [](Json& j) { j["curve"]["limit"] = "x"; });
  refused("speed: costs: expected measured", [](Json& j) { j["speed"]["costs"] = "guessed"; });
  refused("verify_cost: expected positive integers", [](Json& j) { j["speed"]["verify_cost"] = {{"x", 1}}; });
}

TEST(ForecastReport, FiguresThatAreNotKnownAreAbsent) {
  ForecastReport r = testing::sample_forecast();
  r.speed = {0.1, {{1, 1.0}}, 0.01, 40, {1, 1.5, 1.2}};
  r.curve.reset();
  r.before.reset();
  r.next = "";
  const Json json = json_of(r);
  for (const char* key : {"k", "length", "speedup", "ci", "break_even_tokens"})
    EXPECT_FALSE(json["speed"].contains(key)) << key;
  EXPECT_FALSE(json.contains("curve") || json.contains("next"));
  EXPECT_TRUE(json["before"].is_null());
  EXPECT_EQ(read<ForecastReport>(json), json);
}

TEST(ComparisonReport, RoundTripAndRefusals) {
  const Json json = json_of(testing::sample_comparison());
  check_schema(json, ErrorKind::kData,
               {"schema", "verdict", "started", "seconds", "tool_version", "inputs", "reason", "options", "drafts",
                "level", "next_reason"},
               read<ComparisonReport>);
  const auto refused = [&](const char* reason, const std::function<void(Json&)>& change) {
    refuse(json, ErrorKind::kData, reason, change, read<ComparisonReport>);
  };
  refused("verdict: expected faster or not_worth_it", [](Json& j) { j["verdict"] = "improved"; });
  refused("drafts[0]: k", [](Json& j) { j["drafts"][0]["k"] = -1; });
  refused("drafts[0]: ci: expected [low, high]", [](Json& j) { j["drafts"][0]["ci"] = {2, 1}; });
  refused("drafts[0]: ties_with_first", [](Json& j) { j["drafts"][0].erase("ties_with_first"); });
}

}  // namespace
}  // namespace specdec
