// Tests the coupled verification rule. Its noise is shared between draft and target, so there are no independent
// outcomes to enumerate. Instead, these tests show that a single draw follows its weights. They also show that for each
// seed the text equals that of plain decoding, whatever the draft, K, the request's logits processors and the other
// sequences of the batch are.
#include <gtest/gtest.h>

#include <cmath>
#include <deque>
#include <set>

#include "base/error.h"
#include "base/statistics.h"
#include "engine/decode/sampling/sampler.h"
#include "engine/decode/step.h"
#include "tests/lossless/toy.h"

namespace specdec::decode {
namespace {

TEST(Coupled, OneDrawFollowsItsWeights) {
  constexpr int64_t kDraws = 500 * 1000;
  // Small and large weights, some zeros between them, and a sum that is not 1.
  const std::vector<float> weights = {0.5f, 0.f, 2.f, 1e-4f, 0.25f, 0.f, 0.03f, 1.f, 3e-3f};
  double total = 0;
  for (const float w : weights) total += w;
  for (const bool by_seed : {true, false}) {
    std::vector<int64_t> counts(weights.size());
    for (int64_t i = 0; i < kDraws; ++i)
      ++counts[static_cast<size_t>(
          SeededRandomness(by_seed ? static_cast<uint64_t>(i) : 3).draw_at(by_seed ? 7 : i, weights))];
    double statistic = 0;
    for (size_t x = 0; x < weights.size(); ++x) {
      const double want = weights[x] / total * kDraws;
      if (want == 0)
        EXPECT_EQ(counts[x], 0);
      else
        statistic += (static_cast<double>(counts[x]) - want) * (static_cast<double>(counts[x]) - want) / want;
    }
    EXPECT_GE(chi_square_p_value(statistic, 6), 1e-4) << (by_seed ? "over seeds" : "over positions");
  }
}

TEST(Coupled, EqualPositionsShareTheirNoiseAndOthersDoNot) {
  const std::vector<float> flat(1 << 12, 1.f);
  std::vector<float> half = flat;
  SeededRandomness a(5), b(5), c(6);
  const int32_t x = a.draw_at(3, flat);
  EXPECT_EQ(x, a.draw_at(3, flat)) << "a draw uses nothing up";
  EXPECT_EQ(x, b.draw_at(3, flat));
  EXPECT_NE(x, a.draw_at(4, flat));
  EXPECT_NE(x, c.draw_at(3, flat));
  EXPECT_NE(x, a.draw(Purpose::kDraft, flat));
  for (size_t i = 0; i < half.size(); ++i) half[i] = i == static_cast<size_t>(x) ? 1.f : 0.5f;
  EXPECT_EQ(x, a.draw_at(3, half)) << "what gained weight stays";
  EXPECT_THROW(a.draw_at(0, std::vector<float>(4, 0.f)), Error);
}

// Checks that (1 − TV) / (1 + TV) <= acceptance <= 1 − TV, where TV is the total variation distance of p and q.
TEST(Coupled, AcceptsWithinItsBounds) {
  for (const double spread : {0.3, 1.0, 3.0}) {
    std::vector<float> p(32), q(32);
    std::vector<int32_t> ids;
    toy::random_logits(1, spread)(toy::Tokens{1}, p);
    toy::random_logits(2, spread)(toy::Tokens{1}, q);
    distribution(p, {}, p, ids);
    distribution(q, {}, q, ids);
    constexpr int64_t kDraws = 40000;
    int64_t agreed = 0;
    SeededRandomness noise(8);
    for (int64_t i = 0; i < kDraws; ++i) agreed += noise.draw_at(i, p) == noise.draw_at(i, q);
    const double rate = static_cast<double>(agreed) / kDraws, alpha = overlap(p, q),
                 slack = 4 * std::sqrt(0.25 / kDraws);
    EXPECT_GE(rate, alpha / (2 - alpha) - slack);
    EXPECT_LE(rate, alpha + slack);
  }
}

struct Setting {
  uint64_t draft = 2;
  int k = 0;  // -1: adaptive
  SamplingOptions sampling = {};
  int neighbours = 0;
  std::vector<int> tree = {};
};

// Returns 24 tokens generated after a prompt of one token, and the number of drafted tokens.
std::pair<toy::Tokens, int64_t> text_of(uint64_t seed, const Setting& setting) {
  toy::Model target(12, toy::random_logits(1, 1.5)), draft(12, toy::random_logits(setting.draft, 1.5));
  Stepper stepper(target, &draft);
  ControllerOptions options;
  options.fixed_k = setting.k;
  options.tree = setting.tree;
  LogitsProcessors rules;
  rules.presence_penalty = 0.7;
  rules.bad_words = {{3, 4}};
  rules.allowed_ids = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
  rules.min_tokens = 5;
  rules.stop_ids = {2, 6};
  const RequestOptions asked{
      .max_tokens = 24, .sampling = setting.sampling, .rules = std::make_shared<const LogitsProcessors>(rules)};
  std::deque<Sequence> sequences;
  std::vector<Sequence*> batch;
  for (size_t i = 0; i <= static_cast<size_t>(setting.neighbours); ++i) {
    const Drafting drafts{.verify = i % 2 == 0 ? VerifyRule::kCoupled : VerifyRule::kBlock, .model = options};
    Sequence& s = sequences.emplace_back(stepper, Request{{static_cast<int32_t>(i)}, seed + i, asked}, drafts);
    stepper.start(s);
    batch.push_back(&s);
  }
  while (sequences[0].remaining() > 0) {
    stepper.step(batch);
    std::erase_if(batch, [](const Sequence* s) { return s->remaining() == 0; });
  }
  return {sequences[0].tokens(), sequences[0].counts().drafted};
}

TEST(Coupled, TheTextDependsOnTheSeedAlone) {
  std::set<toy::Tokens> texts;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    const SamplingOptions sampling = seed % 3 == 0   ? SamplingOptions{}
                                     : seed % 3 == 1 ? SamplingOptions{.temperature = 0.7, .top_p = 0.9}
                                                     : SamplingOptions{.top_k = 5, .min_p = 0.02};
    const auto [plain, none] = text_of(seed, {.k = 0, .sampling = sampling});
    EXPECT_EQ(none, 0);
    texts.insert(plain);
    for (const uint64_t draft : {1, 2, 3})
      for (const int k : {-1, 1, 2, 3, 5, 8}) {
        const auto [text, drafted] = text_of(seed, {draft, k, sampling, static_cast<int>(seed % 4)});
        EXPECT_EQ(text, plain) << "seed " << seed << ", draft " << draft << ", K " << k;
        EXPECT_GT(drafted, 0);
      }
    for (const std::vector<int>& tree : {std::vector<int>{2}, {3, 2, 1}, {2, 2, 2}})
      EXPECT_EQ(text_of(seed, {2, static_cast<int>(tree.size()), sampling, static_cast<int>(seed % 3), tree}).first,
                plain)
          << "seed " << seed << ", a tree";
  }
  EXPECT_GT(texts.size(), 55u);
}

}  // namespace
}  // namespace specdec::decode
