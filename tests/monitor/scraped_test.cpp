// Tests checks whose only source is a /metrics page.
#include <gtest/gtest.h>

#include "monitor/statistics/counter_chart.h"
#include "tests/monitor/loopback.h"
#include "tests/monitor/monitored.h"

namespace specdec::monitor {
namespace {

using specdec::testing::expect_error;
using specdec::testing::get;

class Scraped : public Monitored {
 protected:
  Scraped() { options.sources = {server.url()}; }

  // Adds `steps` steps with K = 1 at mean overlap `overlap` to the page's counters, and makes a check.
  CheckResult scrape(double steps, double overlap, const std::string& info = "") {
    drafts += steps;
    sum += steps * overlap;
    generated += steps * (1 + overlap);
    server.page(page(info));
    return look();
  }
  std::string page(const std::string& info) const {
    const auto line = [](const std::string& name, double value) {
      return "specdec:" + name + " " + std::to_string(value) + "\n";
    };
    return line("spec_decode_num_drafts_total", drafts) + line("spec_decode_num_draft_tokens_total", drafts) +
           line("spec_decode_num_accepted_tokens_total", sum) +
           line("spec_decode_num_accepted_tokens_per_pos_total{position=\"0\"}", sum) +
           line("spec_decode_num_reached_tokens_per_pos_total{position=\"0\"}", drafts) +
           line("spec_decode_overlap_sum_per_pos_total{position=\"0\"}", sum) +
           line("generation_tokens_total", generated) + info;
  }
  // Adds 1,000 steps with K = 1 at mean overlap `overlap` to a vLLM page, makes a check, and returns the verdict.
  Verdict vllm(double overlap) {
    drafts += 1000;
    sum += 1000 * overlap;
    const auto line = [](const std::string& name, double value) {
      return "vllm:spec_decode_num_" + name + " " + std::to_string(value) + "\n";
    };
    server.page(line("drafts_total", drafts) + line("draft_tokens_total", drafts) +
                line("accepted_tokens_per_pos_total{position=\"0\"}", sum));
    return look().verdict;
  }
  double noisy(double mean) { return mean + 0.01 * traffic.normal(); }

