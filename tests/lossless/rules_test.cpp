// Tests penalties, bias, forbidden and allowed tokens and grammars under speculation. For every verification rule, the
// joint distribution of the emitted tokens must equal that of plain decoding with the same processors. It must differ
// if verification ignores the processors.
#include <gtest/gtest.h>

#include <map>

#include "tests/lossless/enumeration.h"

namespace specdec::decode {
namespace {

constexpr double kRounding = 5e-7;  // allowed error: the processors run in fp32, the reference in double

struct NamedRules {
  const char* name;
  LogitsProcessors rules;
};

std::unique_ptr<Constraint> automaton() { return std::make_unique<toy::Automaton>(); }

std::vector<NamedRules> each_and_together() {
  const auto make = [](const char* name, auto change) {
    NamedRules named{name, {}};
    change(named.rules);
    return named;
  };
  return {
      make("presence", [](LogitsProcessors& r) { r.presence_penalty = 1.3; }),
      make("frequency", [](LogitsProcessors& r) { r.frequency_penalty = -0.9; }),
      make("repetition", [](LogitsProcessors& r) { r.repetition_penalty = 1.8; }),
      make("bias", [](LogitsProcessors& r) { r.bias = {{0, 1.5f}, {1, -2.f}}; }),
      make("bad words", [](LogitsProcessors& r) { r.bad_words = {{1, 0}, {0, 1, 1}}; }),
      make("grammar", [](LogitsProcessors& r) { r.constraint = automaton; }),
      make("allowed", [](LogitsProcessors& r) { r.allowed_ids = {2, 0}; }),
      make("min tokens",
           [](LogitsProcessors& r) {
             r.min_tokens = 2;
             r.stop_ids = {2};
           }),
      make("min tokens of those allowed",
           [](LogitsProcessors& r) {
             r.allowed_ids = {1, 2};
             r.min_tokens = 1;
             r.stop_ids = {2, 0};
           }),
      make("all",
           [](LogitsProcessors& r) {
             r.presence_penalty = -0.4;
             r.frequency_penalty = 0.8;
             r.repetition_penalty = 0.7;
             r.bias = {{1, 0.9f}, {0, -0.6f}};
             r.bad_words = {{1, 0}};
             r.allowed_ids = {0, 1, 2};
             r.min_tokens = 1;
             r.stop_ids = {2};
             r.constraint = automaton;
           }),
  };
}

const VerifyRule kBoth[] = {VerifyRule::kToken, VerifyRule::kBlock};

Case ruled(const LogitsProcessors& rules, int k, VerifyRule rule) {
  Case c;
  c.rules = rules;
  c.rule = rule;
  c.controller.fixed_k = k;
  if (k > 2) c.remaining = k + 1;  // K is reduced after the first step, which leaves fewer outcomes
  return c;
}

TEST(Rules, EveryRuleForEveryKAndVerification) {
  for (const NamedRules& named : each_and_together())
    for (const VerifyRule rule : kBoth)
      for (int k = 0; k <= 4; ++k) {
        const Outcome o = enumerate(ruled(named.rules, k, rule));
        EXPECT_LE(o.error, kRounding) << named.name << " " << to_string(rule) << " K=" << k << " after " << o.runs;
        EXPECT_NEAR(o.mass, 1.0, 1e-9) << named.name;
        EXPECT_EQ(o.max_drafted, k) << named.name;
      }
}

TEST(Rules, WithTemperatureAndCutsAndGreedy) {
  const SamplingOptions options[] = {
      {.temperature = 0}, {.temperature = 1.4, .top_k = 2}, {.top_p = 0.8, .min_p = 0.2}};
  for (const NamedRules& named : each_and_together())
    for (const VerifyRule rule : kBoth)
      for (const SamplingOptions& sampling : options) {
        Case c = ruled(named.rules, 2, rule);
        c.sampling = sampling;
        EXPECT_LE(enumerate(c).error, kRounding)
            << named.name << " " << to_string(rule) << " T=" << sampling.temperature;
      }
}

TEST(Rules, TwoSequencesKeepTheirOwnState) {
  for (const VerifyRule rule : kBoth) {
    Case c = ruled(each_and_together().back().rules, 2, rule);
    c.sequences = 2;
    c.length = 2;
    c.remaining = 3;
    EXPECT_LE(enumerate(c).error, kRounding) << to_string(rule);
  }
}

TEST(Rules, AdaptiveKIsExactUnderRules) {
  CostModel costs;
  for (int i = 0; i < 4; ++i) {
    costs.record_draft(1, 0.05);
    for (int rows = 1; rows <= 4; ++rows) costs.record_target(1, rows, 1 + 0.02 * (rows - 1));
  }
  for (const VerifyRule rule : kBoth) {
    Case c = ruled(each_and_together().back().rules, 0, rule);
    c.controller = {.max_k = 3, .confidence_floor = 0.45};
    c.costs = &costs;
    const Outcome o = enumerate(c);
    EXPECT_LE(o.error, kRounding) << to_string(rule);
    EXPECT_LT(o.min_drafted, o.max_drafted);
  }
}

TEST(Rules, LeftOutOnVerificationEachOneIsFound) {
  for (const NamedRules& named : each_and_together())
    for (const VerifyRule rule : kBoth)
      for (const int k : {0, 2}) {
        Case c = ruled(named.rules, k, rule);
        c.rules_left_out = true;
        EXPECT_GE(enumerate(c).error, 1e-3) << named.name << " " << to_string(rule) << " K=" << k;
      }
}

// A wrong constraint. Like an engine that updates penalties only once per step, it uses the state at the start of the
// step for all positions of the step.
class Frozen final : public Constraint {
 public:
  MaskState allowed(std::span<uint32_t> bits) override {
    std::fill(bits.begin(), bits.end(), 0u);
    for (int32_t id = 0; id < 32; ++id)
      if (toy::Automaton::allows(settled_, id)) bits[0] |= 1u << id;
    return MaskState::kReady;
  }
  void push(int32_t token) override { tokens_.push_back(token), settle(); }
  void pop(int64_t count) override { tokens_.resize(tokens_.size() - static_cast<size_t>(count)); }

