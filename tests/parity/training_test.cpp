// Compares the loss and every gradient of the teacher-forced pass with PyTorch.
#include <gtest/gtest.h>

#include <set>
#include <tuple>

#include "base/json.h"
#include "engine/forward/forward.h"
#include "tests/parity/golden.h"

namespace specdec::parity {
namespace {

// Parameters: the name of the loss, and whether activations are recomputed in the backward pass.
class Training : public ::testing::TestWithParam<std::tuple<const char*, bool>> {};

TEST_P(Training, LossAndGradients) {
  const auto [name_of_loss, recompute] = GetParam();
  const std::string file = "train_" + std::string(name_of_loss) + ".safetensors";
  const auto golden = load_golden(file);
  const Json config = parse_json(SafetensorsFile(golden_path(file)).metadata().at("config"), file);
  model::Decoder decoder = model::random_decoder(model::parse_decoder_config(config, file), 0, at::kCPU, at::kFloat);
  decoder.weights.visit(decoder.config, [&](const std::string& name, at::Tensor& tensor) {
    tensor = golden.at("init." + name).clone().requires_grad_();
  });

  const at::Tensor tokens = golden.at("tokens"),
                   log_q = model::forward(decoder, {.tokens = tokens, .recompute = recompute}).log_softmax(-1);
  at::Tensor loss;
  if (std::string(name_of_loss) == "ce") {
    const int64_t last = tokens.size(1) - 1;
    loss = -log_q.narrow(1, 0, last).gather(-1, tokens.narrow(1, 1, last).unsqueeze(-1)).mean();
  } else {
    const at::Tensor log_p = golden.at("teacher_logits").log_softmax(-1);
    loss = (log_p.exp() * (log_p - log_q)).sum(-1).mean();
  }
  EXPECT_NEAR(loss.item<double>(), golden.at("loss")[0].item<double>(), 1e-5);
  loss.backward();
  std::set<std::string> seen;
  decoder.weights.visit(decoder.config, [&](const std::string& name, at::Tensor& tensor) {
    seen.insert("grad." + name);
    ASSERT_TRUE(tensor.grad().defined()) << name;
    EXPECT_LT(largest_difference(tensor.grad(), golden.at("grad." + name)), 1e-5) << name;
  });
  for (const auto& [name, tensor] : golden) {
    EXPECT_TRUE(!name.starts_with("grad.") || seen.contains(name)) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Losses, Training, ::testing::Combine(::testing::Values("ce", "kl"), ::testing::Bool()));

// Two rows packed into one sequence must give the same logits as each row alone: they do not see each other, and each
// row's positions begin at 0.
TEST(Packing, SegmentsAreIndependent) {
  const auto config = model::load_decoder_config(golden_path("gqa_untied"));
  const model::Decoder decoder = model::load_decoder(golden_path("gqa_untied"), at::kCPU, config.dtype);
  const at::Tensor a = at::arange(9).unsqueeze(0), b = at::arange(20, 33).unsqueeze(0);
  const at::Tensor positions = at::cat({at::arange(9), at::arange(13)}).unsqueeze(0),
                   segment = at::cat({at::zeros(9), at::ones(13)}).to(at::kLong).unsqueeze(0);
  const at::Tensor packed = model::forward(decoder, {at::cat({a, b}, 1), positions, segment});
  EXPECT_LT(largest_difference(packed.narrow(1, 0, 9), model::forward(decoder, {.tokens = a})), 1e-5);
  EXPECT_LT(largest_difference(packed.narrow(1, 9, 13), model::forward(decoder, {.tokens = b})), 1e-5);
  const at::Tensor mixed = model::forward(decoder, {at::cat({a, b}, 1), positions, {}});
  EXPECT_GT(largest_difference(mixed, packed), 1e-2);
}

}  // namespace
}  // namespace specdec::parity
