// Verification rules that are known to be wrong must fail the comparison that the correct rules pass.
#include <gtest/gtest.h>

#include "tests/lossless/enumeration.h"

namespace specdec::decode {
namespace {

constexpr double kWrong = 1e-3;

double error_of(Stepper::VerifyFn rule, VerifyRule base = VerifyRule::kToken, SamplingOptions sampling = {}) {
  Case c;
  c.controller.fixed_k = 3;
  c.length = 3;
  c.remaining = 4;
  c.verify_fn = rule;
  c.rule = base;
  c.sampling = sampling;
  return enumerate(c).error;
}

VerifyInput first(const VerifyInput& input, size_t k) {
  VerifyInput cut = input;
  cut.drafted = input.drafted.first(k);
  cut.p.resize(k + 1);
  cut.q.resize(k);
  return cut;
}

TEST(WrongRules, ResidualIsTargetWithoutTheToken) {
  const Stepper::VerifyFn rule = [](VerifyRule, const VerifyInput& in, Randomness& r,
                                    std::vector<float>& scratch) -> VerifyResult {
    for (size_t i = 0; i < in.drafted.size(); ++i) {
      const int32_t x = in.drafted[i];
      if (r.accept(Purpose::kAccept, std::min(1.0, static_cast<double>(in.p[i][x]) / in.q[i][x]))) continue;
      scratch.assign(in.p[i].begin(), in.p[i].end());
      scratch[x] = 0;
      return {static_cast<int64_t>(i), r.draw(Purpose::kResidual, scratch)};
    }
    return {static_cast<int64_t>(in.drafted.size()), r.draw(Purpose::kTarget, in.p.back())};
  };
  EXPECT_GE(error_of(rule), kWrong);
}

TEST(WrongRules, DraftDistributionOfAnotherTemperature) {
  const Stepper::VerifyFn rule = [](VerifyRule base, const VerifyInput& in, Randomness& r,
                                    std::vector<float>& scratch) {
    std::vector<std::vector<float>> q;
    VerifyInput other = in;
    for (size_t i = 0; i < in.q.size(); ++i) {
      auto& row = q.emplace_back(in.q[i].begin(), in.q[i].end());
      float total = 0;
      for (float& w : row) total += w = std::pow(w, 1 / 1.3f);
      for (float& w : row) w /= total;
    }
    for (size_t i = 0; i < q.size(); ++i) other.q[i] = q[i];
    return verify(base, other, r, scratch);
  };
  EXPECT_GE(error_of(rule), kWrong);
  EXPECT_GE(error_of(rule, VerifyRule::kBlock), kWrong);
}

TEST(WrongRules, TargetNotRenormalisedAfterTopP) {
  const Stepper::VerifyFn rule = [](VerifyRule base, const VerifyInput& in, Randomness& r,
                                    std::vector<float>& scratch) {
    std::vector<std::vector<float>> p;
    VerifyInput other = in;
    for (const auto row : in.p) {
      auto& raw = p.emplace_back(row.begin(), row.end());
      for (float& w : raw) w *= 0.75f;  // 0.75 is the total probability of the tokens that top-p keeps
    }
    for (size_t i = 0; i < p.size(); ++i) other.p[i] = p[i];
    return verify(base, other, r, scratch);
  };
  EXPECT_GE(error_of(rule, VerifyRule::kToken, {.top_p = 0.7}), kWrong);
  EXPECT_GE(error_of(rule, VerifyRule::kBlock, {.top_p = 0.7}), kWrong);
}

TEST(WrongRules, BlockTruncatedAfterLookingAtAcceptance) {
  const Stepper::VerifyFn rule = [](VerifyRule base, const VerifyInput& in, Randomness& r,
                                    std::vector<float>& scratch) {
    const VerifyResult seen = verify(base, in, r, scratch);
    if (seen.accepted == static_cast<int64_t>(in.drafted.size())) return seen;
    // Draws the next token as if the rejected tokens had not been drafted.
    return VerifyResult{seen.accepted, r.draw(Purpose::kTarget, in.p[seen.accepted])};
  };
  EXPECT_GE(error_of(rule), kWrong);
  EXPECT_GE(error_of(rule, VerifyRule::kBlock), kWrong);
}

TEST(WrongRules, DrawnTokenDiscardedForItsOwnLowConfidence) {
  const Stepper::VerifyFn rule = [](VerifyRule base, const VerifyInput& in, Randomness& r,
                                    std::vector<float>& scratch) {
    size_t k = 0;
    while (k < in.drafted.size() && in.q[k][in.drafted[k]] >= 0.3f) ++k;
    return verify(base, first(in, k), r, scratch);
  };
  EXPECT_GE(error_of(rule), kWrong);
  EXPECT_GE(error_of(rule, VerifyRule::kBlock), kWrong);
}

TEST(WrongRules, RejectedTokenKept) {
  const Stepper::VerifyFn rule = [](VerifyRule base, const VerifyInput& in, Randomness& r,
                                    std::vector<float>& scratch) {
    VerifyResult result = verify(base, in, r, scratch);
    if (result.accepted < static_cast<int64_t>(in.drafted.size())) result.next = in.drafted[result.accepted];
    return result;
  };
  EXPECT_GE(error_of(rule), kWrong);
}

// A wrong source of randomness: draws each draft token by inverse CDF from a uniform number, and draws the residual
// from the same number. Given the drafted token, that number is uniformly distributed over the token's interval of q's
// CDF.
class ReusedNoise final : public Randomness {
 public:
  explicit ReusedNoise(Randomness& inner) : inner_(inner) {}
  int32_t draw(Purpose purpose, std::span<const float> weights) override {
    if (purpose != Purpose::kResidual) {
      const int32_t x = inner_.draw(purpose, weights);
      if (purpose == Purpose::kDraft) {
        double total = 0, low = 0;
        for (size_t i = 0; i < weights.size(); ++i) total += weights[i];
        for (int32_t i = 0; i < x; ++i) low += weights[i] / total;
        intervals_.push_back({low, low + weights[x] / total});
      } else {
        reset();
      }
      return x;
    }
    const auto [low, high] = intervals_.at(accepts_ - 1);
    double total = 0, at = 0;
    for (const float w : weights) total += w;
    std::vector<float> measure;
    for (const float w : weights) {
      const double from = at;
      at += w / total;
      measure.push_back(static_cast<float>(std::max(0.0, std::min(at, high) - std::max(from, low))));
    }
    reset();
    return inner_.draw(purpose, measure);
  }
  bool accept(Purpose purpose, double probability) override {
    ++accepts_;
    return inner_.accept(purpose, probability);
  }
  int32_t draw_at(int64_t position, std::span<const float> weights) override {
    return inner_.draw_at(position, weights);
  }

