// Tests the seeded streams with at least 500,000 draws against exact probabilities, including several rounds.
#include <gtest/gtest.h>

#include "base/statistics.h"
#include "tests/lossless/enumeration.h"

namespace specdec::decode {
namespace {

// Returns the p-value of Pearson's statistic over cells; cells that expect fewer than 5 are merged.
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

// Uses 16 tokens and a draft whose logits are the target's negated ones, where reused noise would show most.
TEST(Sampled, SeveralRoundsAgainstAnOppositeDraft) {
  constexpr int kVocab = 16, kRuns = 130000, kTokens = 4;  // 520,000 tokens per rule
  // The logits depend only on the last token, so that every conditional distribution gets many samples.
  std::vector<std::vector<float>> table(kVocab, std::vector<float>(kVocab));
  for (int32_t t = 0; t < kVocab; ++t) toy::random_logits(9, 1.5)(toy::Tokens{t}, table[t]);
  const toy::Model::Logits logits = [&](std::span<const int32_t> x, std::span<float> l) {
    std::copy(table[x.back()].begin(), table[x.back()].end(), l.begin());
  };
  const toy::Model::Logits opposite = [&](std::span<const int32_t> x, std::span<float> l) {
    for (size_t i = 0; i < l.size(); ++i) l[i] = -table[x.back()][i];
  };
  std::vector<std::vector<float>> p(kVocab, std::vector<float>(kVocab));
  std::vector<int32_t> scratch;
  for (int32_t t = 0; t < kVocab; ++t) distribution(table[t], {}, p[t], scratch);

  for (const VerifyRule rule : {VerifyRule::kToken, VerifyRule::kBlock}) {
    toy::Model target(kVocab, logits), draft(kVocab, opposite);
    Stepper stepper(target, &draft);
    ControllerOptions options;
    options.fixed_k = 2;
    // transitions[i][a·V + b] counts how often token i was b after a.
    std::vector<std::vector<int64_t>> transitions(kTokens, std::vector<int64_t>(kVocab * kVocab));
    for (int run = 0; run < kRuns; ++run) {
      const Request request{{0}, static_cast<uint64_t>(run), {.max_tokens = kTokens}};
      Sequence s(stepper, request, {.verify = rule, .model = options});
      Sequence* const batch[] = {&s};
      stepper.start(s);
      while (s.remaining() > 0) stepper.step(batch);
      stepper.close(s);
      for (int i = 0; i < kTokens; ++i) ++transitions[i][s.tokens()[i] * kVocab + s.tokens()[i + 1]];
    }
    for (int i = 0; i < kTokens; ++i)
      for (int a = 0; a < kVocab; ++a) {
        const std::vector<int64_t> counts(transitions[i].begin() + a * kVocab,
                                          transitions[i].begin() + (a + 1) * kVocab);
        int64_t n = 0;
        for (const int64_t c : counts) n += c;
        if (n < 200) continue;
        EXPECT_GE(p_value(counts, std::vector<double>(p[a].begin(), p[a].end()), n), kSuspicious)
            << to_string(rule) << ": token " << i << " after " << a << " (" << n << " runs)";
      }
  }
}

}  // namespace
}  // namespace specdec::decode
