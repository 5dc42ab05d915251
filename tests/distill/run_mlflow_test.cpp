// What an MLflow server gets of a run, and what a run does without one.
#include <gtest/gtest.h>

#include "tests/distill/project.h"
#include "tests/net/toy_server.h"

namespace specdec::distill {
namespace {

using namespace specdec::testing;

TEST(Run, AMetricsServerGetsWhatTheFilesHave) {
  Project f;
  std::mutex mutex;
  std::map<std::string, size_t> values;
  std::vector<std::string> states;
  net::ToyServer server([&](const net::ToyRequest& r) -> net::ToyReply {
    if (r.path.find("get-by-name") != std::string::npos) return {200, R"({"experiment":{"experiment_id":"3"}})", ""};
    if (r.path.ends_with("runs/create")) return {200, R"({"run":{"info":{"run_id":"abc"}}})", ""};
    const Json body = Json::parse(r.body);
    const std::lock_guard lock(mutex);
    for (const Json& metric : body.value("metrics", Json::array())) ++values[metric.at("key").get<std::string>()];
    if (r.path.ends_with("runs/update")) states.push_back(body.at("status"));
    return {200, "{}", ""};
  });
  f.options.mlflow = server.url();
  EXPECT_EQ(f.run().exit_code, 0);
  const std::lock_guard lock(mutex);
  EXPECT_EQ(values["train/loss"], 120u);
  EXPECT_GE(values["held_out/acceptance"], 2u);
  EXPECT_EQ(values["verdict/acceptance_gain"], 1u);
  EXPECT_EQ(states, std::vector<std::string>{"FINISHED"});
}

TEST(Run, AMetricsServerThatIsDownChangesNothing) {
  Project f;
  f.options.mlflow = "http://127.0.0.1:1";
  f.options.max_steps = 12;
  const Json with = f.run().json;
  f.options.mlflow = "";
  f.options.out = (f.scratch / "other").string();
  EXPECT_EQ(with["acceptance"]["after"], f.run().json["acceptance"]["after"]);
  f.options.mlflow = "http://me:password@127.0.0.1:1";
  f.options.out = (f.scratch / "third").string();
  expect_error(ErrorKind::kUsage, {"--mlflow", "MLFLOW_TRACKING_TOKEN"}, [&] { f.run(); });
  EXPECT_FALSE(fs::exists(f.scratch / "third"));
}

}  // namespace
}  // namespace specdec::distill
