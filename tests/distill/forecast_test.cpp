#include "distill/study/forecast.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/log.h"
#include "distill/run/setup.h"
#include "tests/distill/project.h"
#include "tests/distill/toy.h"

namespace specdec::distill {
namespace {

using namespace specdec::testing;

struct ForecastProject : Project {
  DraftSpeed speed;  // the result of the fake speed measurement
  int measured = 0;
  std::vector<std::string> ids;
  ProgressFn progress;

  explicit ForecastProject(size_t holdout = 80) : Project(holdout, 240) {
    options.max_steps = 160;
    options.forecast.wanted = true;
    options.forecast.samples = {15, 60, 120};
    speed = {0.01, 0.1, {{1, 1.0}, {2, 1.1}, {3, 1.2}}, {}};
    AcceptanceCounts counts;
    counts.add_step(3, 3, {0.9, 0.9, 0.9});
    speed.conversations = {counts};
  }
  DistillResult run() {
    const auto measure = [&](const fs::path& draft, const std::vector<std::string>& judged) {
      EXPECT_TRUE(fs::exists(draft / "model.safetensors")) << draft;
      ++measured;
      ids = judged;
      return speed;
    };
    return forecast(options, {measure, clock, progress});
  }
};

TEST(Forecast, ForecastsTheWholeRunFromSamples) {
  ForecastProject f;
  const DistillResult r = f.run();
  const Json& j = r.json;
  EXPECT_EQ(j["schema"], "specdec.distill_forecast/1");
  EXPECT_EQ(Json::parse(get(f.scratch / "run/forecast.json")), j);
  ASSERT_EQ(j["samples"].size(), 3u);
  EXPECT_EQ(j["samples"][0]["rows"], 15);
  EXPECT_EQ(j["samples"][0]["steps"], 10) << "a sample has its share of the steps";
  EXPECT_EQ(j["samples"][2]["steps"], 80);
  EXPECT_EQ(j["conversations"], 40);
  EXPECT_EQ(f.ids.size(), 40u);
  EXPECT_EQ(j["run"]["rows"], 240);
  EXPECT_DOUBLE_EQ(j["run"]["extrapolation"], 2);
  EXPECT_FALSE(j["run"]["far"]);
  const Json last = Json::parse(get(f.scratch / "run/forecast/120/result.json"));
  EXPECT_NEAR(j["samples"][2]["value"].get<double>(), last["acceptance"]["after"]["value"].get<double>(), 1e-9);
  EXPECT_NEAR(j["before"].get<double>(), last["acceptance"]["before"]["value"].get<double>(), 1e-9);
  EXPECT_NEAR(j["run"]["tokens"].get<double>(), last["training"]["tokens"].get<double>() * 2, 1);
  EXPECT_GT(j["run"]["seconds"].get<double>(), 0);
  ASSERT_TRUE(j.contains("curve")) << j["reason"];
  EXPECT_EQ(j["verdict"], "improved") << j["reason"];
  EXPECT_EQ(r.exit_code, 0);
  // The forecast has the measured cost, and predicts at least the speed-up of the largest sample's draft.
  EXPECT_EQ(j["speed"]["draft_cost"], 0.1);
  EXPECT_GE(j["speed"]["speedup"].get<double>(), j["speed"]["sample"]["speedup"].get<double>());
  EXPECT_NEAR(j["speed"]["break_even_tokens"]["value"].get<double>(),
              std::ceil(tokens_to_pay_back(j["run"]["seconds"], 0.01, j["speed"]["speedup"])), 1);
  EXPECT_NE(j["next"].get<std::string>().find("--max-steps 160"), std::string::npos);

  // Now makes the whole run in the same directory; its acceptance must lie in the forecast interval.
  f.options.forecast = {};
  const DistillResult whole = distill::run(f.options, {}, f.clock);
  const double reached = whole.json["acceptance"]["after"]["value"];
  EXPECT_GE(reached, j["run"]["acceptance"]["ci"][0].get<double>() - 0.02);
  EXPECT_LE(reached, j["run"]["acceptance"]["ci"][1].get<double>() + 0.02);
  EXPECT_TRUE(fs::exists(f.scratch / "run/forecast.json"));
}

TEST(Forecast, DoesNotTrainFinishedSamplesAgain) {
  ForecastProject f;
  std::vector<std::string> stages;
  f.progress = [&](const Progress& p) {
    stages.push_back(p.stage);
    if (p.stage == "forecast, sample 2 of 3") request_stop();
  };
  EXPECT_EQ(in_child(nullptr, "", [&] { f.run(); }), 75);
  EXPECT_TRUE(fs::exists(f.scratch / "run/forecast/15/result.json"));
  EXPECT_FALSE(fs::exists(f.scratch / "run/forecast/60/result.json"));
  EXPECT_FALSE(fs::exists(f.scratch / "run/forecast.json"));
  expect_error(ErrorKind::kUsage, {"has an earlier forecast", "--resume"}, [&] { f.run(); });
  f.options.resume = true;
  f.options.max_steps = 161;
  expect_error(ErrorKind::kUsage, {"these differ: --max-steps (160 then, 161 now)"}, [&] { f.run(); });
  f.options.max_steps = 160;
  stages.clear();
  f.progress = [&](const Progress& p) { stages.push_back(p.stage); };
  const DistillResult r = f.run();
  for (const std::string& stage : stages) EXPECT_EQ(stage.find("sample 1 of 3"), std::string::npos) << stage;
  EXPECT_EQ(r.json["samples"].size(), 3u);
  EXPECT_EQ(f.measured, 1);
  // A finished forecast is returned unchanged.
  EXPECT_EQ(f.run().json, r.json);
  EXPECT_EQ(f.measured, 1);
}

TEST(Forecast, SaysWhenNothingCanBeForecast) {
  ForecastProject few(10);
  DistillResult r = few.run();
  EXPECT_EQ(r.exit_code, 4);
  EXPECT_NE(r.json["reason"].get<std::string>().find("held-out conversations"), std::string::npos) << r.json["reason"];
  EXPECT_TRUE(r.json["run"]["acceptance"]["value"].is_null());
  EXPECT_EQ(r.json["run"]["acceptance"]["ci"][1], 1);
  EXPECT_FALSE(r.json["speed"].contains("speedup"));
  EXPECT_FALSE(r.json.contains("next"));

  ForecastProject slow;
  slow.speed.draft_cost = 3;
  r = slow.run();
  EXPECT_EQ(r.exit_code, 6) << r.json["reason"];
  EXPECT_EQ(r.json["verdict"], "not_worth_it");
  EXPECT_TRUE(r.json["speed"]["break_even_tokens"]["value"].is_null());
}

TEST(Forecast, RefusesBeforeAnyWork) {
  ForecastProject f;
  f.options.forecast.samples = {15, 241};
  expect_error(ErrorKind::kUsage, {"--forecast-samples", "240 training rows", "241"}, [&] { f.run(); });
  f.options.forecast.samples = {0, 15};
  expect_error(ErrorKind::kUsage, {"--forecast-samples", "found 0"}, [&] { f.run(); });
  f.options.forecast.samples = {15, 60};
  f.options.draft = "prune:9";
  expect_error(ErrorKind::kUsage, {"prune:9"}, [&] { f.run(); });
  EXPECT_FALSE(fs::exists(f.scratch / "run")) << "a failed forecast leaves nothing";
  f.options.draft = "prune:2";
  f.options.loss = "ce";
  fs::remove(f.scratch / "target/model.safetensors");
  expect_error(ErrorKind::kUsage, {"--forecast", "no weights"}, [&] { f.run(); });
}

TEST(Forecast, SamplesAreNested) {
  const std::vector<TokenRow> rows = toy_rows(100, 3);
  const auto names = [](const std::vector<TokenRow>& sample) {
    std::set<std::string> out;
    for (const TokenRow& row : sample) out.insert(row.id);
    return out;
  };
  const auto small = names(sample_rows(rows, 0.05, 7)), large = names(sample_rows(rows, 0.3, 7));
  EXPECT_EQ(small.size(), 5u);
  EXPECT_EQ(large.size(), 30u);
  for (const std::string& name : small) EXPECT_TRUE(large.count(name)) << name;
  EXPECT_NE(names(sample_rows(rows, 0.05, 8)), small);
  EXPECT_EQ(sample_rows(rows, 1, 7).size(), 100u);
  EXPECT_EQ(sample_rows(rows, 1e-9, 7).size(), 1u);
}

}  // namespace
}  // namespace specdec::distill
