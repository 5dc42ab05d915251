// Runs `monitor check` with flags that no other test covers: each flag must change the result.
#include <CLI/CLI.hpp>

#include "cli/command.h"
#include "tests/monitor/looped.h"

namespace specdec::cli {
namespace {

using specdec::testing::put;

class MonitorFlags : public monitor::Looped {
 protected:
  // Returns the JSON of `specdec --json monitor check` with these additional flags.
  Json look(const std::vector<std::string>& flags) {
    std::vector<std::string> words = {"monitor",   "check",
                                      "--package", options.package,
                                      "--source",  (dir / "log.jsonl").string(),
                                      "--state",   options.state.string()};
    words.insert(words.end(), flags.begin(), flags.end());
    std::reverse(words.begin(), words.end());  // CLI11 expects the arguments in reverse order
    CLI::App app{"", "specdec"};
    Global global;
    global.json = true;
    global.program = options.program;
    const EngineRunners runners;
    Cli cli{app, global, runners, {}};
    declare_commands(cli);
    app.parse(std::move(words));
    ::testing::internal::CaptureStdout();
    cli.selected();
    return Json::parse(::testing::internal::GetCapturedStdout());
  }
  // Works like look(), with a new state directory, so that earlier checks have no effect.
  Json look_anew(const std::vector<std::string>& flags) {
    options.state = dir / ("state-" + std::to_string(++states_));
    return look(flags);
  }

 private:
  int states_ = 0;
};

TEST_F(MonitorFlags, WanderWidensTheTolerance) {
  write_requests(200, 0.80, 0.60);
  const auto tolerance = [](const Json& result) { return result["evidence"]["strata"][0]["tolerance"].get<double>(); };
  EXPECT_LT(tolerance(look_anew({})), 0.1);
  EXPECT_NEAR(tolerance(look_anew({"--wander", "0.2"})), 0.3, 1e-9) << "1.5 standard deviations";
}

TEST_F(MonitorFlags, MinLossRefutesASmallDrop) {
  put(dir / "probe.json", probe(-0.1, -0.12, -0.08));
  drift();
  const std::string command = "cat '" + (dir / "probe.json").string() + "'";
  EXPECT_EQ(look_anew({"--probe", command})["state"], "CONFIRMED");
  EXPECT_EQ(look_anew({"--probe", command, "--min-loss", "0.15"})["state"], "HEALTHY");
}

TEST_F(MonitorFlags, MarginPromotesACandidateThatIsLittleWorse) {
  monitor::ToyAdmin admin;
  write_requests(200, 0.80, 0.60);
  make_candidate("c", 5);
  const std::vector<std::string> flags = {"--candidate", (dir / "store").string() + ":candidate", "--admin",
                                          admin.url()};
  EXPECT_EQ(look(flags)["state"], "CANARY");
  scores(admin, -0.08, 0.02);
  EXPECT_EQ(look(flags)["state"], "CANARY") << "it may lose more than the usual margin";
  std::vector<std::string> patient = flags;
  patient.insert(patient.end(), {"--margin", "0.1"});
  EXPECT_EQ(look(patient)["state"], "HEALTHY");
  EXPECT_EQ(admin.orders().back(), "promote");
}

// Without --full only samples of the weights are compared. The test changes the remembered digest instead of a byte of
// the weights.
TEST_F(MonitorFlags, FullComparesEveryByteOfTheTarget) {
  write_requests(200, 0.80, 0.60);
  const std::string target = (dir / ("store/packages/sha256-" + package) / "target").string();
  look({"--target", target});
  EXPECT_EQ(monitor::State(options.state).value("target_full"), "");
  EXPECT_NE(look({"--target", target, "--full"})["verdict"], "stale_target");
  {
    monitor::State state(options.state);
    Json memory = Json::parse(state.value("target_full"));
    memory["reference"] = std::string(64, 'c');
    state.set_value("target_full", memory.dump());
  }
  EXPECT_NE(look({"--target", target})["verdict"], "stale_target");
  EXPECT_EQ(look({"--target", target, "--full"})["verdict"], "stale_target");
}

}  // namespace
}  // namespace specdec::cli