 private:
  // A constraint does not know how many tokens were accepted. With K = 1, every second token is treated as the first
  // token of a step.
  void settle() {
    if (tokens_.size() % 2 == 0) settled_ = tokens_;
  }
  toy::Tokens tokens_, settled_;
};

// An automaton whose masks are late. If the last token is 1, the mask is ready after one request, otherwise after
// `times` requests.
class Late final : public Constraint {
 public:
  explicit Late(int times) : times_(times) {}
  MaskState allowed(std::span<uint32_t> bits) override {
    const MaskState state = prepare();
    return state == MaskState::kReady ? automaton_.allowed(bits) : state;
  }
  MaskState prepare() override {
    const bool early = !tokens_.empty() && tokens_.back() == 1;
    return asked_[tokens_]++ < (early ? 1 : times_) ? MaskState::kLate : MaskState::kReady;
  }
  void push(int32_t token) override { automaton_.push(token), tokens_.push_back(token); }
  void pop(int64_t count) override {
    automaton_.pop(count);
    tokens_.resize(tokens_.size() - static_cast<size_t>(count));
  }

 private:
  const int times_;
  toy::Automaton automaton_;
  toy::Tokens tokens_;
  std::map<toy::Tokens, int> asked_;
};

// With times = 1, each mask is ready when the draft needs it. With times = 2, a mask can be late for the draft, which
// then stops drafting. With times = 3, it can also be late in verification, and the drafted tokens are held for the
// next step. A step that drew new tokens instead would change the distribution of the text.
TEST(Rules, LateMasksLeaveTheDistributionAsItIs) {
  for (const VerifyRule rule : kBoth)
    for (const int times : {1, 2, 3}) {
      Case c = ruled({}, 2, rule);
      c.remaining = 4;
      c.rules.constraint = [times] { return std::make_unique<Late>(times); };
      const Outcome o = enumerate(c);
      EXPECT_LE(o.error, kRounding) << to_string(rule) << " " << times;
      EXPECT_NEAR(o.mass, 1, kRounding);
      EXPECT_GT(o.max_drafted, 0);
    }
  Case tree = ruled({}, 2, VerifyRule::kToken);
  tree.tree = {2, 1};
  tree.remaining = 4;
  tree.length = 2;
  tree.rules.constraint = [] { return std::make_unique<Late>(3); };
  EXPECT_LE(enumerate(tree).error, kRounding);
}

TEST(Rules, ADraftForgottenBecauseItsMaskIsLateIsFound) {
  Case c = ruled({}, 1, VerifyRule::kToken);
  c.length = 2;
  c.held_forgotten = true;
  c.rules.constraint = [] { return std::make_unique<Late>(3); };
  EXPECT_GE(enumerate(c).error, 1e-3);
}

// An automaton that computes `most` masks and then fails permanently, like a grammar that exceeds its memory limit.
class Brittle final : public Constraint {
 public:
  explicit Brittle(int most) : left_(most) {}
  MaskState allowed(std::span<uint32_t> bits) override {
    return left_-- > 0 ? automaton_.allowed(bits) : MaskState::kSpent;
  }
  void push(int32_t token) override { automaton_.push(token); }
  void pop(int64_t count) override { automaton_.pop(count); }

 private:
  int left_;
  toy::Automaton automaton_;
};

// The grammar computes one mask for each of the four tokens, which is enough for plain decoding. If drafted tokens use
// up masks, the text must still not end.
TEST(Rules, AGrammarThatFailsBecauseOfADraftLeavesTheDistributionAsItIs) {
  for (const VerifyRule rule : {VerifyRule::kToken, VerifyRule::kBlock, VerifyRule::kTarget})
    for (const double temperature : {0.0, 1.0})
      for (int k = 0; k <= 3; ++k) {
        Case c = ruled({}, k, rule);
        c.remaining = 4;
        c.sampling.temperature = temperature;
        c.rules.constraint = [] { return std::make_unique<Brittle>(4); };
        const Outcome o = enumerate(c);
        EXPECT_LE(o.error, kRounding) << to_string(rule) << " K=" << k << " T=" << temperature;
        EXPECT_NEAR(o.mass, 1, kRounding);
        EXPECT_EQ(o.max_drafted, k);
      }
  for (const VerifyRule rule : kBoth) {
    Case tree = ruled({}, 2, rule);
    tree.tree = {2, 1};
    tree.remaining = 4;
    tree.length = 2;
    tree.rules.constraint = [] { return std::make_unique<Brittle>(4); };
    EXPECT_LE(enumerate(tree).error, kRounding) << to_string(rule);
  }
}

TEST(Rules, AStateThatLagsBehindIsFound) {
  Case c = ruled({}, 1, VerifyRule::kToken);
  c.rules.constraint = [] { return std::make_unique<Frozen>(); };
  EXPECT_GE(enumerate(c).error, 1e-3);
}

}  // namespace
}  // namespace specdec::decode
