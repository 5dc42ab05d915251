#include "distill/loss/losses.h"

#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/distill/toy.h"
#include "tests/source_folder.h"

namespace specdec::distill {
namespace {

using specdec::testing::expect_error;
using specdec::testing::read_tensors;

constexpr const char* kLosses[] = {"ce", "kl",  "rkl",       "jsd",           "jsd:0.1",
                                   "tv", "nla", "lk_hybrid", "0.1*ce+0.9*tv", "0.5*lk_hybrid+2*jsd:0.7+0.25*rkl"};

double largest_difference(const at::Tensor& a, const at::Tensor& b) { return (a - b).abs().max().item<double>(); }

LossInput random_input(int64_t rows, int64_t vocab, double scale = 3) {
  at::Tensor index = at::arange(0, rows, 2, at::kLong);
  // Every call has a generator of its own, so that the numbers do not depend on the tests that ran before.
  const at::Generator seeded = at::detail::createCPUGenerator(static_cast<uint64_t>(1000 * rows + vocab));
  return {scale * at::randn({rows, vocab}, seeded), scale * at::randn({rows, vocab}, seeded),
          at::randint(vocab, {rows}, seeded, at::kLong), index, 1};
}

TEST(Losses, MatchPyTorch) {
  const auto golden = read_tensors(fs::path(source_folder()) / "tests/distill/golden/losses.safetensors");
  for (const char* name : kLosses) {
    for (const auto& [temperature, text] : {std::pair{1.0, "1.0"}, {0.7, "0.7"}}) {
      const std::string key = std::string(name) + "." + text;
      const LossOptions options{parse_loss(name), 3.0, temperature};
      const LossInput input{golden.at("draft"), golden.at("target"), golden.at("labels"), golden.at("rows"), 1};
      for (const LossResult& r : {loss_and_grad(options, input), loss_and_grad_aten(options, input)}) {
        EXPECT_NEAR(r.loss, golden.at(key + ".loss").item<double>(), 1e-5) << key;
        if (options.mix.needs_target()) {
          EXPECT_NEAR(r.acceptance, golden.at(key + ".acceptance").item<double>(), 1e-6) << key;
        }
        EXPECT_LT(largest_difference(r.grad, golden.at(key + ".grad")), 2e-6) << key;
      }
    }
  }
}

TEST(Losses, OfAReducedVocabularyMatchPyTorch) {
  const auto golden = read_tensors(fs::path(source_folder()) / "tests/distill/golden/losses.safetensors");
  LossInput input{golden.at("draft").index_select(1, golden.at("kept")),
                  golden.at("target"),
                  golden.at("labels"),
                  golden.at("rows"),
                  1,
                  golden.at("kept")};
  for (const char* name : {"ce", "kl", "rkl", "jsd", "tv", "nla", "lk_hybrid", "0.3*ce+0.5*rkl+nla"}) {
    const std::string key = std::string("kept.") + name;
    const LossOptions options{parse_loss(name), 3.0, 0.7};
    for (const LossResult& r : {loss_and_grad(options, input), loss_and_grad_aten(options, input)}) {
      EXPECT_NEAR(r.loss, golden.at(key + ".loss").item<double>(), 1e-5) << key;
      if (options.mix.needs_target()) {
        EXPECT_NEAR(r.acceptance, golden.at(key + ".acceptance").item<double>(), 1e-6) << key;
      }
      EXPECT_LT(largest_difference(r.grad, golden.at(key + ".grad")), 2e-6) << key;
    }
  }
  // Keeping all tokens gives the same result as an undefined `kept`.
  input = random_input(9, 40);
  for (const char* name : kLosses) {
    const LossOptions options{parse_loss(name), 2.0, 1.3};
    const LossResult whole = loss_and_grad(options, input);
    LossInput all = input;
    all.kept = at::arange(40, at::kLong);
    const LossResult same = loss_and_grad(options, all);
    EXPECT_NEAR(whole.loss, same.loss, 1e-5) << name;
    EXPECT_LT(largest_difference(whole.grad, same.grad), 1e-6) << name;
  }
  input.kept = at::arange(39, at::kLong);
  expect_error(ErrorKind::kInternal, {"D kept ids"}, [&] { loss_and_grad({}, input); });
}

TEST(Losses, GradientIsTheFiniteDifference) {
  for (const char* name : {"ce", "kl", "rkl", "jsd:0.3", "tv", "nla", "0.3*ce+2*jsd+0.5*nla"}) {
    LossInput input = random_input(4, 11, 1.5);
    const LossOptions options{parse_loss(name), 3.0, 0.8};
    const at::Tensor grad = loss_and_grad(options, input).grad;
    EXPECT_GT(grad.abs().max().item<double>(), 0) << name;
    const double h = 2e-3;
    for (int64_t r = 0; r < 4; ++r) {
      for (int64_t v = 0; v < 11; ++v) {
        const auto moved = [&](double by) {
          LossInput at = input;
          at.draft = input.draft.clone();
          at.draft[r][v] += by;
          return loss_and_grad(options, at).loss;
        };
        EXPECT_NEAR((moved(h) - moved(-h)) / (2 * h), grad[r][v].item<double>(), 2e-3)
            << name << " row " << r << " token " << v;
      }
    }
  }
}

TEST(Losses, HostRowsAgreeWithAten) {
  for (const int64_t vocab : {1, 2, 15, 16, 17, 512, 1003}) {
    for (const char* name : kLosses) {
      LossInput input = random_input(9, vocab);
      input.weight = 0.25;
      const LossOptions options{parse_loss(name), 2.0, 1.3};
      const LossResult a = loss_and_grad(options, input), b = loss_and_grad_aten(options, input);
      EXPECT_NEAR(a.loss, b.loss, 1e-5) << name << " " << vocab;
      EXPECT_LT(largest_difference(a.grad, b.grad), 3e-7) << name << " " << vocab;
      EXPECT_EQ(a.grad.select(0, 1).abs().sum().item<double>(), 0) << "a row that does not count";
    }
  }
}

// Each row may have its own temperature and weight. The loss is then the weighted sum of the losses of the single rows.
TEST(Losses, RowsHaveTheirOwnTemperatureAndWeight) {
  const at::Tensor temperatures = at::tensor({0.3f, 1.0f, 0.7f, 2.0f, 1.3f}),
                   weights = at::tensor({1.0f, 3.0f, 0.0f, 0.5f, 2.0f});
  for (const char* name : kLosses) {
    LossInput all = random_input(5, 40);
    all.rows = at::arange(5, at::kLong);
    LossOptions options{parse_loss(name), 2.0, 1.1, 0.4};
    double loss = 0, acceptance = 0;
    at::Tensor grad = at::zeros({5, 40});
    for (int64_t t = 0; t < 5; ++t) {
      LossInput one = all;
      one.draft = all.draft.slice(0, t, t + 1).clone(), one.labels = all.labels.slice(0, t, t + 1);
      if (all.target.defined()) one.target = all.target.slice(0, t, t + 1);
      one.rows = at::zeros({1}, at::kLong);
      options.temperature = temperatures[t].item<double>();
      const LossResult r = loss_and_grad(options, one);
      const double weight = weights[t].item<double>();
      loss += weight * r.loss / 5, acceptance += r.acceptance / 5;
      grad[t] = weight * r.grad[0] / 5;
    }
    options.temperature = 1.1;
    all.temperatures = temperatures, all.weights = weights;
    for (const LossResult& r : {loss_and_grad(options, all), loss_and_grad_aten(options, all)}) {
      EXPECT_NEAR(r.loss, loss, 1e-5) << name;
      if (options.mix.needs_target()) EXPECT_NEAR(r.acceptance, acceptance, 1e-6) << name;
      // With temperature 0.3, logits reach 40 after the division, where fp32 rounds by up to 4e-6.
      EXPECT_LT(largest_difference(r.grad, grad), 1e-5) << name;
    }
  }
  LossInput wrong = random_input(5, 40);
  wrong.weights = at::ones({4});
  expect_error(ErrorKind::kInternal, {"weights"}, [&] { loss_and_grad({parse_loss("kl"), 2, 1}, wrong); });
}

TEST(Losses, HybridTurnsFromKlToTv) {
  LossInput input = random_input(6, 50);
  const LossOptions hybrid{parse_loss("lk_hybrid"), 3.0, 1.0};
  const LossResult r = loss_and_grad(hybrid, input);
  EXPECT_NEAR(r.kl_weight, std::exp(-3 * r.acceptance), 1e-12);
  const LossResult kl = loss_and_grad({parse_loss("kl"), 3, 1}, input),
                   tv = loss_and_grad({parse_loss("tv"), 3, 1}, input);
  EXPECT_NEAR(r.loss, r.kl_weight * kl.loss + (1 - r.kl_weight) * tv.loss, 1e-6);
  EXPECT_LT(largest_difference(r.grad, r.kl_weight * kl.grad + (1 - r.kl_weight) * tv.grad), 1e-7);
  input.target = input.draft.clone();
  const LossResult same = loss_and_grad(hybrid, input);
  EXPECT_NEAR(same.acceptance, 1, 1e-6);
  EXPECT_NEAR(same.loss, 0, 1e-6);
  EXPECT_LT(same.grad.abs().max().item<double>(), 1e-7);
}

// If options.acceptance is set, λ of lk_hybrid is computed from it.
TEST(Losses, HybridFollowsAGivenAcceptance) {
  const LossInput input = random_input(6, 50);
  LossOptions options{parse_loss("lk_hybrid"), 3.0, 1.0};
  options.acceptance = 0.25;
  for (const LossResult& r : {loss_and_grad(options, input), loss_and_grad_aten(options, input)})
    EXPECT_NEAR(r.kl_weight, std::exp(-0.75), 1e-12);
}

// A gradient written over the draft's logits equals a gradient written to a new tensor.
TEST(Losses, GradientMayTakeThePlaceOfTheLogits) {
  for (const char* name : {"lk_hybrid", "ce", "0.2*ce+jsd+rkl"}) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      LossInput input = random_input(9, 33);
      input.draft = input.draft.to(dtype);
      const LossOptions options{parse_loss(name), 3.0, 1.1};
      for (const auto& compute : {loss_and_grad, loss_and_grad_aten}) {
        const at::Tensor expected = compute(options, input).grad;
        LossInput over = input;
        over.draft = over.grad = input.draft.clone();
        EXPECT_TRUE(at::equal(compute(options, over).grad, expected)) << name;
        EXPECT_TRUE(at::equal(over.draft, expected)) << name;
      }
    }
  }
}