 private:
  void reset() {
    intervals_.clear();
    accepts_ = 0;
  }
  Randomness& inner_;
  std::vector<std::pair<double, double>> intervals_;
  size_t accepts_ = 0;
};

TEST(WrongRules, DraftNoiseReusedForTheResidual) {
  Case c;
  c.controller.fixed_k = 2;
  c.wrap = [](Randomness& inner) { return std::make_unique<ReusedNoise>(inner); };
  EXPECT_GE(enumerate(c).error, kWrong);
}

class ArgmaxDraft final : public Randomness {
 public:
  explicit ArgmaxDraft(Randomness& inner) : inner_(inner) {}
  int32_t draw(Purpose purpose, std::span<const float> weights) override {
    return purpose == Purpose::kDraft ? argmax(weights) : inner_.draw(purpose, weights);
  }
  bool accept(Purpose purpose, double probability) override { return inner_.accept(purpose, probability); }
  int32_t draw_at(int64_t position, std::span<const float> weights) override {
    return inner_.draw_at(position, weights);
  }

 private:
  Randomness& inner_;
};

TEST(WrongRules, ArgmaxDraftTestedAgainstSoftmax) {
  for (const VerifyRule rule : {VerifyRule::kToken, VerifyRule::kBlock}) {
    Case c;
    c.controller.fixed_k = 2;
    c.rule = rule;
    c.wrap = [](Randomness& inner) { return std::make_unique<ArgmaxDraft>(inner); };
    EXPECT_GE(enumerate(c).error, kWrong) << to_string(rule);
  }
}

}  // namespace
}  // namespace specdec::decode
