#include "distill/study/comparison.h"

#include <gtest/gtest.h>

#include "base/log.h"
#include "tests/distill/project.h"

namespace specdec::distill {
namespace {

using namespace specdec::testing;

struct ComparisonProject : Project {
  std::map<std::string, DraftSpeed> speeds;  // what the fake measurement returns, by draft number ("1", "2", …)
  std::vector<std::string> measured;
  std::set<size_t> requests;
  ProgressFn progress;

  ComparisonProject() : Project(40, 150, toy_decoder(4, 1)) {
    options.compared = {"prune:1", "prune:3", "eagle3"};
    options.draft = options.compared.front();
    options.max_steps = 60;
    speeds["1"] = speed_of(0.1, {0.8, 0.75, 0.82, 0.78, 0.79, 0.8, 0.81, 0.77});
    speeds["2"] = speed_of(1.2, {0.98, 0.97, 0.98, 0.99, 0.98, 0.98, 0.97, 0.99});
    speeds["3"] = speed_of(0.1, {0.8, 0.74, 0.82, 0.78, 0.79, 0.8, 0.81, 0.77});
  }
  // Returns the measurements of a draft of cost `c` (time to draft one token, divided by that of a plain decoding
  // step), with one conversation per entry of `overlaps`. The entry is the conversation's acceptance Σ min(p, q) at
  // both draft positions.
  static DraftSpeed speed_of(double c, const std::vector<double>& overlaps) {
    DraftSpeed speed{0.01, c, {{1, 1.0}, {2, 1.05}}, {}};
    for (const double a : overlaps) speed.conversations.emplace_back().add_step(2, 2, {a, a});
    return speed;
  }
  DistillResult run() {
    const auto measure = [&](const fs::path& draft, const std::vector<std::string>& ids) {
      EXPECT_TRUE(fs::exists(draft / "model.safetensors")) << draft;
      measured.push_back(draft.parent_path().filename().string());
      requests.insert(ids.size());
      return speeds.at(measured.back().substr(0, 1));
    };
    return compare(options, {measure, clock, progress});
  }
};

TEST(Comparison, RanksBySpeedAndNotByAcceptance) {
  ComparisonProject f;
  const DistillResult r = f.run();
  const Json& j = r.json;
  EXPECT_EQ(j["schema"], "specdec.distill_comparison/1");
  EXPECT_EQ(Json::parse(get(f.scratch / "run/comparison.json")), j);
  EXPECT_EQ(f.measured, (std::vector<std::string>{"1-prune-1", "2-prune-3", "3-eagle3"}));
  EXPECT_EQ(f.requests, std::set<size_t>{20}) << "all kinds are measured on the same requests";
  ASSERT_EQ(j["drafts"].size(), 3u);
  // prune:3 has the highest acceptance but is not ranked first, because it costs more than the target.
  EXPECT_EQ(j["drafts"][0]["draft"], "prune:1");
  EXPECT_EQ(j["drafts"][1]["draft"], "eagle3");
  EXPECT_EQ(j["drafts"][2]["draft"], "prune:3");
  EXPECT_LT(j["drafts"][2]["speedup"].get<double>(), 1);
  EXPECT_GT(j["drafts"][2]["overlap"][0].get<double>(), j["drafts"][0]["overlap"][0].get<double>());
  EXPECT_FALSE(j["drafts"][0]["ties_with_first"]);
  EXPECT_TRUE(j["drafts"][1]["ties_with_first"]);
  EXPECT_FALSE(j["drafts"][2]["ties_with_first"]);
  EXPECT_NE(j["reason"].get<std::string>().find("not distinguishable from it: eagle3"), std::string::npos);
  for (const Json& d : j["drafts"]) {
    EXPECT_EQ(d["steps"], 20) << "each kind has its share of the steps";
    EXPECT_LE(d["ci"][0].get<double>(), d["speedup"].get<double>());
    EXPECT_GE(d["ci"][1].get<double>(), d["speedup"].get<double>());
    const Json run = Json::parse(get(f.scratch / "run" / d["path"].get<std::string>() / "result.json"));
    EXPECT_EQ(d["acceptance"]["value"], run["acceptance"]["after"]["value"]);
  }
  // The draft ranked third has two layers more than the first, so it must have more parameters.
  EXPECT_GT(j["drafts"][2]["parameters"].get<int64_t>(), j["drafts"][0]["parameters"].get<int64_t>());
  EXPECT_EQ(j["drafts"][0]["k"], 2);
  EXPECT_EQ(j["verdict"], "faster");
  EXPECT_EQ(r.exit_code, 0);
}

TEST(Comparison, TheCostsOfAnotherEngineDecide) {
  ComparisonProject f;
  f.options.max_steps = 9;
  f.options.costs = (f.scratch / "costs.json").string();
  f.progress = [](const Progress& p) { ADD_FAILURE() << p.stage; };
  const auto refused = [&](const std::string& text, const std::vector<std::string>& parts) {
    put(f.options.costs, text);
    expect_error(ErrorKind::kData, parts, [&] { f.run(); });
    EXPECT_FALSE(fs::exists(f.options.out));
  };
  const std::string head = R"({"schema":"specdec.costs/1","engine":"other","drafts":{)";
  const std::string cheap = R"({"draft_cost":0.01,"verify_cost":{"1":1.0,"2":1.0}})",
                    dear = R"({"draft_cost":0.9,"verify_cost":{"2":1.1}})";
  refused("{}", {"schema"});
  refused(head + R"("prune:1":)" + cheap + "}}", {"drafts: prune:3", "found none"});
  refused(head + R"("prune:1":{"draft_cost":-1,"verify_cost":{"1":1}}}})", {"prune:1", "draft_cost"});
  refused(head + R"("prune:1":{"draft_cost":1,"verify_cost":{}}}})", {"prune:1", "verify_cost"});
  for (const char* k : {"0", "x", "65", "-1", "01"})
    refused(head + R"("prune:1":{"draft_cost":1,"verify_cost":{")" + k + R"(":1}}}})", {"prune:1", "K from 1 to 64"});
  refused(head + R"("prune:1":{"draft_cost":1,"verify_cost":{"1":0}}}})", {"prune:1", "above 0"});
  f.progress = {};
  put(f.options.costs, head + R"("prune:1":)" + dear + R"(,"prune:3":)" + cheap + R"(,"eagle3":)" + dear + "}}");
  const Json j = f.run().json;
  EXPECT_EQ(j["drafts"][0]["draft"], "prune:3") << "measured here it is the slowest";
  EXPECT_EQ(j["drafts"][0]["draft_cost"], 0.01);
  EXPECT_EQ(j["drafts"][1]["k"], 2) << "the only K whose cost is known";
  EXPECT_EQ(j["engine"], "other");
  EXPECT_EQ(j["reason"].get<std::string>().rfind("with the costs of other: fastest: prune:3", 0), 0u) << j["reason"];
  put(f.options.costs, head + R"("prune:1":)" + dear + R"(,"prune:3":)" + dear + R"(,"eagle3":)" + dear + "}}");
  f.options.resume = true;
  expect_error(ErrorKind::kUsage, {"these differ: --costs ("}, [&] { f.run(); });
}

TEST(Comparison, ResumesWithoutTrainingAgain) {
  ComparisonProject f;
  std::vector<std::string> stages;
  f.progress = [&](const Progress& p) {
    if (p.stage.starts_with("comparison, prune:3")) request_stop();
  };
  EXPECT_EQ(in_child(nullptr, "", [&] { f.run(); }), 75);
  EXPECT_TRUE(fs::exists(f.scratch / "run/comparison/1-prune-1/result.json"));
  expect_error(ErrorKind::kUsage, {"has an earlier comparison", "--resume"}, [&] { f.run(); });
  f.options.resume = true;
  f.options.compared.pop_back();
  expect_error(ErrorKind::kUsage, {"these differ: --compare ("}, [&] { f.run(); });
  f.options.compared.push_back("eagle3");
  f.progress = [&](const Progress& p) { stages.push_back(p.stage); };
  const DistillResult r = f.run();
  for (const std::string& stage : stages) EXPECT_EQ(stage.find("prune:1"), std::string::npos) << stage;
  EXPECT_EQ(r.json["drafts"].size(), 3u);
  f.measured.clear();
  EXPECT_EQ(f.run().json, r.json);
  EXPECT_TRUE(f.measured.empty()) << "a finished comparison is returned as it is";
}

TEST(Comparison, RefusesAKindThatCannotBeTrainedBeforeAnyIsTrained) {
  ComparisonProject f;
  f.progress = [](const Progress& p) { ADD_FAILURE() << p.stage; };
  const auto refused = [&](const std::string& kind, const std::vector<std::string>& parts, ErrorKind error) {
    f.options.compared = {"prune:1", kind};
    expect_error(error, parts, [&] { f.run(); });
    EXPECT_FALSE(fs::exists(f.options.out));
  };
  refused("prune:9", {"prune:9", "4 layers"}, ErrorKind::kUsage);
  refused("config:" + (f.scratch / "none.json").string(), {"none.json"}, ErrorKind::kModel);
  model::DecoderConfig wide = toy_config(2);
  wide.vocab_size = 30;
  put(f.scratch / "wide/config.json", model::to_json(wide).dump());
  refused("model:" + (f.scratch / "wide").string(), {"wide", "found no model.safetensors"}, ErrorKind::kModel);
  put(f.scratch / "wide/model.safetensors", std::string("\2\0\0\0\0\0\0\0{}", 10));  // no tensors
  refused("model:" + (f.scratch / "wide").string(), {"vocab_size 30"}, ErrorKind::kModel);
  f.options.on_policy = 4;
  refused("eagle3", {"--on-policy"}, ErrorKind::kUsage);
  f.options.on_policy = 0;
}

TEST(Comparison, ASmallerModelThatHasChangedIsNoticed) {
  ComparisonProject f;
  fs::copy(f.scratch / "target", f.scratch / "small");
  f.options.compared = {"prune:1", "model:" + (f.scratch / "small").string()};
  f.options.max_steps = 8;
  f.run();
  f.options.resume = true;
  f.measured.clear();
  model::save_decoder(toy_decoder(4, 2), f.scratch / "small");
  expect_error(ErrorKind::kUsage, {"these differ: --draft model:", "/small (digest "}, [&] { f.run(); });
  // Removes the comparison's runs. The directory then has a training run and the result of a comparison with the former
  // model in `small`. This result must not be returned.
  fs::remove_all(f.scratch / "run/comparison");
  put(f.scratch / "run/run.json", R"({"schema":"specdec.distill_run/1"})");
  f.run();
  EXPECT_EQ(f.measured.size(), 2u);
}

TEST(Comparison, SaysThatNoKindIsFaster) {
  ComparisonProject f;
  f.options.compared = {"prune:1", "prune:3"};
  f.speeds["1"].draft_cost = 2;
  const DistillResult r = f.run();
  EXPECT_EQ(r.json["verdict"], "not_worth_it");
  EXPECT_EQ(r.exit_code, 6);
  EXPECT_FALSE(r.json.contains("next"));
}

TEST(Comparison, AnUnknownKindIsNamedFirst) {
  EXPECT_EQ(parse_compared("prune:1,eagle3,config:a/b.json"),
            (std::vector<std::string>{"prune:1", "eagle3", "config:a/b.json"}));
  expect_error(ErrorKind::kUsage, {"--compare", "found 'medusa'"}, [] { parse_compared("prune:1,medusa,eagle9"); });
  expect_error(ErrorKind::kUsage, {"--compare", "found ''"}, [] { parse_compared("prune:1,"); });
  expect_error(ErrorKind::kUsage, {"--compare", "twice"}, [] { parse_compared("prune:1,prune:1"); });
  expect_error(ErrorKind::kUsage, {"--compare", "at least two"}, [] { parse_compared("prune:1"); });
}

}  // namespace
}  // namespace specdec::distill
