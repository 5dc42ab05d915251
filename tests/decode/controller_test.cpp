#include "engine/decode/control/controller.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/acceptance.h"
#include "base/philox.h"

namespace specdec::decode {
namespace {

bool stops(const KController& controller, const std::vector<double>& confidences, int batch, int drafting) {
  StopRule rule;
  return controller.stop_rule(batch, static_cast<int>(confidences.size()) + 1, rule), rule.stops(confidences, drafting);
}

// A simulated engine: the costs of draft and target passes, and the mean overlap of the drafted tokens.
struct World {
  double draft = 0.1, target = 1.0, per_row = 0.03, overlap = 0.7;
  CostModel costs;
  AcceptanceCounts counts;
  int steps = 0;

  double verify_seconds(int k) const { return target + per_row * k; }
  int step(KController& controller, int batch = 1) {
    const int k = controller.choose_k(batch);
    PhiloxStream random(5, static_cast<uint64_t>(steps++));
    int accepted = 0;
    while (accepted < k && random.uniform() < overlap) ++accepted;
    std::vector<double> overlaps(static_cast<size_t>(std::min(accepted + 1, k)), 0.0);
    for (double& o : overlaps) o = std::clamp(overlap + 0.2 * (random.uniform() - 0.5), 0.0, 1.0);
    for (int i = 0; i < k; ++i) costs.record_draft(batch, draft);
    costs.record_target(batch, k + 1, verify_seconds(k));
    if (k > 0) counts.add_step(k, accepted, overlaps);
    controller.observe(k, accepted, overlaps);
    return k;
  }
  int run(KController& controller, int n, int batch = 1) {
    int last = 0;
    for (int i = 0; i < n; ++i) last = step(controller, batch);
    return last;
  }
};

TEST(CostModel, UnknownUntilMeasured) {
  CostModel costs;
  EXPECT_TRUE(std::isnan(costs.draft_cost(1)));
  EXPECT_TRUE(std::isnan(costs.verify_cost(1, 3)));
  EXPECT_FALSE(costs.ready());
  costs.record_target(1, 1, 2.0);
  EXPECT_TRUE(std::isnan(costs.draft_cost(1)));
  EXPECT_TRUE(costs.is_stale(1, 1));  // one sample is not enough, because first calls are slow
  costs.record_target(1, 1, 2.0);
  EXPECT_FALSE(costs.is_stale(1, 1));
  costs.record_draft(1, 0.5);
  EXPECT_FALSE(costs.ready());
  costs.record_target(1, 5, 3.0);
  EXPECT_TRUE(costs.ready());
  EXPECT_DOUBLE_EQ(costs.draft_cost(1), 0.25);
  EXPECT_DOUBLE_EQ(costs.verify_cost(1, 0), 1.0);
  EXPECT_DOUBLE_EQ(costs.verify_cost(1, 4), 1.5);
}

TEST(CostModel, InterpolatesRows) {
  CostModel costs;
  costs.record_target(1, 1, 1.0);
  costs.record_target(1, 5, 1.4);
  EXPECT_NEAR(costs.verify_cost(1, 2), 1.2, 1e-12);
  EXPECT_NEAR(costs.verify_cost(1, 8), 1.8, 1e-12);  // extrapolated along the line
}

// The cost of a pass depends mostly on its number of rows, not on the number of sequences. A batch size without samples
// is therefore estimated from other batch sizes; one with samples is estimated mostly from its own passes.
TEST(CostModel, BatchSizesKnowOfEachOther) {
  CostModel costs;
  for (int i = 0; i < 20; ++i)
    for (const int batch : {4, 8, 12, 16}) costs.record_target(batch, 1, 0.5 + 0.1 * batch);
  costs.record_draft(4, 0.09);
  EXPECT_NEAR(costs.verify_cost(4, 2), 1.7 / 0.9, 0.02) << "12 rows: as plain decoding of twelve";
  EXPECT_NEAR(costs.verify_cost(6, 0), 1, 1e-9);
  EXPECT_NEAR(costs.verify_cost(6, 1), 1.7 / 1.1, 1e-9);
  EXPECT_NEAR(costs.draft_cost(6), 0.1, 1e-9) << "its share of a plain pass at the nearest batch size";
  EXPECT_GT(costs.target_doubt(4, 12), 0.02);
  for (int i = 0; i < 40; ++i) {  // two rows of one text are cheaper than one row each of two texts
    costs.record_target(4, 1, 0.9);
    costs.record_target(4, 2, 1.1);
  }
  EXPECT_NEAR(costs.verify_cost(4, 1), 1.1 / 0.9, 0.03);
  EXPECT_NEAR(costs.verify_cost(8, 0) * costs.verify_seconds(8, 0), 1.3, 0.15)
      << "not measured in the last 40 passes, while eight rows of four texts were";
  EXPECT_LT(costs.target_doubt(4, 8), 0.03);
}

// A predicted gain that is smaller than the uncertainty of the measured costs is no reason to start drafting.
TEST(Controller, AGainWithinWhatCostsErrIsNone) {
  CostModel costs;
  const auto measure = [&](int times) {
    for (int i = 0; i < times; ++i) {
      costs.record_target(4, 1, 1);
      costs.record_target(4, 2, 1.4);
      costs.record_draft(4, 0.02);
    }
  };
  measure(2);
  const OverlapMean seen(0.6, 1e6);
  KController controller({.max_k = 1, .seen = &seen}, &costs);
  const auto chosen = [&] {
    std::vector<KController> all(4, controller);
    std::vector<KController*> together;
    for (KController& c : all) together.push_back(&c);
    KController::choose(together, 4);
    return all.front().decision().k;
  };
  EXPECT_EQ(chosen(), 0) << "1.6 / 1.42, of two samples each";
  measure(300);
  EXPECT_EQ(chosen(), 1) << "now it is known";
}

TEST(CostModel, ShrugsOffOutliersAndNonsense) {
  CostModel costs;
  for (int i = 0; i < 20; ++i) costs.record_target(1, 1, 1.0);
  costs.record_target(1, 1, 1000.0);
  for (const double bad : {0.0, -1.0, std::nan(""), HUGE_VAL}) costs.record_target(1, 1, bad);
  // The outlier was clipped and attributed mostly to the machine's speed at that moment, so it hardly changes the ratio
  // between two costs.
  EXPECT_NEAR(costs.verify_seconds(1, 0), 1.1, 0.01);
  costs.record_target(1, 3, 1.1 * 1.1);  // the outlier hardly affects this ratio
  EXPECT_NEAR(costs.verify_cost(1, 2), 1.1, 0.05);
  for (int i = 0; i < 10; ++i) costs.record_target(1, 1, 1.0);
  EXPECT_NEAR(costs.verify_seconds(1, 0), 1.0, 0.01);
  for (int i = 0; i < 100; ++i) costs.record_target(1, 1, 3.0);
  EXPECT_NEAR(costs.verify_seconds(1, 0), 3.0, 0.01);
  costs.record_target(0, 1, 1.0);  // batch size 0 does not exist
  costs.record_target(1, 0, 1.0);
}

TEST(CostModel, FirstSlowCallsDoNotStay) {
  CostModel costs;
  costs.record_target(1, 1, 50.0);
  costs.record_target(1, 1, 1.0);
  costs.record_target(1, 3, 1.2);
  EXPECT_NEAR(costs.verify_cost(1, 2), 1.2, 1e-12);
}

TEST(CostModel, DraftsOfOneTargetShareWhatItCosts) {
  CostModel first;
  CostModel second = first.another_draft();
  first.record_draft(1, 0.5);
  second.record_draft(1, 0.1);
  first.record_target(1, 1, 1.0);
  second.record_target(1, 5, 2.0);
  for (const CostModel* costs : {&first, &second}) {
    EXPECT_TRUE(costs->ready());
    EXPECT_DOUBLE_EQ(costs->verify_cost(1, 4), 2.0);
    EXPECT_DOUBLE_EQ(costs->verify_seconds(1, 0), 1.0);
  }
  EXPECT_DOUBLE_EQ(first.draft_cost(1), 0.5);
  EXPECT_DOUBLE_EQ(second.draft_seconds(1), 0.1);
}

TEST(CostModel, AShorterPassThatMetABusyMomentIsNotBelieved) {
  CostModel costs;
  for (const auto& [rows, seconds] : {std::pair{1, 1.0}, {6, 18.0}, {9, 5.0}}) costs.record_target(1, rows, seconds);
  EXPECT_DOUBLE_EQ(costs.verify_seconds(1, 5), 5.0);
  EXPECT_DOUBLE_EQ(costs.verify_seconds(1, 0), 1.0);
}

// The cost of a pass also depends on the request (grammars, log-probabilities). Passes of more rows may therefore
// always be cheaper than passes of fewer rows. After random mixtures of such passes, every estimate must still be
// within a factor of 40 of the measured times.
TEST(CostModel, EstimatesStayNearWhatWasMeasured) {
  PhiloxStream random(11, 0);
  const auto between = [&](int low, int high) { return low + static_cast<int>(random.below(high - low + 1)); };
  for (int mixture = 0; mixture < 100; ++mixture) {
    struct Kind {
      int batch, rows, length;
      double factor;
    };
    std::vector<Kind> kinds;
    for (int i = between(1, 4); i > 0; --i)
      kinds.push_back({between(1, 8), between(1, 6), between(1, 600), std::exp(3 * (random.uniform() - 0.5))});
    CostModel costs;
    double least = 1e9, most = 0;
    for (int pass = 0; pass < 8000;) {
      const Kind& kind = kinds[random.below(kinds.size())];
      for (int i = between(1, kind.length); i > 0; --i, ++pass) {
        const double seconds = (1 + 0.02 * (kind.batch * kind.rows - 1)) * kind.factor * (0.9 + 0.2 * random.uniform());
        least = std::min(least, seconds);
        most = std::max(most, seconds);
        costs.record_target(kind.batch, kind.rows, seconds);
      }
      for (const int batch : {1, 2, 4, 8})
        for (int k = 0; k <= 5; ++k) {
          const double estimate = costs.verify_seconds(batch, k);
          ASSERT_LT(estimate, 40 * most) << "mixture " << mixture << ", pass " << pass;
          ASSERT_GT(estimate, least / 40) << "mixture " << mixture << ", pass " << pass;
        }
    }
  }
}

// Sequences of a batch may draft different numbers of tokens, so the rows per sequence of a pass may be a fraction such
// as 2.5. Such a pass must not count as a pass with 3 rows per sequence.
TEST(CostModel, PassesOfUnevenRows) {
  CostModel costs;
  for (int i = 0; i < 50; ++i) {
    costs.record_target(4, 1.0, 1.0);
    costs.record_target(4, 2.25, 1.5);
    costs.record_target(4, 3.0, 1.8);
  }
  EXPECT_NEAR(costs.verify_seconds(4, 1), 1.4, 1e-9);
  EXPECT_NEAR(costs.verify_seconds(4, 4), 2.6, 1e-9);
}

TEST(Controller, ATreeIsVerifiedAtTheNodesOfTheDepthChosen) {
  CostModel costs;
  for (const auto& [rows, seconds] : {std::pair{1, 1.0}, {3, 1.05}, {7, 3.0}, {11, 5.0}})
    costs.record_target(1, rows, seconds);
  costs.record_draft(1, 0.01);
  KController tree({.prior_overlap = 0.9, .tree = {2, 2, 1}}, &costs);
  EXPECT_EQ(tree.choose_k(1), 1) << "2 nodes are nearly free, 6 and 10 are not";
  EXPECT_NEAR(tree.rate(), 1.9 / 1.06, 1e-9);
  EXPECT_TRUE(stops(tree, {0.9}, 1, 1)) << "the next level costs 1.95 passes";
}

// If a draft must prefill a long prompt, drafting pays only for a long answer. With n sequences at once, the answer
// must be n times as long.
TEST(Controller, AShortAnswerDoesNotPayForALongPrompt) {
  CostModel costs;
  for (const int batch : {1, 4})
    for (const auto& [rows, seconds] : {std::pair{1, 1.0}, {2, 1.05}, {3, 1.1}, {5, 1.2}})
      costs.record_target(batch, rows, seconds);
  for (const int batch : {1, 4}) costs.record_draft(batch, 0.1);
  costs.record_read(100, 5.0);
  EXPECT_DOUBLE_EQ(costs.read_cost(1), 0.05);
  const auto chosen = [&](int64_t to_read, int64_t to_come, int batch, int steps = 1) {
    std::vector<KController> all(static_cast<size_t>(batch), KController({.max_k = 4, .prior_overlap = 0.7}, &costs));
    std::vector<KController*> together;
    for (KController& c : all) together.push_back(&c);
    for (int i = 0; i < steps; ++i) {
      for (KController& c : all) c.expect(to_read, to_come);
      KController::choose(together, batch);
    }
    return all.front().decision();
  };
  EXPECT_GT(chosen(500, 200, 1).k, 0) << "25 plain steps of reading, some 80 gained";
  const KDecision brief = chosen(500, 20, 1);
  EXPECT_EQ(brief.k, 0);
  EXPECT_STREQ(to_string(brief.plain), "short_answer");
  EXPECT_GT(chosen(2, 20, 1).k, 0) << "read already";
  EXPECT_EQ(chosen(500, 200, 4).k, 0) << "the four wait while one reads";
  EXPECT_GT(chosen(500, 800, 4).k, 0);
  EXPECT_EQ(chosen(500, 20, 1, 200).k, 0) << "nor is it probed";
}

TEST(Controller, FixedKIsKept) {
  CostModel costs;
  KController controller({.fixed_k = 4}, &costs);
  EXPECT_EQ(controller.choose_k(1), 4);
  EXPECT_FALSE(stops(controller, {0.0}, 1, 1));
  KController plain({.fixed_k = 0}, &costs);
  EXPECT_EQ(plain.choose_k(1), 0);
}

TEST(Controller, TheScheduleHoldsUntilCostsAreMeasured) {
  const std::vector<std::array<int, 3>> schedule = {{1, 2, 5}, {3, 8, 3}, {9, 64, 0}};
  for (const auto& [batch, expected] : {std::pair{1, 5}, {2, 5}, {3, 3}, {8, 3}, {9, 0}, {100, 0}}) {
    World w;
    KController controller({.schedule = schedule}, &w.costs);
    EXPECT_EQ(w.run(controller, 2, batch), 0) << "the plain pass is measured first";
    EXPECT_EQ(w.step(controller, batch), expected);
  }
  World w;
  KController bounded({.max_k = 4, .schedule = schedule}, &w.costs);
  EXPECT_EQ(w.run(bounded, 3), 4);
  w = {};
  KController free({}, &w.costs);
  EXPECT_EQ(w.run(free, 3), 2) << "without a schedule it starts small";
  w = {};
  w.overlap = 0.9;
  KController off({.schedule = {{1, 64, 0}}}, &w.costs);
  EXPECT_GT(w.run(off, 100), 2) << "a schedule that says 0 is only where it starts: a probe finds out";
  w = {};
  w.overlap = 0.05;
  KController on({.schedule = {{1, 64, 5}}}, &w.costs);
  w.run(on, 50);
  int drafting = 0;
  for (int i = 0; i < 20; ++i) drafting += w.step(on) > 0;
  EXPECT_LE(drafting, 1) << "once costs are measured they decide, but for a probe";
}

TEST(Controller, MaximisesPredictedSpeedup) {
  // expected_overlap() is the prior at every position, so the best K follows from the formula alone.
  for (const double alpha : {0.3, 0.6, 0.8, 0.95})
    for (const double draft : {0.02, 0.1, 0.4}) {
      World w;
      w.draft = draft;
      for (int i = 0; i < 3; ++i)
        for (int rows = 1; rows <= 9; ++rows) w.costs.record_target(1, rows, w.verify_seconds(rows - 1));
      w.costs.record_target(1, 1, 1.0);
      w.costs.record_draft(1, draft);
      KController controller({.doubts = 0, .prior_overlap = alpha}, &w.costs);
      int best = 0;
      double rate = 1;
      for (int k = 1; k <= 8; ++k) {
        const double s = predicted_speedup(expected_length(alpha, k), k, draft, w.verify_seconds(k));
        if (s > rate + 1e-12) rate = s, best = k;
      }
      EXPECT_EQ(controller.choose_k(1), best) << "alpha " << alpha << " c " << draft;
    }
}

TEST(Controller, GoodDraftSpeculates) {
  World w;
  KController controller({}, &w.costs);
  EXPECT_GT(w.run(controller, 60), 2);
  EXPECT_NEAR(controller.expected_overlap(0), 0.7, 0.05);
}

TEST(Controller, RandomDraftIsSwitchedOffAndAGoodOneFoundAgain) {
  World w;
  w.overlap = 0.02;
  KController controller({}, &w.costs);
  w.run(controller, 100);
  int speculating = 0;
  for (int i = 0; i < 200; ++i) speculating += w.step(controller) > 0;
  EXPECT_LE(speculating, 8) << "probes should be rare";
  EXPECT_GE(speculating, 2) << "probes must happen";
  w.overlap = 0.8;
  int found = -1;
  for (int i = 0; i < 200 && found < 0; ++i)
    if (w.step(controller) > 0 && w.step(controller) > 0 && w.step(controller) > 2) found = i;
  EXPECT_GE(found, 0) << "a good draft was not found within 200 steps";
  speculating = 0;
  for (int i = 0; i < 100; ++i) speculating += w.step(controller) > 0;
  EXPECT_GE(speculating, 95);
}

TEST(Controller, APromisingProbeIsFollowedUpAtOnce) {
  // `before` is the overlap in the 200 steps before the draft improves. At 0.4 drafting paid, at 0.02 it did not.
  for (const double before : {0.4, 0.02}) {
    World w;
    w.overlap = before;
    KController controller({}, &w.costs);
    w.run(controller, 200);
    EXPECT_EQ(w.counts.steps > 150, before > 0.1);
    w.draft = 0.6;  // at this cost drafting pays at overlap 0.95, but not at 0.4
    for (int i = 0; i < 40; ++i) w.costs.record_draft(1, w.draft);
    w.run(controller, 200);
    w.overlap = 0.95;
    int waited = 0;  // steps until a probe; a probe takes the time of 2 · 0.6 + 0.06 additional plain steps
    while (w.step(controller) == 0) ASSERT_LE(++waited, 160);
    for (int i = 0; i < 10; ++i)
      EXPECT_GT(w.step(controller), 0) << i << " steps after the probe, overlap " << before << " before";
    EXPECT_GT(controller.expected_overlap(0), 0.8);
  }
}

TEST(Controller, FollowsChangingCosts) {
  World w;
  KController controller({}, &w.costs);
  const int cheap = w.run(controller, 60);
  w.draft = 0.9;  // the draft's device became busy
  EXPECT_LE(w.run(controller, 200), 0);
  EXPECT_GT(cheap, 2);
  w.draft = 0.02;
  const int back = w.run(controller, 400);
  EXPECT_GT(back, cheap);
}

// While the machine was busy, passes with many rows were measured as slow. The controller then chose K = 1, so no later
// pass had as many rows and corrected the measurement.
TEST(Controller, OldFiguresOfLongerPassesAreRenewed) {
  World w;
  w.overlap = 0.8;
  w.per_row = 0.45;
  for (int i = 0; i < 3; ++i)
    for (int rows = 1; rows <= 9; ++rows) w.costs.record_target(1, rows, w.verify_seconds(rows - 1));
  KController controller({.prior_overlap = 0.8}, &w.costs);
  EXPECT_LE(w.run(controller, 60), 2);
  w.per_row = 0.03;
  w.run(controller, 3000);
  int longer = 0;
  for (int i = 0; i < 100; ++i) longer += w.step(controller) >= 4;
  EXPECT_GE(longer, 95);
}

TEST(Controller, DearVerificationAtALargeBatchTurnsItOff) {
  World w;
  KController controller({}, &w.costs);
  EXPECT_GT(w.run(controller, 40, 1), 0);
  w.per_row = 0.9;  // compute-bound: each row costs almost a whole pass
  w.run(controller, 60, 32);
  int speculating = 0;
  for (int i = 0; i < 60; ++i) speculating += w.step(controller, 32) > 0;
  EXPECT_LE(speculating, 3);
  w.per_row = 0.03;
  EXPECT_GT(w.step(controller), 0) << "batch 1 still pays";
}

TEST(Controller, NeighboursThatAlwaysSpeculateDoNotHoldItBack) {
  World w;
  KController controller({}, &w.costs);
  int speculating = 0;
  for (int i = 0; i < 64; ++i) {
    speculating += controller.choose_k(4) > 0;
    w.costs.record_draft(4, 0.05);
    w.costs.record_target(4, 3, 1.1);  // another sequence of the batch has a fixed K, so no pass is ever plain
  }
  EXPECT_GT(speculating, 40);
}

TEST(Controller, StopsWhereConfidenceSaysThatNoMoreWillBeKept) {
  World w;
  w.draft = 0.3;
  KController controller({}, &w.costs);
  w.run(controller, 10);
  // Teaches the controller that drafted tokens with high confidence are accepted, and others are not.
  for (int i = 0; i < 60; ++i) {
    controller.choose_k(1);
    controller.observe(2, 1, {0.8, 0.6}, std::vector<double>{0.95, 0.1}, std::vector<double>{0.97, 0.05});
  }
  ASSERT_GT(controller.choose_k(1), 0);
  EXPECT_FALSE(stops(controller, {0.95}, 1, 1));
  EXPECT_TRUE(stops(controller, {0.1}, 1, 1));
  EXPECT_TRUE(stops(controller, {0.95, 0.1}, 1, 1));
}

TEST(Controller, StopsWhereTheNextPassCostsMore) {
  World w;
  KController controller({}, &w.costs);
  w.run(controller, 40, 2);
  ASSERT_GT(controller.choose_k(2), 1);
  StopRule rule;
  controller.stop_rule(2, 4, rule);
  ASSERT_EQ(rule.limits.size(), 3u);
  for (int k = 1; k <= 3; ++k) {
    const rules::StopLimits& limits = rule.limits[static_cast<size_t>(k - 1)];
    EXPECT_EQ(limits.overlap, controller.expected_overlap(k));
    EXPECT_NEAR(limits.shared, 2 * controller.rate() * w.draft / w.target, 0.02) << "for both sequences";
    for (const double sure : {0.05, 0.95})
      for (const int drafting : {1, 2})
        EXPECT_EQ(rules::stops(
                      limits, rule.acceptance, 1, [&](int) { return sure; }, drafting),
                  limits.overlap * rule.acceptance.bins[rules::bin_of(sure)] <= limits.shared / drafting + limits.own);
  }
  KController fixed({.fixed_k = 3}, &w.costs);
  fixed.choose_k(2);
  fixed.stop_rule(2, 3, rule);
  EXPECT_TRUE(rule.limits.empty());
}

TEST(Controller, ConfidenceFloor) {
  KController controller({.confidence_floor = 0.5}, nullptr);
  EXPECT_TRUE(stops(controller, {0.9, 0.4}, 1, 1));
  EXPECT_FALSE(stops(controller, {0.4, 0.6}, 1, 1));
}

TEST(Controller, WithoutCostsAssumesACheapDraft) {
  KController controller({.max_k = 6}, nullptr);
  EXPECT_GT(controller.choose_k(1), 1);
  KController none({.max_k = 0}, nullptr);
  EXPECT_EQ(none.choose_k(1), 0);
}

// The draft predicts some sequences of a batch well and others badly. A draft pass takes as long for one sequence as
// for all, so a sequence drafts only as deep as enough other sequences do.
TEST(Controller, NeighboursShareTheDraftsPasses) {
  World w;
  for (int i = 0; i < 3; ++i)
    for (const int rows : {1, 3, 5, 9}) w.costs.record_target(8, rows, 1 + 0.03 * (rows - 1));
  w.costs.record_draft(8, 0.3);
  std::vector<KController> controllers;
  std::vector<KController*> all;
  const auto choose = [&](int good) {
    controllers.clear();
    all.clear();
    for (int i = 0; i < 8; ++i)
      controllers.emplace_back(ControllerOptions{.prior_overlap = i < good ? 0.9 : 0.02}, &w.costs);
    for (KController& c : controllers) all.push_back(&c);
    KController::choose(all, 8);
  };
  choose(8);
  EXPECT_GT(all.front()->decision().k, 2);
  EXPECT_FALSE(stops(*all.front(), {0.9}, 8, 8));
  EXPECT_TRUE(stops(*all.front(), {0.9}, 8, 1)) << "the next pass would be for one of eight";
  choose(1);
  EXPECT_EQ(all.front()->decision().k, 0) << "a pass of the draft for one of eight";
  EXPECT_EQ(all.front()->decision().plain, PlainReason::kDoesNotPay);
  choose(6);
  EXPECT_GT(all.front()->decision().k, 0);
  EXPECT_EQ(all.back()->decision().k, 0) << "its rows cost more than they bring";
}

}  // namespace
}  // namespace specdec::decode
