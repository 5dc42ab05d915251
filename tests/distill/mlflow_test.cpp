#include "distill/metrics/mlflow.h"

#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <limits>
#include <mutex>

#include "base/file.h"
#include "base/log.h"
#include "tests/base/scratch.h"
#include "tests/net/toy_server.h"

namespace specdec::distill {
namespace {

using net::ToyReply;
using net::ToyRequest;
using net::ToyServer;

// A tracking server that knows no experiment yet, and keeps what it was asked.
class TrackingServer {
 public:
  std::string url() const { return server_.url(); }
  // The bodies of the requests to a path, in their order.
  std::vector<Json> bodies(const std::string& path) {
    const std::lock_guard lock(mutex_);
    std::vector<Json> out;
    for (const auto& [asked, body] : asked_)
      if (asked == path) out.push_back(body);
    return out;
  }
  std::string head() {
    const std::lock_guard lock(mutex_);
    return head_;
  }
  std::atomic<int> broken{0};  // that many requests fail
  std::atomic<int> requests{0};

 private:
  ToyReply handle(const ToyRequest& r) {
    ++requests;
    if (broken > 0) {
      --broken;
      return {503, "", ""};
    }
    const std::lock_guard lock(mutex_);
    head_ = r.head;
    const std::string prefix = "/api/2.0/mlflow/", path = r.path.substr(prefix.size());
    EXPECT_TRUE(r.path.starts_with(prefix)) << r.path;
    if (path.starts_with("experiments/get-by-name")) {
      EXPECT_EQ(path, "experiments/get-by-name?experiment_name=my%20drafts");
      return {404, R"({"error_code":"RESOURCE_DOES_NOT_EXIST"})", ""};
    }
    asked_.emplace_back(path, Json::parse(r.body));
    if (path == "experiments/create") return {200, R"({"experiment_id":"7"})", ""};
    if (path == "runs/create") return {200, R"({"run":{"info":{"run_id":"abc","status":"RUNNING"},"data":{}}})", ""};
    return {200, "{}", ""};
  }
  std::mutex mutex_;
  std::vector<std::pair<std::string, Json>> asked_;
  std::string head_;
  ToyServer server_{[this](const ToyRequest& r) { return handle(r); }};
};

class MlflowTest : public ::testing::Test {
 protected:
  void SetUp() override {
    set_log_sink([this](LogLevel level, const std::string& text) {
      const std::lock_guard lock(mutex_);
      if (level == LogLevel::kWarn) warnings_.push_back(text);
    });
  }
  void TearDown() override { set_log_sink({}); }
  MlflowOptions options() {
    MlflowOptions o;
    o.uri = server_.url();
    o.experiment = "my drafts";
    o.run_name = "run";
    o.run_file = dir_ / "mlflow.json";
    o.params = {{"loss", "kl"}, {"draft", "prune:2"}};
    o.retry_s = 0.01;
    return o;
  }
  std::vector<std::string> warnings() {
    const std::lock_guard lock(mutex_);
    return warnings_;
  }

