// Enumerates the whole step with draft trees: children drawn without replacement, each verification rule, and caches
// that are cut to the accepted path.
#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "tests/lossless/enumeration.h"

namespace specdec::decode {
namespace {

constexpr double kExact = 1e-6, kWrong = 1e-3;
const VerifyRule kRules[] = {VerifyRule::kToken, VerifyRule::kBlock, VerifyRule::kTarget};

Case tree_case(std::vector<int> tree, VerifyRule rule) {
  Case c;
  c.controller.fixed_k = static_cast<int>(tree.size());
  c.tree = std::move(tree);
  c.rule = rule;
  c.length = 2;
  return c;
}

void expect_exact(const Case& c, const std::string& what) {
  const Outcome o = enumerate(c);
  EXPECT_LE(o.error, kExact) << what;
  EXPECT_NEAR(o.mass, 1, kExact) << what;
}

TEST(Trees, EveryRuleAndShape) {
  for (const std::vector<int>& tree :
       std::vector<std::vector<int>>{{1}, {2}, {3}, {1, 2}, {2, 1}, {1, 1, 1}, {1, 3}, {2, 2}})
    for (const VerifyRule rule : kRules)
      expect_exact(tree_case(tree, rule),
                   to_string(rule) + ", first level " + std::to_string(tree[0]) + " of " + std::to_string(tree.size()));
}

TEST(Trees, GreedyAndCuts) {
  for (const VerifyRule rule : kRules) {
    Case c = tree_case({2, 2}, rule);
    c.sampling.temperature = 0;
    expect_exact(c, "greedy " + to_string(rule));
    c.sampling = {.temperature = 0.7, .top_k = 2};  // fewer tokens have a positive probability than a node has children
    c.tree = {3, 1};
    expect_exact(c, "top-k " + to_string(rule));
    c.sampling = {.top_p = 0.6};
    expect_exact(c, "top-p " + to_string(rule));
  }
}

TEST(Trees, DisjointAndEqualModels) {
  const float none = -std::numeric_limits<float>::infinity();
  for (const VerifyRule rule : kRules) {
    Case c = tree_case({2, 1}, rule);
    c.vocab = 4;
    const auto even = toy::random_logits(3), odd = toy::random_logits(4);
    c.target = [=](std::span<const int32_t> x, std::span<float> l) { even(x, l), l[1] = l[3] = none; };
    c.draft = [=](std::span<const int32_t> x, std::span<float> l) { odd(x, l), l[0] = l[2] = none; };
    const Outcome apart = enumerate(c);
    EXPECT_LE(apart.error, kExact);
    EXPECT_EQ(apart.accepted, 0.0);
    c = tree_case({2, 1}, rule);
    c.draft = c.target;
    const Outcome equal = enumerate(c);
    EXPECT_LE(equal.error, kExact);
    if (rule != VerifyRule::kTarget) {
      EXPECT_NEAR(equal.accepted, 2.0, 1e-6) << to_string(rule);
    }
  }
}

TEST(Trees, WithRulesOfTheRequest) {
  for (const VerifyRule rule : kRules) {
    Case c = tree_case({2, 1}, rule);
    c.rules.presence_penalty = 1.3;
    c.rules.frequency_penalty = 0.4;
    c.rules.bias = {{1, 0.8f}};
    c.rules.bad_words = {{2, 0}};
    expect_exact(c, to_string(rule));
    c.rules_left_out = true;
    EXPECT_GE(enumerate(c).error, kWrong) << "rules that verification does not know are found";
  }
}

TEST(Trees, WithTokensThatMayNotComeOrNotYet) {
  for (const VerifyRule rule : kRules)
    for (const double temperature : {1.0, 0.0}) {
      Case c = tree_case({2, 1}, rule);
      c.sampling.temperature = temperature;
      c.rules.min_tokens = 2;
      c.rules.stop_ids = {2};
      expect_exact(c, to_string(rule));
      c.rules.allowed_ids = {1, 2};  // each node has one child, although the tree allows two
      expect_exact(c, to_string(rule));
      c.rules.min_tokens = 0;
      expect_exact(c, to_string(rule));
    }
}

// The draft's other tokens are too unlikely to become children (rules::kLeastDrawn), so each node has one child.
TEST(Trees, WithoutFurtherChildrenWhereTheDraftIsSure) {
  for (const VerifyRule rule : kRules) {
    Case c = tree_case({3, 1}, rule);
    c.draft = [](std::span<const int32_t>, std::span<float> logits) {
      for (size_t i = 0; i < logits.size(); ++i) logits[i] = i == 1 ? 0.f : -16.f - static_cast<float>(i);
    };
    expect_exact(c, to_string(rule));
    const double accepted = enumerate(c).accepted;
    c.tree = {1, 1};
    EXPECT_EQ(enumerate(c).accepted, accepted) << to_string(rule);
  }
}

TEST(Trees, TwoSequencesOfOtherDepths) {
  for (const VerifyRule rule : kRules) {
    Case c = tree_case({2, 1}, rule);
    c.sequences = 2;
    c.length = 1;
    expect_exact(c, to_string(rule));
  }
}

// More children per node never reduce acceptance: with children drawn without replacement, the expected number of
// accepted tokens is at least that of a chain.
TEST(Trees, KeepMoreThanChains) {
  for (const uint64_t seed : {1, 5, 9}) {
    const auto accepted = [&](std::vector<int> tree, VerifyRule rule) {
      Case c = tree_case(std::move(tree), rule);
      c.target = toy::random_logits(seed);
      c.draft = toy::random_logits(seed + 100);
      c.length = 1;
      return enumerate(c).accepted;
    };
    for (const VerifyRule rule : kRules) {
      EXPECT_GT(accepted({2, 2}, rule), accepted({1, 2}, rule)) << to_string(rule);
      EXPECT_GT(accepted({2, 1}, rule), accepted({1, 1}, rule)) << to_string(rule);
    }
    EXPECT_GE(accepted({2, 2}, VerifyRule::kBlock), accepted({2, 2}, VerifyRule::kToken) - 1e-9);
  }
}

// A tree with one child per node gives the same result as a chain.
TEST(Trees, OfOneChildAreChains) {
  for (const VerifyRule rule : {VerifyRule::kToken, VerifyRule::kBlock}) {
    Case tree = tree_case({1, 1, 1}, rule), chain = tree;
    chain.tree.clear();
    EXPECT_NEAR(enumerate(tree).accepted, enumerate(chain).accepted, 1e-7) << to_string(rule);
  }
}

// Some nodes of a level have no children: the draft can propose no token after them, although the target can continue.
TEST(Trees, DeadEndsBesideNeighbours) {
  const float none = -std::numeric_limits<float>::infinity();
  for (const VerifyRule rule : kRules)
    for (const double temperature : {1.0, 0.0}) {
      Case c = tree_case({2, 1}, rule);
      c.sampling.temperature = temperature;
      const auto model = toy::random_logits(5);
      // The draft gives a positive probability only to tokens 0 and 1, and the request forbids both after a 1.
      c.draft = [=](std::span<const int32_t> x, std::span<float> l) { model(x, l), l[2] = none; };
      c.rules.bad_words = {{1, 0}, {1, 1}};
      c.sequences = 2;
      c.length = 1;
      expect_exact(c, to_string(rule) + " at " + std::to_string(temperature));
      c.sequences = 1;
      c.length = 3;
      expect_exact(c, to_string(rule) + " alone at " + std::to_string(temperature));
    }
}

// If a draft throws in the middle of a tree, only its own sequence continues without a draft. The other sequence keeps
// its draft.
TEST(Trees, ADraftThatFailsAtALevelCostsItsOwnSequenceOnly) {
  for (const bool throws : {true, false}) {
    toy::Model target(6, toy::random_logits(1)), draft(6, [&](std::span<const int32_t> x, std::span<float> l) {
      toy::random_logits(2)(x, l);
      if (!throws && x.size() == 4 && x.front() == 1)
        std::fill(l.begin(), l.end(), std::numeric_limits<float>::quiet_NaN());
    });
    if (throws)
      draft.before_pass = [&draft](std::span<const Extension> extensions) {
        for (const Extension& e : extensions)
          if (!e.parents.empty() && draft.cache(e.sequence).front() == 1)
            throw Error(ErrorKind::kDevice, "a level of a tree");
      };
    Stepper stepper(target, &draft);
    std::deque<Sequence> sequences;
    ControllerOptions options;
    options.fixed_k = 3;
    options.tree = {2, 2, 1};
    const auto request = [](int32_t i) { return Request{{i, 3}, 7 + static_cast<uint64_t>(i), {.max_tokens = 30}}; };
    std::vector<Sequence*> batch;
    for (int32_t i = 0; i < 2; ++i) {
      const Drafting drafts{.verify = VerifyRule::kCoupled, .model = options};
      Sequence& s = sequences.emplace_back(stepper, request(i), drafts);
      stepper.start(s);
      batch.push_back(&s);
    }
    while (!batch.empty()) {
      stepper.step(batch);
      std::erase_if(batch, [](const Sequence* s) { return s->remaining() == 0; });
    }
    EXPECT_FALSE(sequences[0].draft_failed());
    EXPECT_TRUE(sequences[1].draft_failed());
    for (int32_t i = 0; i < 2; ++i) {  // the texts equal those of plain decoding
      Sequence plain(stepper, request(i), {.verify = VerifyRule::kCoupled});
      stepper.start(plain);
      Sequence* const alone[] = {&plain};
      while (plain.remaining() > 0) stepper.step(alone);
      EXPECT_EQ(plain.tokens(), sequences[static_cast<size_t>(i)].tokens());
      stepper.close(plain);
    }
  }
}

// The enumeration must fail for verification functions with known mistakes.
TEST(Trees, WrongRulesAreFound) {
  const auto error = [](VerifyRule rule, Stepper::VerifyFn fn) {
    Case c = tree_case({2, 1}, rule);
    c.verify_fn = fn;
    return enumerate(c).error;
  };
  // A wrong rule: tests the second child against q as if the first child had not been removed from q before the draw.
  EXPECT_GE(error(VerifyRule::kToken,
                  [](VerifyRule, const VerifyInput& in, Randomness& r, std::vector<float>& scratch) -> VerifyResult {
                    const int32_t first = next_child(in, -1), second = next_child(in, -1, first + 1);
                    std::vector<float> p(in.p[0].begin(), in.p[0].end());
                    for (const int32_t child : {first, second}) {
                      if (child < 0) break;
                      const auto x = static_cast<size_t>(in.drafted[static_cast<size_t>(child)]);
                      if (r.accept(Purpose::kAccept, std::min(1.0, static_cast<double>(p[x]) / in.q[0][x])))
                        return {1, r.draw(Purpose::kTarget, in.p[static_cast<size_t>(child) + 1]), child};
                      scratch.assign(p.size(), 0);
                      double total = 0;
                      for (size_t i = 0; i < p.size(); ++i) total += scratch[i] = std::max(p[i] - in.q[0][i], 0.f);
                      for (size_t i = 0; i < p.size() && total > 0; ++i) p[i] = static_cast<float>(scratch[i] / total);
                    }
                    return {0, r.draw(Purpose::kResidual, p), -1};
                  }),
            kWrong);
  // A wrong rule: verifies the draft's likeliest tokens as if they had been drawn from q.
  Case c = tree_case({2}, VerifyRule::kTarget);
  c.verify_fn = [](VerifyRule, const VerifyInput& in, Randomness& r, std::vector<float>&) {
    return verify_recursive(in, r);
  };
  EXPECT_GE(enumerate(c).error, kWrong);
}

// Two children of a node with the same token are an error.
TEST(Trees, TwinsAreAnError) {
  toy::Enumerator choices;
  choices.begin();
  const std::vector<float> p = {0.1f, 0.9f}, q = {0.9f, 0.1f};
  const std::vector<int32_t> drafted = {0, 0}, parents = {-1, -1};
  VerifyInput input;
  input.drafted = drafted;
  input.parents = parents;
  input.p = {p, p, p};
  input.q = {q, q};
  EXPECT_THROW(
      do {
        choices.begin();
        verify_recursive(input, choices);
      } while (choices.advance()),
      Error);
}

}  // namespace
}  // namespace specdec::decode
