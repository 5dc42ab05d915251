// Compares at least 500,000 draws from the seeded random streams with exact probabilities, including texts that take
// several steps of drafting and verification.
#include <gtest/gtest.h>

#include "base/statistics.h"
#include "tests/lossless/enumeration.h"

namespace specdec::decode {
namespace {

// Returns the p-value of Pearson's chi-squared test. Outcomes with an expected count below 5 are merged into one.
double p_value(const std::vector<int64_t>& counts, const std::vector<double>& probabilities, int64_t n) {
  double statistic = 0, rest_expected = 0, rest_seen = 0;
  int cells = 0;
  for (size_t i = 0; i < counts.size(); ++i) {
    const double expected = probabilities[i] * static_cast<double>(n);
    if (expected < 5) {
      rest_expected += expected;
      rest_seen += static_cast<double>(counts[i]);
      continue;
    }
    statistic += (static_cast<double>(counts[i]) - expected) * (static_cast<double>(counts[i]) - expected) / expected;
    ++cells;
  }
  if (rest_expected >= 1) {
    statistic += (rest_seen - rest_expected) * (rest_seen - rest_expected) / rest_expected;
    ++cells;
  } else if (rest_seen > 20) {
    return 0;
  }
  return chi_square_p_value(statistic, cells - 1);
}

constexpr double kSuspicious = 1e-4;

TEST(Sampled, SeededDrawsFollowTheWeights) {
  constexpr int kVocab = 16, kDraws = 500000;
  std::vector<float> weights(kVocab);
  toy::random_logits(7, 3.0)(toy::Tokens{1}, weights);
  double total = 0;
  for (float& w : weights) total += w = std::exp(w);
  weights[5] = 0;  // token 5 must never be drawn
  total = 0;
  for (const float w : weights) total += w;
  std::vector<double> probabilities;
  for (const float w : weights) probabilities.push_back(w / total);
  for (const Purpose purpose : {Purpose::kDraft, Purpose::kResidual, Purpose::kTarget}) {
    SeededRandomness randomness(42);
    std::vector<int64_t> counts(kVocab);
    for (int i = 0; i < kDraws; ++i) ++counts[randomness.draw(purpose, weights)];
    EXPECT_EQ(counts[5], 0);
    EXPECT_GE(p_value(counts, probabilities, kDraws), kSuspicious);
  }
  SeededRandomness randomness(42);
  int64_t yes = 0;
  for (int i = 0; i < kDraws; ++i) yes += randomness.accept(Purpose::kAccept, 0.3);
  EXPECT_GE(p_value({yes, kDraws - yes}, {0.3, 0.7}, kDraws), kSuspicious);
}

TEST(Sampled, StreamsOfOneSeedDiffer) {
  SeededRandomness a(3), b(3), c(4);
  const std::vector<float> flat(1 << 16, 1.f);
  const int32_t draft = a.draw(Purpose::kDraft, flat);
  EXPECT_NE(draft, a.draw(Purpose::kResidual, flat));
  EXPECT_NE(draft, a.draw(Purpose::kTarget, flat));
  EXPECT_NE(draft, a.draw(Purpose::kDraft, flat));
  EXPECT_EQ(draft, b.draw(Purpose::kDraft, flat));
  EXPECT_NE(draft, c.draw(Purpose::kDraft, flat));
}

uint64_t current_run = 0;

// A wrong block verification: the random number for accepting a position depends only on the position in the text, not
// on the round. If a position is rejected and drafted again in the next round, both decisions use the same number.
VerifyResult block_by_position(VerifyRule, const VerifyInput& input, Randomness& randomness,
                               std::vector<float>& scratch) {
  class ByPosition final : public Randomness {
   public:
    ByPosition(Randomness& fresh, int64_t last) : fresh_(fresh), position_(last) {}
    int32_t draw(Purpose purpose, std::span<const float> weights) override { return fresh_.draw(purpose, weights); }
    bool accept(Purpose, double probability) override {  // the rule starts with the last token
      return philox_uniform(current_run, 77, static_cast<uint64_t>(position_--)) < probability;
    }
    int32_t draw_at(int64_t position, std::span<const float> weights) override {
      return fresh_.draw_at(position, weights);
    }

   private:
    Randomness& fresh_;
    int64_t position_;
  } keyed(randomness, input.position + static_cast<int64_t>(input.drafted.size()) - 1);
  return verify_block(input, keyed, scratch);
}

// Returns the smallest p-value of the transitions between the tokens of many short answers with K drafted tokens. Uses
// 16 tokens and a draft whose logits are the negated logits of the target, with which reused noise has the largest
// effect. The logits depend only on the last token, so that every conditional distribution gets many samples.
double least_p_value(VerifyRule rule, int k, Stepper::VerifyFn verify_fn = &verify) {
  constexpr int kVocab = 16, kRuns = 130000, kTokens = 4;  // kRuns · kTokens = 520,000 tokens
  std::vector<std::vector<float>> table(kVocab, std::vector<float>(kVocab));
  for (int32_t t = 0; t < kVocab; ++t) toy::random_logits(9, 1.5)(toy::Tokens{t}, table[t]);
  const toy::Model::Logits logits = [&](std::span<const int32_t> x, std::span<float> l) {
    std::copy(table[x.back()].begin(), table[x.back()].end(), l.begin());
  };
  const toy::Model::Logits opposite = [&](std::span<const int32_t> x, std::span<float> l) {
    for (size_t i = 0; i < l.size(); ++i) l[i] = -table[x.back()][i];
  };
  toy::Model target(kVocab, logits), draft(kVocab, opposite);
  Stepper stepper(target, &draft, nullptr, nullptr, verify_fn);
  ControllerOptions options;
  options.fixed_k = k;
  // transitions[i][a·V + b] counts how often token i was b after a.
  std::vector<std::vector<int64_t>> transitions(kTokens, std::vector<int64_t>(kVocab * kVocab));
  for (int run = 0; run < kRuns; ++run) {
    current_run = static_cast<uint64_t>(run);
    const Request request{{0}, current_run, {.max_tokens = kTokens}};
    Sequence s(stepper, request, {.verify = rule, .model = options});
    Sequence* const batch[] = {&s};
    stepper.start(s);
    while (s.remaining() > 0) stepper.step(batch);
    stepper.close(s);
    for (int i = 0; i < kTokens; ++i) ++transitions[i][s.tokens()[i] * kVocab + s.tokens()[i + 1]];
  }
  double least = 1;
  std::vector<float> p(kVocab);
  std::vector<int32_t> scratch;
  for (int i = 0; i < kTokens; ++i)
    for (int a = 0; a < kVocab; ++a) {
      const std::vector<int64_t> counts(transitions[i].begin() + a * kVocab, transitions[i].begin() + (a + 1) * kVocab);
      int64_t n = 0;
      for (const int64_t c : counts) n += c;
      if (n < 200) continue;
      distribution(table[a], {}, p, scratch);
      least = std::min(least, p_value(counts, std::vector<double>(p.begin(), p.end()), n));
    }
  return least;
}

TEST(Sampled, SeveralRoundsAgainstAnOppositeDraft) {
  for (const VerifyRule rule : {VerifyRule::kToken, VerifyRule::kBlock})
    EXPECT_GE(least_p_value(rule, 2), kSuspicious) << to_string(rule);
}

TEST(Sampled, NumbersThatBelongToPositionsBiasBlockVerification) {
  EXPECT_GE(least_p_value(VerifyRule::kBlock, 3), kSuspicious);
  EXPECT_LT(least_p_value(VerifyRule::kBlock, 3, &block_by_position), 1e-20);
}

}  // namespace
}  // namespace specdec::decode