  testing::Scratch dir_;
  TrackingServer server_;
  std::mutex mutex_;
  std::vector<std::string> warnings_;
};

TEST_F(MlflowTest, ARunIsMadeFilledAndFinished) {
  {
    MlflowRun run(options());
    run.take(1700000000, 1, {{"train/loss", 2.5}, {"train/acceptance", 0.25}});
    run.take(1700000001, 2, {{"train/loss", 2.0}, {"train/gradient_norm", std::numeric_limits<double>::infinity()}});
    run.finish(1700000009, {{"verdict", "improved"}});
  }
  EXPECT_EQ(server_.bodies("experiments/create"), (std::vector<Json>{{{"name", "my drafts"}}}));
  const std::vector<Json> made = server_.bodies("runs/create");
  ASSERT_EQ(made.size(), 1u);
  EXPECT_EQ(made[0]["experiment_id"], "7");
  EXPECT_EQ(made[0]["run_name"], "run");
  EXPECT_EQ(made[0]["start_time"], 1700000000000);
  Json params, metrics = Json::array(), tags;
  for (const Json& batch : server_.bodies("runs/log-batch")) {
    EXPECT_EQ(batch["run_id"], "abc");
    if (batch.contains("params")) params = batch["params"];
    if (batch.contains("tags")) tags = batch["tags"];
    for (const Json& metric : batch.value("metrics", Json::array())) metrics.push_back(metric);
  }
  EXPECT_EQ(params, Json::parse(R"([{"key":"loss","value":"kl"},{"key":"draft","value":"prune:2"}])"));
  EXPECT_EQ(metrics, Json::parse(R"([{"key":"train/loss","value":2.5,"timestamp":1700000000000,"step":1},
      {"key":"train/acceptance","value":0.25,"timestamp":1700000000000,"step":1},
      {"key":"train/loss","value":2.0,"timestamp":1700000001000,"step":2}])"))
      << "a value that is not finite has no place in JSON";
  EXPECT_EQ(tags, Json::parse(R"([{"key":"verdict","value":"improved"}])"));
  EXPECT_EQ(server_.bodies("runs/update"),
            (std::vector<Json>{{{"run_id", "abc"}, {"status", "FINISHED"}, {"end_time", 1700000009000}}}));
  EXPECT_TRUE(warnings().empty());
}

TEST_F(MlflowTest, AResumedRunGoesOnInTheSameRun) {
  {
    MlflowRun(options()).take(1700000000, 1, {{"train/loss", 2.5}});
  }
  EXPECT_EQ(server_.bodies("runs/update").back()["status"], "FAILED") << "nobody finished it";
  {
    MlflowRun run(options());
    run.take(1700000005, 2, {{"train/loss", 2}});
    run.finish(1700000006, {});
  }
  EXPECT_EQ(server_.bodies("runs/create").size(), 1u);
  std::vector<std::string> states;
  for (const Json& update : server_.bodies("runs/update")) states.push_back(update["status"]);
  EXPECT_EQ(states, (std::vector<std::string>{"FAILED", "RUNNING", "FINISHED"}));
}

TEST_F(MlflowTest, ALongRunIsSentInPieces) {
  {
    MlflowRun run(options());
    for (int step = 0; step < 2500; ++step) run.take(1700000000, step, {{"train/loss", 1}});
    run.finish(1700000001, {});
  }
  size_t metrics = 0;
  for (const Json& batch : server_.bodies("runs/log-batch")) {
    EXPECT_LE(batch.value("metrics", Json::array()).size(), 1000u);
    metrics += batch.value("metrics", Json::array()).size();
  }
  EXPECT_EQ(metrics, 2500u);
}

TEST_F(MlflowTest, AServerThatFailsForAWhileGetsEverythingLater) {
  server_.broken = 3;
  {
    MlflowRun run(options());
    int64_t step = 1;
    run.take(1700000000, step, {{"train/loss", 2.5}});
    while (server_.broken > 0) std::this_thread::yield();
    // A value that arrives alone shows that those before it were acknowledged. While one fails, finish() gives up.
    for (Json sent; sent.size() != 1 || sent[0]["step"] != step;) {
      const size_t before = server_.bodies("runs/log-batch").size();
      run.take(1700000000, ++step, {{"train/loss", 2.5}});
      while (server_.bodies("runs/log-batch").size() == before) std::this_thread::yield();
      sent = server_.bodies("runs/log-batch").back()["metrics"];
    }
    run.finish(1700000001, {});
  }
  EXPECT_EQ(server_.bodies("runs/log-batch").back()["metrics"].size(), 1u);
  ASSERT_EQ(warnings().size(), 1u) << "not one for each attempt";
  EXPECT_NE(warnings()[0].find("HTTP 503"), std::string::npos) << warnings()[0];
}

TEST_F(MlflowTest, AServerThatIsGoneCostsAWarningAndNothingElse) {
  MlflowOptions o = options();
  o.uri = "http://127.0.0.1:1";
  o.queue_points = 100;
  {
    MlflowRun run(o);
    for (int step = 0; step < 1000; ++step) run.take(1700000000, step, {{"train/loss", 1}});
    while (warnings().empty()) std::this_thread::yield();
    run.finish(1700000001, {});
  }
  ASSERT_EQ(warnings().size(), 2u);
  EXPECT_NE(warnings()[1].find("1000 values did not arrive"), std::string::npos) << warnings()[1];
  EXPECT_FALSE(std::filesystem::exists(o.run_file));
}

TEST_F(MlflowTest, AServerThatAnswersNonsenseCostsAWarning) {
  for (const char* body : {"", "[]", "nonsense", R"({"experiment":7})", R"({"experiment":{}})"}) {
    ToyServer nonsense([&](const ToyRequest&) -> ToyReply { return {200, body, ""}; });
    MlflowOptions o = options();
    o.uri = nonsense.url();
    MlflowRun(o).finish(1700000001, {});
    EXPECT_FALSE(warnings().empty()) << body;
  }
}

TEST_F(MlflowTest, SecretsComeFromTheEnvironmentAndStayWithTheServer) {
  ::setenv("MLFLOW_TRACKING_TOKEN", "sekret", 1);
  MlflowOptions o = options();
  complete(o);
  MlflowRun(o).finish(1700000001, {});
  EXPECT_NE(server_.head().find("Authorization: Bearer sekret"), std::string::npos);
  o.uri = "http://tracking.example:5000";
  EXPECT_THROW(complete(o), Error) << "plain http to another machine";
  ::unsetenv("MLFLOW_TRACKING_TOKEN");
  ::setenv("MLFLOW_TRACKING_USERNAME", "me", 1);
  ::setenv("MLFLOW_TRACKING_PASSWORD", "p@ss", 1);
  o = options();
  o.run_file = dir_ / "other.json";
  complete(o);
  MlflowRun(o).finish(1700000001, {});
  EXPECT_NE(server_.head().find("Authorization: Basic bWU6cEBzcw=="), std::string::npos) << server_.head();
  ::unsetenv("MLFLOW_TRACKING_USERNAME");
  ::unsetenv("MLFLOW_TRACKING_PASSWORD");
  o.uri = "http://me:sekret@127.0.0.1";
  try {
    complete(o);
    FAIL() << "accepted";
  } catch (const Error& e) {
    EXPECT_EQ(std::string(e.what()).find("sekret"), std::string::npos) << e.what();
  }
}

}  // namespace
}  // namespace specdec::distill
