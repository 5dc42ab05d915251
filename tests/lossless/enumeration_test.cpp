// Runs Stepper::step() for every outcome of its random choices, and checks that the emitted tokens have the target's
// distribution.
#include "tests/lossless/enumeration.h"

#include <gtest/gtest.h>

#include <limits>

#include "tests/lossless/oracle_values.h"

namespace specdec::decode {
namespace {

constexpr double kExact = 1e-7;  // allowed error of probabilities, from fp32 rounding

Case fixed(int k, VerifyRule rule) {
  Case c;
  c.controller.fixed_k = k;
  c.rule = rule;
  return c;
}

// A case in which drafting stops after a token to which the draft gave a low probability.
Case unsure(VerifyRule rule, CostModel& costs) {
  Case c;
  c.rule = rule;
  c.controller = {.max_k = 3, .confidence_floor = 0.45};
  c.costs = &costs;
  return c;
}

void expect_exact(const Case& c, const std::string& what) {
  const Outcome o = enumerate(c);
  EXPECT_LE(o.error, kExact) << what << " after " << o.runs << " outcomes";
  EXPECT_NEAR(o.mass, 1.0, 1e-9) << what;
}

const VerifyRule kRules[] = {VerifyRule::kToken, VerifyRule::kBlock};

TEST(Enumeration, EveryRuleAndK) {
  for (const VerifyRule rule : kRules)
    for (int k = 1; k <= 3; ++k) {
      Case c = fixed(k, rule);
      c.length = k == 3 ? 3 : k + 2;
      expect_exact(c, to_string(rule) + " K=" + std::to_string(k));
      c.length = c.remaining = 4;  // the answer ends after these tokens, so K is reduced towards the end
      expect_exact(c, to_string(rule) + " to the last token, K=" + std::to_string(k));
    }
}

TEST(Enumeration, SamplingOptionsOnBothModels) {
  const SamplingOptions options[] = {{.temperature = 0.6}, {.temperature = 1.7},
                                     {.top_k = 2},         {.top_p = 0.7},
                                     {.min_p = 0.4},       {.temperature = 1.3, .top_k = 2, .top_p = 0.8, .min_p = 0.3},
                                     {.temperature = 0}};
  for (const VerifyRule rule : kRules)
    for (const SamplingOptions& o : options) {
      Case c = fixed(2, rule);
      c.sampling = o;
      expect_exact(c, to_string(rule) + " T=" + std::to_string(o.temperature) + " k=" + std::to_string(o.top_k) +
                          " p=" + std::to_string(o.top_p) + " m=" + std::to_string(o.min_p));
    }
}

TEST(Enumeration, TemperatureByPosition) {
  const auto tempered = [](toy::Model::Logits inner, double step) -> toy::Model::Logits {
    return [inner, step](std::span<const int32_t> context, std::span<float> logits) {
      inner(context, logits);
      for (float& l : logits) l /= static_cast<float>(0.4 + step * static_cast<double>(context.size()));
    };
  };
  for (const VerifyRule rule : kRules) {
    Case c = fixed(3, rule);
    c.target = tempered(c.target, 0.5);
    c.draft = tempered(c.draft, 0.2);
    expect_exact(c, to_string(rule));
  }
}

TEST(Enumeration, DisjointSupportsAcceptNothing) {
  const float none = -std::numeric_limits<float>::infinity();
  for (const VerifyRule rule : kRules) {
    Case c = fixed(2, rule);
    c.vocab = 4;
    const auto even = toy::random_logits(3), odd = toy::random_logits(4);
    c.target = [=](std::span<const int32_t> x, std::span<float> l) { even(x, l), l[1] = l[3] = none; };
    c.draft = [=](std::span<const int32_t> x, std::span<float> l) { odd(x, l), l[0] = l[2] = none; };
    const Outcome o = enumerate(c);
    EXPECT_LE(o.error, kExact);
    EXPECT_EQ(o.accepted, 0.0);
  }
}

TEST(Enumeration, EqualModelsAcceptAll) {
  for (const VerifyRule rule : kRules) {
    Case c = fixed(3, rule);
    c.draft = c.target;
    const Outcome o = enumerate(c);
    EXPECT_LE(o.error, kExact);
    EXPECT_NEAR(o.accepted, 3.0, 1e-9);
  }
}

TEST(Enumeration, AcceptedAsTheOracleSays) {
  const auto table = [](const std::map<std::string, std::array<double, 3>>& probabilities) -> toy::Model::Logits {
    return [&probabilities](std::span<const int32_t> context, std::span<float> logits) {
      std::string key;
      for (const int32_t t : context.subspan(1)) key += static_cast<char>('0' + t);
      const auto& row = probabilities.at(key.substr(0, 3));
      for (size_t i = 0; i < 3; ++i) logits[i] = static_cast<float>(std::log(row[i]));
    };
  };
  for (const VerifyRule rule : kRules)
    for (int k = 1; k <= 3; ++k) {
      Case c = fixed(k, rule);
      c.target = table(oracle::kTarget);
      c.draft = table(oracle::kDraft);
      c.length = 1;
      const double expected = (rule == VerifyRule::kToken ? oracle::kTokenAccepted : oracle::kBlockAccepted)[k - 1];
      EXPECT_NEAR(enumerate(c).accepted, expected, 1e-6) << to_string(rule) << " K=" << k;
    }
}

TEST(Enumeration, BlockAcceptsAtLeastAsMany) {
  for (uint64_t seed = 10; seed < 20; ++seed) {
    Case c = fixed(3, VerifyRule::kToken);
    c.target = toy::random_logits(seed);
    c.draft = toy::random_logits(seed + 100);
    c.length = 1;
    const double token = enumerate(c).accepted;
    c.rule = VerifyRule::kBlock;
    EXPECT_GE(enumerate(c).accepted, token - 1e-6) << "seed " << seed;
  }
}

// Returns measured costs relative to a plain target pass: a draft pass takes `draft`, and each additional row of a
// target pass takes `per_row`.
CostModel cheap_draft(double draft = 0.05, double per_row = 0.02) {
  CostModel costs;
  for (int batch = 1; batch <= 2; ++batch)
    for (int i = 0; i < 4; ++i) {
      costs.record_draft(batch, draft);
      for (int rows = 1; rows <= 4; ++rows) costs.record_target(batch, rows, 1 + per_row * (rows - 1));
    }
  return costs;
}

TEST(Enumeration, ControllerChoosesKAndStops) {
  for (const VerifyRule rule : kRules) {
    Case c;
    c.rule = rule;
    c.controller = {.max_k = 3};
    c.length = 4;
    c.remaining = 6;
    // Makes drafting expensive and the draft's distributions sharp. Whether one more drafted token pays then depends on
    // the probabilities of the tokens drafted so far.
    CostModel costs = cheap_draft(0.30, 0.05);
    c.costs = &costs;
    c.draft = toy::random_logits(5, 4.0);
    c.controller.prior_overlap = 0.85;
    const Outcome o = enumerate(c);
    EXPECT_LE(o.error, kExact) << to_string(rule) << " after " << o.runs;
    EXPECT_LT(o.min_drafted, o.max_drafted) << "the controller never changed its mind: nothing was tested";
  }
}

TEST(Enumeration, StopsAfterAKeptTokenOfLowConfidence) {
  CostModel costs = cheap_draft();
  for (const VerifyRule rule : kRules) {
    Case c = unsure(rule, costs);
    const Outcome o = enumerate(c);
    EXPECT_LE(o.error, kExact) << to_string(rule);
    EXPECT_EQ(o.max_drafted, 3);
    EXPECT_EQ(o.min_drafted, 1);
  }
}

TEST(Enumeration, ProbesAndPlainStepsMix) {
  CostModel costs = cheap_draft(0.9, 0.5);  // speculation does not pay: plain steps, each followed by a probe
  for (const VerifyRule rule : kRules) {
    Case c;
    c.rule = rule;
    c.controller = {.max_k = 2, .probe_interval = 1, .probe_share = 10};
    c.costs = &costs;
    c.length = 4;
    const Outcome o = enumerate(c);
    EXPECT_LE(o.error, kExact) << to_string(rule);
    EXPECT_EQ(o.min_drafted, 0);
    EXPECT_EQ(o.max_drafted, 2);
  }
}

TEST(Enumeration, BatchOfTwoSequences) {
  for (const VerifyRule rule : kRules) {
    Case c = fixed(2, rule);
    c.sequences = 2;
    c.length = 2;
    c.remaining = 3;
    expect_exact(c, to_string(rule));
  }
}

// The number of drafted tokens depends on which tokens were drawn, and so does whether the target pass fits into the
// cache. Tokens drafted for a pass that did not fit must be verified later. Drawing new tokens instead would bias the
// output, which this enumeration detects.
TEST(Enumeration, APassWithoutRoomForTheBatch) {
  CostModel costs = cheap_draft();
  for (const VerifyRule rule : kRules) {
    Case c = unsure(rule, costs);
    c.sequences = 2;
    c.length = 2;
    c.remaining = 4;
    c.room = 4;
    const Outcome o = enumerate(c);
    EXPECT_LE(o.error, kExact) << to_string(rule);
    EXPECT_GT(o.without_room, o.runs / 10);
    EXPECT_LT(o.without_room, o.runs * 9 / 10) << "some batches find room and some do not";
    c.held_forgotten = true;
    EXPECT_GE(enumerate(c).error, 1e-3) << to_string(rule) << ": a known wrong step passed";
  }
}

// If the target pass of a single sequence does not fit, its deepest drafted levels are dropped, as if drafting had
// stopped before them.
TEST(Enumeration, APassWithoutRoomForTheDeepestLevels) {
  CostModel costs = cheap_draft();
  for (const VerifyRule rule : kRules)
    for (const std::vector<int>& tree : {std::vector<int>{}, {2}, {1, 2}})
      for (int64_t room = 1; room <= 3; ++room) {
        Case c;
        c.rule = rule;
        c.controller = {.max_k = 3, .confidence_floor = 0.45};
        c.costs = &costs;
        c.tree = tree;
        if (!tree.empty()) c.controller.fixed_k = static_cast<int>(tree.size());
        c.length = 2;
        c.room = room;
        const Outcome o = enumerate(c);
        EXPECT_LE(o.error, kExact) << to_string(rule) << ", room for " << room << ", a tree of " << tree.size();
        EXPECT_EQ(o.without_room > 0, tree.size() != 1 || room < 3);
        EXPECT_LE(o.max_drafted, room - 1);
      }
}

}  // namespace
}  // namespace specdec::decode