  Loopback server;
  double drafts = 0, sum = 0, generated = 0;
};

TEST_F(Scraped, CountersDecideWithTheirOwnSpread) {
  scrape(1000, 0.7);  // the first scrape is only subtracted from the next
  for (int i = 0; i < 40; ++i) {
    const CheckResult r = scrape(1000, noisy(0.70));
    EXPECT_EQ(r.verdict, i < CounterChart::kPhaseOne - 1 ? Verdict::kInconclusive : Verdict::kHealthy)
        << i << ": " << r.reason;
  }
  int scrapes = 0;
  CheckResult r;
  do r = scrape(1000, noisy(0.64));
  while (r.verdict == Verdict::kHealthy && ++scrapes < 30);
  EXPECT_EQ(r.verdict, Verdict::kDrift);
  EXPECT_LT(scrapes, 8);
  EXPECT_NE(r.reason.find(server.url()), std::string::npos) << r.reason;
  EXPECT_EQ(scrape(1000, 0.75).verdict, Verdict::kDrift) << "an alarm is kept";
}

TEST_F(Scraped, ADeadDraftIsSeenAtOnce) {
  scrape(1000, 0.7);
  const CheckResult r = scrape(1000, 0.01);
  EXPECT_EQ(r.verdict, Verdict::kDrift);
  EXPECT_NE(r.reason.find("dead"), std::string::npos) << r.reason;
}

// An alarm raised by the counters of a page stays in later checks in which the page gives no usable counters, for
// whatever reason.
TEST_F(Scraped, AnAlarmByCountersStaysWhenNoPageGivesThem) {
  write_requests(100, 0.80, 0.60);
  options.sources = {dir / "log.jsonl", server.url()};
  scrape(1000, 0.7);
  CheckResult r = scrape(1000, 0.01);
  EXPECT_EQ(r.verdict, Verdict::kDrift) << r.reason;
  const auto still = [&](const std::string& why, const std::function<void()>& change) {
    change();
    r = look();
    EXPECT_EQ(r.verdict, Verdict::kDrift) << why << ": " << r.reason;
    EXPECT_EQ(r.exit_code, 3) << why;
    EXPECT_EQ(r.json["state"], "SUSPECT") << why;
    EXPECT_NE(r.reason.find("dead"), std::string::npos) << why << ": " << r.reason;
    EXPECT_EQ(r.json["evidence"]["counter_alarms"].size(), 1u) << why;
    EXPECT_TRUE(r.json["transitions"].empty()) << why << ": " << r.json["transitions"];
  };
  const std::string pair = "specdec:info{draft=\"beef\",target=\"" + target_id.substr(0, 12) + "\"} 1\n";
  still("it does not answer", [&] { server.page("", 503); });
  still("it has no series of speculation", [&] { server.page("specdec:generation_tokens_total 5\n"); });
  still("it names another pair", [&] { server.page(page(pair)); });
  still("it is another engine's", [&] { server.page("vllm:spec_decode_num_drafts_total 5\n"); });
  still("it is not given any more", [&] { options.sources = {dir / "log.jsonl"}; });
  still("nor anything else", [&] { options.sources.clear(); });
  options.acknowledge = true;
  EXPECT_EQ(look().verdict, Verdict::kInconclusive);
}

TEST_F(Scraped, ARestartOfTheServerIsNoDrop) {
  for (int i = 0; i < 15; ++i) scrape(1000, noisy(0.70));
  drafts = sum = generated = 0;
  for (int i = 0; i < 15; ++i) EXPECT_EQ(scrape(800, noisy(0.70)).verdict, Verdict::kHealthy);
}

// If the page's only pod gets a new name, its earlier counts are not judged, but later counts are.
TEST_F(Scraped, ARenamedPodIsSaidAndJudgedFromThenOn) {
  const auto pod = [&](const std::string& name, int steps, int accepted) {
    const auto line = [&](const std::string& series, const std::string& labels, int value) {
      return "vllm:spec_decode_num_" + series + "{pod=\"" + name + "\"" + labels + "} " + std::to_string(value) + "\n";
    };
    server.page(line("drafts_total", "", steps) + line("draft_tokens_total", "", steps) +
                line("accepted_tokens_per_pos_total", ",position=\"0\"", accepted));
    return look();
  };
  pod("a-1", 1000, 700);
  CheckResult r = pod("b-2", 1400, 14);
  EXPECT_NE(r.verdict, Verdict::kDrift) << r.reason;
  EXPECT_NE(r.json["evidence"]["notes"].dump().find("b-2"), std::string::npos) << r.json["evidence"]["notes"];
  r = pod("b-2", 2400, 24);
  EXPECT_EQ(r.verdict, Verdict::kDrift) << "1 % is accepted: " << r.reason;
  EXPECT_EQ(r.json["evidence"]["notes"].dump().find("b-2"), std::string::npos) << "said once";
}

TEST_F(Scraped, SmallBucketsGrowUntilTheyCanBeJudged) {
  scrape(1000, 0.7);
  for (int i = 0; i < 300; ++i) scrape(10, 0.02);  // 10 steps per scrape: 5 scrapes are needed to judge once
  EXPECT_EQ(look().verdict, Verdict::kDrift);
}

TEST_F(Scraped, AbsentSeriesAndSilentSpeculationAreSaid) {
  server.page("specdec:generation_tokens_total 5\n");
  CheckResult r = look();
  EXPECT_EQ(r.verdict, Verdict::kInconclusive) << "a monitor that has nothing to read must not look alive";
  EXPECT_EQ(r.exit_code, 4);
  EXPECT_NE(r.reason.find("absent is not zero"), std::string::npos) << r.reason;
  scrape(1000, 0.7);
  server.page("specdec:generation_tokens_total 5\n");
  r = look();
  EXPECT_EQ(r.verdict, Verdict::kInconclusive) << "nothing was judged yet";
  EXPECT_NE(r.reason.find("absent is not zero"), std::string::npos) << r.reason;
  for (int i = 0; i < 12; ++i) scrape(1000, noisy(0.7));
  server.page("specdec:generation_tokens_total 5\n");
  r = look();
  EXPECT_EQ(r.verdict, Verdict::kWarn) << "there were series before";
  EXPECT_NE(r.reason.find("absent is not zero"), std::string::npos) << r.reason;
  generated += 5000;
  r = scrape(0, 0);
  EXPECT_EQ(r.verdict, Verdict::kWarn);
  EXPECT_NE(r.reason.find("none drafted"), std::string::npos) << r.reason;
}

// The README's command has a page as its only source, and no --target. Then the page decides which target is served.
TEST_F(Scraped, APageThatNamesAnotherTargetIsBelieved) {
  const auto info = [this](const std::string& target) {
    return "specdec:info{draft=\"" + draft_id + "\",package=\"\",target=\"" + target + "\"} 1\n";
  };
  for (int i = 0; i < 12; ++i) scrape(1000, noisy(0.7), info(target_id));
  EXPECT_EQ(look().verdict, Verdict::kHealthy);
  const std::string other(64, 'b');
  for (int i = 0; i < 2; ++i) {
    const CheckResult r = scrape(1000, 0.1, info(other));
    EXPECT_EQ(r.verdict, Verdict::kStaleTarget) << r.reason;
    EXPECT_EQ(r.exit_code, 5);
    EXPECT_NE(r.reason.find(server.url() + " serves another target"), std::string::npos) << r.reason;
    EXPECT_EQ(r.json["evidence"]["served"]["named"][0]["target"], other.substr(0, 12));
  }
  server.page("", 503);
  EXPECT_EQ(look().exit_code, 5) << "a server that does not answer has not named the bound target";
  const CheckResult back = scrape(1000, noisy(0.7), info(target_id));
  EXPECT_EQ(back.exit_code, 0) << to_string(back.verdict) << ": " << back.reason;
  EXPECT_EQ(back.json["state"], "HEALTHY");
}

TEST_F(Scraped, ItSaysHowManyScrapesWereJudged) {
  CheckResult r = scrape(1000, 0.7);
  EXPECT_NE(r.reason.find("0 of 10 scrapes judged"), std::string::npos) << r.reason;
  for (int i = 0; i < 6; ++i) r = scrape(1000, noisy(0.7));
  EXPECT_EQ(r.verdict, Verdict::kInconclusive);
  EXPECT_NE(r.reason.find("6 of 10 scrapes judged: acceptance 0.7"), std::string::npos) << r.reason;
  EXPECT_EQ(r.reason.find("requests"), std::string::npos) << r.reason;
  EXPECT_EQ(r.json["figure"]["name"], "scrapes");
  EXPECT_EQ(r.json["figure"]["value"], 6);
  EXPECT_EQ(r.json["figure"]["limit"], 10);
  EXPECT_EQ(r.json["evidence"]["scrapes"][0]["tested_tokens"], 6000);
  r = scrape(30, 0.7);
  EXPECT_NE(r.reason.find("; 30 of 50 tested tokens of the next"), std::string::npos) << r.reason;
}

TEST_F(Scraped, AbsurdCountersNeitherDecideNorDisable) {
  for (int i = 0; i < 12; ++i) scrape(1000, noisy(0.70));
  const double drafts_before = drafts;
  for (const double absurd : {1e305, 1e20, -5.0}) {
    drafts = absurd;
    server.page(page(""));
    expect_error(ErrorKind::kData, {server.url(), "no count", "[0, 9007199254740992]"}, [&] { look(); });
  }
  drafts = drafts_before + 1e15;  // possible in a counter, but more steps than any server makes
  server.page(page(""));
  CheckResult r = look();
  EXPECT_EQ(r.verdict, Verdict::kWarn) << r.reason;
  EXPECT_NE(r.reason.find("rose faster than any server can count"), std::string::npos) << r.reason;
  drafts = drafts_before;
  EXPECT_EQ(scrape(1000, noisy(0.70)).exit_code, 0);
  for (int i = 0; i < 3; ++i) r = scrape(1000, noisy(0.70));
  EXPECT_EQ(r.verdict, Verdict::kHealthy) << r.reason;
  sum += 100000;  // the sum of overlaps rises without any step
  server.page(page(""));
  r = look();
  EXPECT_NE(r.reason.find("set aside"), std::string::npos) << r.reason;
  EXPECT_EQ(scrape(1000, noisy(0.70)).verdict, Verdict::kHealthy);
}

TEST_F(Scraped, AStateThatHoldsAnAbsurdCounterBeginsAnew) {
  for (int i = 0; i < 12; ++i) scrape(1000, noisy(0.70));
  {
    State state(options.state);
    Counters poisoned = parse_exposition(page(""), "page");
    poisoned.series["specdec:spec_decode_num_drafts_total"] = 1e305;
    state.set_counters(state.value("epoch") + " " + server.url(), poisoned);
    Json chart = parse_json(state.value("chart " + state.value("epoch") + " specdec"), "chart");
    chart["m2"] = 1e300;
    state.set_value("chart " + state.value("epoch") + " specdec", chart.dump());
  }
  EXPECT_NE(scrape(1000, 0.7).reason.find("0 of 10 scrapes judged"), std::string::npos);
  EXPECT_NE(scrape(1000, 0.7).reason.find("1 of 10 scrapes judged"), std::string::npos);
}

TEST_F(Scraped, AnotherPairsCountersAreNotJudged) {
  scrape(1000, 0.7);
  const CheckResult r =
      scrape(1000, 0.01, "specdec:info{draft=\"beef\",target=\"" + target_id.substr(0, 12) + "\"} 1\n");
  EXPECT_EQ(r.verdict, Verdict::kInconclusive) << "nothing was judged yet";
  EXPECT_NE(r.reason.find("another pair"), std::string::npos) << r.reason;
  const std::string own = "specdec:info{draft=\"" + draft_id + "\",target=\"" + target_id + "\"} 1\n";
  EXPECT_EQ(scrape(1000, 0.01, own).verdict, Verdict::kInconclusive)
      << "what was counted beside another pair is no base";
  EXPECT_EQ(scrape(1000, 0.01, own).verdict, Verdict::kDrift);
}

TEST_F(Scraped, WhatFailsLeavesTheStateAsItWas) {
  for (int i = 0; i < 15; ++i) scrape(1000, noisy(0.70));
  const std::string before = get(options.state);
  server.page("specdec:spec_decode_num_drafts_total x\n");
  expect_error(ErrorKind::kData, {server.url(), "line 1"}, [&] { look(); });
  EXPECT_THROW(look(), PageError) << "watch goes on after it";
  server.page("", 503);
  expect_error(ErrorKind::kNetwork, {"503"}, [&] { look(); });
  EXPECT_EQ(get(options.state), before);
}

// vLLM's page does not name its target. The counts that vLLM makes while another target is served are not judged as a
// drop.
TEST_F(Scraped, CountersOfAnotherTargetAreNotJudgedAfterIt) {
  for (int i = 0; i < 15; ++i) vllm(noisy(0.70));
  testing::write_tiny_model(dir / "updated", {.layers = 2, .bump = 1, .vocab = 64, .hidden = 8});
  options.target = dir / "updated";
  for (int i = 0; i < 3; ++i) EXPECT_EQ(vllm(0.1), Verdict::kStaleTarget);
  options.target = dir / "p/target";
  EXPECT_EQ(vllm(0.70), Verdict::kHealthy);
  EXPECT_EQ(vllm(0.01), Verdict::kDrift);
}

// vLLM exports only accepted counts by position, so conditional acceptance is compared with the baseline's.
TEST_F(Scraped, VllmCounters) {
  for (int i = 0; i < 20; ++i) vllm(noisy(0.70));
  EXPECT_EQ(vllm(0.70), Verdict::kHealthy);
  Verdict verdict = Verdict::kInconclusive;
  for (int i = 0; i < 12; ++i) verdict = vllm(0.62);
  EXPECT_EQ(verdict, Verdict::kDrift);
}

// TensorRT-LLM's page counts generated tokens, so the check notices that speculation was turned off.
TEST_F(Scraped, SpeculationThatWentOffIsSaidForTensorRt) {
  double drafted = 0, tokens = 0;
  const auto look_at = [&](double steps) {
    drafted += steps;
    tokens += 1000 + steps;
    std::string text;
    for (const char* name : {"drafted", "accepted"})
      text += std::string("trtllm_spec_decode_") + name + "_tokens_total{model_name=\"m\",token_position=\"0\"} " +
              std::to_string(*name == 'd' ? drafted : 0.7 * drafted) + "\n";
    server.page(text + "trtllm_generation_tokens_total{model_name=\"m\"} " + std::to_string(tokens) + "\n");
    return look();
  };
  CheckResult r;
  for (int i = 0; i < 14; ++i) r = look_at(1000);
  EXPECT_EQ(r.verdict, Verdict::kHealthy) << r.reason;
  r = look_at(0);
  EXPECT_EQ(r.verdict, Verdict::kWarn) << r.reason;
  EXPECT_NE(r.reason.find("speculation is off"), std::string::npos) << r.reason;
}

}  // namespace
}  // namespace specdec::monitor