TEST(Losses, LowPrecisionLogitsKeepTheirDtype) {
  LossInput input = random_input(5, 40);
  const LossResult full = loss_and_grad({}, input);
  input.draft = input.draft.to(at::kBFloat16);
  const LossResult half = loss_and_grad({}, input);
  EXPECT_EQ(half.grad.scalar_type(), at::kBFloat16);
  EXPECT_NEAR(half.loss, full.loss, 0.05);
}

TEST(Losses, NonFiniteLogitsMakeTheLossNaN) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  for (const char* name : kLosses) {
    for (const float bad : {std::numeric_limits<float>::quiet_NaN(), kInf}) {
      LossInput input = random_input(3, 40);
      input.draft[2][7] = bad;
      EXPECT_TRUE(std::isnan(loss_and_grad({parse_loss(name), 3, 1}, input).loss)) << name;
      EXPECT_TRUE(std::isnan(loss_and_grad_aten({parse_loss(name), 3, 1}, input).loss)) << name;
    }
  }
  // A token to which both models give probability 0 is not an error.
  LossInput input = random_input(3, 40);
  input.draft.select(1, 5).fill_(-kInf);
  input.target.select(1, 5).fill_(-kInf);
  const LossResult a = loss_and_grad({}, input), b = loss_and_grad_aten({}, input);
  EXPECT_TRUE(std::isfinite(a.loss));
  EXPECT_NEAR(a.loss, b.loss, 1e-5);
  EXPECT_TRUE(at::isfinite(a.grad).all().item<bool>());
}

