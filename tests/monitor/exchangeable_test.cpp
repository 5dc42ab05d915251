#include "monitor/statistics/exchangeable.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/monitor/toy_model.h"

namespace specdec::monitor {
namespace {

constexpr int kCalls = 32;

TEST(Exchangeable, OneFineTuningStepIsSeenInOneLook) {
  constexpr int kTrials = 60, kPermutations = 2000;
  int found = 0, requests = 0;
  for (int trial = 0; trial < kTrials; ++trial) {
    ToyModel before(trial), after(trial, 0.05);
    const LogprobCalls reference = before.look(kCalls), newest = after.look(kCalls);
    requests = after.requests();
    PhiloxStream stream(1, static_cast<uint64_t>(trial));
    const Comparison seen = compare(reference, newest, kPermutations, stream);
    found += next_log_m(-INFINITY, e_value(seen.p, kPermutations)) >= std::log(1000.0) && seen.statistic >= 0.01;
    EXPECT_FALSE(seen.two_modes) << trial;
  }
  EXPECT_GE(found, 57) << "of 60, with serving noise of sd .02 and a step of sd .05";
  EXPECT_LE(requests, 256);
}

// Each day's calls are compared with a random selection of earlier calls (the pool). While the model does not change,
// the mean of the e-values is at most 1, and alarms are at most as frequent as stated.
TEST(Exchangeable, DailyLooksRaiseNoMoreAlarmsThanStated) {
  constexpr int kPermutations = 199, kChains = 10, kLooks = 100;
  const double level = std::log(100.0);  // one test with the smallest possible p has e ≥ ½ · 200
  double sum = 0, squares = 0;
  int alarms = 0, small = 0;
  for (int chain = 0; chain < kChains; ++chain) {
    ToyModel model(1000 + chain);
    LogprobCalls pool = model.look(8);
    double log_m = -INFINITY;
    for (int day = 1; day <= kLooks; ++day) {
      PhiloxStream stream(2, static_cast<uint64_t>(chain * 1000 + day));
      const LogprobCalls newest = model.look(8);
      const Comparison seen = compare(pool, newest, kPermutations, stream);
      const double e = e_value(seen.p, kPermutations);
      sum += e;
      squares += e * e;
      small += seen.p <= 0.1;
      log_m = next_log_m(log_m, e);
      if (log_m >= level) {
        ++alarms;
        log_m = -INFINITY;
      }
      pool = thin(pool, newest, 32, stream);
    }
  }
  constexpr double kAll = kChains * kLooks;
  const double mean = sum / kAll, se = std::sqrt((squares / kAll - mean * mean) / kAll);
  EXPECT_LE(mean, 1 + 3 * se);
  EXPECT_LE(alarms, kAll / 100 + 3 * std::sqrt(kAll / 100)) << "at most one in a hundred looks on average";
  EXPECT_NEAR(small / kAll, 0.1, 3 * std::sqrt(0.09 / kAll)) << "p-values are uniform";
}

// Tests the alternative: if the calls of every day were compared with those of the first day, the chance deviation of
// the first day's calls would make all p-values depend on each other. That is why the earlier calls to compare with are
// drawn again for each day.
TEST(Exchangeable, AFrozenReferenceWouldShareItsChanceDeviation) {
  constexpr int kPermutations = 199, kChains = 30, kLooks = 8;
  double together = 0, apart = 0;
  for (int chain = 0; chain < kChains; ++chain) {
    ToyModel model(2000 + chain);
    const LogprobCalls reference = model.look(8);
    double mean = 0, squares = 0;
    for (int day = 0; day < kLooks; ++day) {
      PhiloxStream stream(3, static_cast<uint64_t>(chain * 1000 + day));
      const double p = compare(reference, model.look(8), kPermutations, stream).p;
      mean += p / kLooks;
      squares += p * p / kLooks;
    }
    together += std::pow(mean - 0.5, 2) / kChains;
    apart += (squares - mean * mean) / kChains;
  }
  EXPECT_GT(together, 1.5 * apart / (kLooks - 1)) << "chains differ by more than independent looks would";
}

TEST(Exchangeable, ARollingUpdateHasTwoModes) {
  for (const double share : {0.25, 0.5, 0.75}) {
    ToyModel before(7), after(7, 0.05);
    const LogprobCalls reference = before.look(kCalls);
    LogprobCalls newest(8);
    for (int i = 0; i < kCalls; ++i)
      for (size_t p = 0; p < 8; ++p) newest[p].push_back((i < share * kCalls ? after : before).call(p));
    PhiloxStream stream(4, 0);
    const Comparison seen = compare(reference, newest, 500, stream);
    EXPECT_TRUE(seen.two_modes) << share;
    EXPECT_NEAR(seen.share_changed, share, 0.05);
    EXPECT_LE(seen.p, 0.01);
  }
}

TEST(Exchangeable, AChangeIsNoRollingUpdate) {
  PhiloxStream stream(5, 0);
  for (int trial = 0; trial < 25; ++trial) {
    ToyModel before(trial);
    const LogprobCalls reference = before.look(kCalls);
    EXPECT_FALSE(compare(reference, before.look(kCalls), 50, stream).two_modes) << trial;
    for (const double step : {0.01, 0.02, 0.05, 0.5}) {  // `step`: standard deviation of the change of the logits
      ToyModel after(trial, step);
      LogprobCalls newest = after.look(kCalls);
      EXPECT_FALSE(compare(reference, newest, 50, stream).two_modes) << trial << ", step " << step;
      newest[3] = before.look(kCalls)[3];  // the change did not affect this prompt
      EXPECT_FALSE(compare(reference, newest, 50, stream).two_modes)
          << trial << ", step " << step << ", one prompt as before";
    }
  }
}

TEST(Exchangeable, ServersWithoutNoise) {
  ToyModel before(1, 0, 0), after(1, 0.05, 0);
  PhiloxStream stream(6, 0);
  const Comparison same = compare(before.look(kCalls), before.look(kCalls), 500, stream);
  EXPECT_EQ(same.p, 1);
  EXPECT_EQ(same.statistic, 0);
  const Comparison other = compare(before.look(kCalls), after.look(kCalls), 500, stream);
  EXPECT_DOUBLE_EQ(other.p, 1.0 / 501);
  EXPECT_FALSE(other.two_modes);
}

// A token that a call lacks gets the call's smallest log-probability. Here the earlier calls lack "c", and the newest
// call lacks "b".
TEST(Exchangeable, MissingTokensAreCensored) {
  const LogprobCalls pool = {{{{"a", -1.0F}, {"b", -2.0F}}, {{"a", -1.0F}, {"b", -2.0F}}}},
                     newest = {{{{"a", -1.5F}, {"c", -3.0F}}}};
  PhiloxStream stream(7, 0);
  // Absolute differences of the means: token a 0.5; b |−2 − (−3)| = 1; c |−2 − (−3)| = 1.
  EXPECT_NEAR(compare(pool, newest, 1, stream).statistic, 2.5 / 3, 1e-6);
}

// A third of the greedy texts end differently, as different batching may cause. This must not count as a change.
TEST(Exchangeable, GreedyTexts) {
  PhiloxStream draw(10, 0), stream(8, 0);
  const auto answer = [&](int i) {
    const std::string text = "the answer to question " + std::to_string(i) + " is long enough";
    return draw.uniform() < 0.33 ? text.substr(0, 30) + " but ends so" : text;
  };
  double sum = 0;
  for (int trial = 0; trial < 30; ++trial) {
    Texts pool;
    std::vector<std::string> same, changed;
    for (int i = 0; i < 64; ++i) {
      pool.push_back({answer(i), answer(i)});
      same.push_back(answer(i));
      changed.push_back(i % 2 ? answer(i) : "no, " + answer(i));
    }
    sum += compare(pool, same, 200, stream).p / 30;
    EXPECT_LE(compare(pool, changed, 2000, stream).p, 1.0 / 2001 + 1e-12) << "half of the texts are others";
    Texts certain;
    for (const std::string& text : same) certain.push_back({text, text});
    EXPECT_EQ(compare(certain, same, 200, stream).p, 1) << "a server that always answers the same";
  }
  EXPECT_NEAR(sum, 0.5, 3 * std::sqrt(1 / 12.0 / 30));
}

TEST(Exchangeable, Evidence) {
  double integral = 0;  // integral of e_value() over the p-values of 200 permutations
  for (int i = 1; i <= 201; ++i) integral += e_value(i / 201.0, 200) / 201;
  EXPECT_LE(integral, 1);
  EXPECT_GT(integral, 0.9);
  EXPECT_GE(e_value(1.0 / 2001, 2000), 1000) << "one look can be enough for a level of 1000 looks";
  EXPECT_NEAR(next_log_m(-INFINITY, 3), std::log(3), 1e-12);
  EXPECT_NEAR(next_log_m(std::log(4.0), 0.5), std::log(2.5), 1e-12);
  EXPECT_NEAR(next_log_m(800, 1), 800, 1e-12) << "no overflow";
}

TEST(Exchangeable, ThePoolIsAUniformSubset) {
  LogprobCalls pool(1), newest(1);
  for (int i = 0; i < 6; ++i) (i < 4 ? pool : newest)[0].push_back({{"t", static_cast<float>(i)}});
  std::vector<int> kept(6);
  PhiloxStream stream(9, 0);
  for (int trial = 0; trial < 6000; ++trial) {
    const LogprobCalls three = thin(pool, newest, 3, stream);
    EXPECT_EQ(three[0].size(), 3U);
    for (const TopLogprobs& call : three[0]) ++kept[static_cast<size_t>(call[0].second)];
  }
  for (const int n : kept) EXPECT_NEAR(n, 3000, 3 * std::sqrt(6000 * 0.25));
  EXPECT_EQ(thin(pool, newest, 6, stream)[0].size(), 6U);
}

}  // namespace
}  // namespace specdec::monitor
