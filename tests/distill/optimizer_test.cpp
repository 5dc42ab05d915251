#include "distill/optimizer.h"

#include <gtest/gtest.h>

#include "distill/gradient_sums.h"
#include "distill/losses.h"
#include "engine/model/forward.h"
#include "tests/distill/toy.h"

namespace specdec::distill {
namespace {

using specdec::testing::expect_error;
using specdec::testing::read_tensors;

struct Golden {
  std::map<std::string, at::Tensor> file =
      read_tensors(fs::path(SPECDEC_SOURCE_DIR) / "tests/distill/golden/adamw.safetensors");
  std::vector<NamedTensor> parameters;
  AdamWOptions options{0.9, 0.95, 1e-8, 0.1, 1.0};

  Golden() {
    for (const char* name : {"matrix", "norm"})
      parameters.push_back({name, file.at(std::string("p0.") + name).clone().requires_grad_(true)});
  }
  void step(AdamW& optimizer, int64_t number) {
    for (NamedTensor& p : parameters)
      p.tensor.mutable_grad() = file.at("g" + std::to_string(number) + "." + p.name).clone();
    optimizer.step(1e-2, optimizer.grad_norm());
  }
};

TEST(Optimizer, TenStepsAsPyTorch) {
  Golden g;
  AdamW optimizer(g.parameters, g.options);
  for (int64_t i = 0; i < 10; ++i) g.step(optimizer, i);
  for (const NamedTensor& p : g.parameters)
    EXPECT_LT((p.tensor - g.file.at("p10." + p.name)).abs().max().item<double>(), 1e-6) << p.name;
}

// Compares forward pass, fused loss gradient, backward pass and update together with transformers and torch.optim
// (tests/parity/make_goldens.py).
TEST(Optimizer, TenTrainingStepsOfADecoderAsTransformers) {
  for (const bool ce : {true, false}) {
    const fs::path path =
        fs::path(SPECDEC_SOURCE_DIR) / "tests/parity/golden" / (ce ? "train_ce.safetensors" : "train_kl.safetensors");
    const auto golden = read_tensors(path);
    const auto metadata = SafetensorsFile(path).metadata();
    const Json config = Json::parse(metadata.at("config")), adamw = Json::parse(metadata.at("adamw"));
    model::Decoder decoder =
        model::random_decoder(model::parse_decoder_config(config, "golden"), 0, at::kCPU, at::kFloat);
    std::vector<NamedTensor> parameters;
    decoder.weights.visit(decoder.config, [&](const std::string& name, at::Tensor& t) {
      t = golden.at("init." + name).clone().requires_grad_(true);
      parameters.push_back({name, t});
    });
    if (decoder.config.tie_embeddings) decoder.weights.lm_head = decoder.weights.embed;
    AdamW optimizer(parameters, {adamw["betas"][0], adamw["betas"][1], adamw["eps"], adamw["weight_decay"], 0.0});
    const at::Tensor tokens = golden.at("tokens");
    const int64_t rows = tokens.size(0), width = tokens.size(1), vocab = decoder.config.vocab_size;
    LossInput input;
    input.labels = at::roll(tokens, -1, 1).reshape({-1});
    input.target = golden.at("teacher_logits").reshape({-1, vocab});
    const at::Tensor all = at::arange(rows * width, at::kLong);
    input.rows = ce ? all.index({all.remainder(width).ne(width - 1)}) : all;
    for (int64_t step = 0; step < 10; ++step) {
      const at::Tensor logits = model::forward(decoder, {tokens, {}, {}});
      input.draft = logits.detach().reshape({-1, vocab});
      const LossResult r = loss_and_grad({parse_loss(ce ? "ce" : "kl"), 3, 1}, input);
      if (step == 0) {
        EXPECT_NEAR(r.loss, golden.at("loss")[0].item<double>(), 1e-5);
      }
      logits.backward(r.grad.view_as(logits));
      optimizer.step(adamw["lr"], optimizer.grad_norm());
      GradientSums(parameters).clear();
    }
    for (const NamedTensor& p : parameters)
      EXPECT_LT((p.tensor - golden.at("after10_matrices." + p.name)).abs().max().item<double>(), 2e-5) << p.name;
  }
}

TEST(Optimizer, StateContinuesBitForBit) {
  Golden a, b;
  AdamW whole(a.parameters, a.options), first(b.parameters, b.options);
  for (int64_t i = 0; i < 10; ++i) a.step(whole, i);
  for (int64_t i = 0; i < 5; ++i) b.step(first, i);
  std::vector<NamedTensor> state;
  for (const NamedTensor& t : first.state()) state.push_back({t.name, t.tensor.clone()});
  AdamW second(b.parameters, b.options);
  second.load(state);
  for (int64_t i = 5; i < 10; ++i) b.step(second, i);
  for (size_t i = 0; i < a.parameters.size(); ++i)
    EXPECT_TRUE(at::equal(a.parameters[i].tensor, b.parameters[i].tensor));
  state.pop_back();
  expect_error(ErrorKind::kData, {"steps", "missing"}, [&] { second.load(state); });
  state.push_back({"steps", at::zeros({2})});
  state.push_back({"exp_avg.other", at::zeros({2})});
  expect_error(ErrorKind::kData, {"exp_avg.other"}, [&] { second.load(state); });
  state.pop_back();
  state[0].tensor = at::zeros({7});
  expect_error(ErrorKind::kData, {"shape"}, [&] { second.load(state); });
}

TEST(Optimizer, GlobalNormCountsEveryTensor) {
  Golden g;
  AdamW optimizer(g.parameters, g.options);
  EXPECT_EQ(optimizer.grad_norm(), 0);
  g.parameters[0].tensor.mutable_grad() = at::full({5, 3}, 2.0);
  g.parameters[1].tensor.mutable_grad() = at::full({4}, 1.0);
  EXPECT_NEAR(optimizer.grad_norm(), 8.0, 1e-6);  // √(15·4 + 4)
  g.parameters[1].tensor.mutable_grad()[0] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(std::isnan(optimizer.grad_norm()));
}

TEST(Optimizer, LowPrecisionParametersKeepAMaster) {
  // Steps far below bf16's resolution still add up.
  std::vector<NamedTensor> parameters = {{"w", at::ones({2, 2}, at::kBFloat16).requires_grad_(true)}};
  AdamW optimizer(parameters, {});
  for (int i = 0; i < 100; ++i) {
    parameters[0].tensor.mutable_grad() = at::ones({2, 2}, at::kBFloat16);
    optimizer.step(1e-3, optimizer.grad_norm());
  }
  EXPECT_NEAR(parameters[0].tensor.to(at::kFloat)[0][0].item<double>(), 0.9, 0.01);
  bool master = false;
  for (const NamedTensor& t : optimizer.state()) master |= t.name == "master.w";
  EXPECT_TRUE(master);
}

}  // namespace
}  // namespace specdec::distill