TEST(Losses, RefuseWhatDoesNotFit) {
  LossInput input = random_input(4, 8);
  input.rows = at::empty({0}, at::kLong);
  expect_error(ErrorKind::kInternal, {"at least one row"}, [&] { loss_and_grad({}, input); });
  input = random_input(4, 8);
  input.target = at::randn({4, 9});
  expect_error(ErrorKind::kInternal, {"[T, V]"}, [&] { loss_and_grad({}, input); });
}

TEST(Losses, ParsesSumsOfTerms) {
  EXPECT_EQ(parse_loss("kl").kl, 1);
  const LossMix mix = parse_loss("0.1*ce+2*jsd:0.25+nla");
  EXPECT_EQ(mix.ce, 0.1);
  EXPECT_EQ(mix.jsd, 2);
  EXPECT_EQ(mix.beta, 0.25);
  EXPECT_EQ(mix.nla, 1);
  EXPECT_FALSE(parse_loss("2*ce").needs_target());
  for (const char* text : {"", "huber", "kl+", "+kl", "kl+kl", "0*kl", "-1*kl", "nan*kl", "inf*kl", "1e9*kl", "*kl",
                           "jsd:0", "jsd:1", "jsd:x", "kl:0.5", "kl *2"})
    expect_error(ErrorKind::kUsage, {"--loss", "0.1*ce+0.9*tv"}, [&] { parse_loss(text); });
}

// Reverse KL and the other losses are finite even where a probability would underflow to 0 in fp32, because
// probabilities have a floor.
TEST(Losses, StayFiniteWhereOneModelIsSure) {
  for (const char* name : {"rkl", "jsd", "nla", "kl"}) {
    LossInput input = random_input(3, 40);
    input.target[0][3] = 1000;
    input.draft[0][4] = 1000;
    const LossOptions options{parse_loss(name), 3, 1};
    const LossResult a = loss_and_grad(options, input), b = loss_and_grad_aten(options, input);
    EXPECT_TRUE(std::isfinite(a.loss)) << name;
    EXPECT_NEAR(a.loss, b.loss, 1e-4 * std::abs(b.loss)) << name;
    EXPECT_TRUE(at::isfinite(a.grad).all().item<bool>()) << name;
    EXPECT_LT(largest_difference(a.grad, b.grad), 1e-4) << name;
  }
}

}  // namespace
}  // namespace specdec::distill
