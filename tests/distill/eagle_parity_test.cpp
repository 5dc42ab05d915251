// Compares the training of EAGLE-3 heads with golden values from the speculators package: loss, all gradients, and the
// weights after ten steps of AdamW.
#include <gtest/gtest.h>

#include <set>

#include "base/json.h"
#include "distill/gradient/eagle_gradient.h"
#include "distill/gradient/gradient_sums.h"
#include "distill/gradient/optimizer.h"
#include "engine/forward/eagle_forward.h"
#include "tests/parity/golden.h"

namespace specdec::distill {
namespace {

class EagleTraining : public ::testing::TestWithParam<const char*> {};

struct EagleGolden {
  std::map<std::string, at::Tensor> tensors;
  Json training;
  EagleDraft draft;
  std::vector<NamedTensor> parameters;
  std::vector<TokenRow> rows;
};

EagleGolden load_eagle(const std::string& name) {
  const std::string file = "eagle_" + name + ".safetensors";
  EagleGolden g{parity::load_golden(file), {}, {}, {}, {}};
  const SafetensorsFile opened(parity::golden_path(file));
  g.training = parse_json(opened.metadata().at("training"), file);
  const auto target = std::make_shared<const model::Decoder>(
      model::load_decoder(parity::golden_path("eagle_target"), at::kCPU, at::kFloat));
  model::EagleHead& head = g.draft.head;
  head.config = model::parse_eagle_config(parse_json(opened.metadata().at("config"), file), target->config, file);
  const at::Tensor kept = g.tensors.at("kept");
  if (kept.numel() < target->config.vocab_size)
    for (int64_t i = 0; i < kept.numel(); ++i)
      head.config.layer.draft_vocab.push_back(static_cast<int32_t>(kept[i].item<int64_t>()));
  head.weights.embed = target->weights.embed;
  head.weights.visit(head.config, [&](const std::string& parameter, at::Tensor& tensor) {
    tensor = g.tensors.at("init." + parameter).clone().requires_grad_();
    g.parameters.push_back({parameter, tensor});
  });
  g.draft.target = target;
  g.draft.ttt_steps = g.training.at("ttt_steps").get<int64_t>();
  g.draft.ttt_decay = g.training.at("ttt_decay").get<double>();
  const at::Tensor tokens = g.tensors.at("tokens"), learnt = g.tensors.at("learnt");
  for (int64_t b = 0; b < tokens.size(0); ++b) {
    TokenRow& row = g.rows.emplace_back();
    for (int64_t t = 0; t < tokens.size(1); ++t) {
      row.tokens.push_back(static_cast<int32_t>(tokens[b][t].item<int64_t>()));
      row.loss_mask.push_back(static_cast<uint8_t>(learnt[b][t].item<int64_t>()));
    }
  }
  return g;
}

double weighted(const EagleFigures& figures, double decay) {
  double sum = 0, weight = 1;
  for (const EagleStepFigures& step : figures.steps) sum += weight * step.loss, weight *= decay;
  return sum;
}

TEST_P(EagleTraining, LossGradientsAndTenSteps) {
  EagleGolden g = load_eagle(GetParam());
  const LossOptions loss{parse_loss(g.training.at("loss").get<std::string>()), 3, 1};
  const std::vector<Batch> batches = {make_batch(g.rows, {0, 1})};
  AdamW optimizer(g.parameters, {.beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8, .weight_decay = 0.1, .clip = 0});
  GradientSums sums(g.parameters);
  for (int64_t step = 0; step < 10; ++step) {
    sums.clear();
    const EagleFigures figures = add_eagle_gradients(g.draft, loss, batches, sums);
    sums.publish();
    EXPECT_NEAR(weighted(figures, g.draft.ttt_decay), g.tensors.at("loss")[step].item<double>(), 1e-4) << step;
    for (const NamedTensor& p : g.parameters) {
      ASSERT_TRUE(p.tensor.grad().defined()) << p.name;
      if (step == 0) {
        EXPECT_LT(parity::largest_difference(p.tensor.grad(), g.tensors.at("grad." + p.name)), 1e-4) << p.name;
      }
    }
    optimizer.step(g.training.at("lr").get<double>(), optimizer.grad_norm());
  }
  std::set<std::string> seen;
  for (const NamedTensor& p : g.parameters) {
    seen.insert("after10." + p.name);
    EXPECT_LT(parity::largest_difference(p.tensor.detach(), g.tensors.at("after10." + p.name)), 1e-4) << p.name;
  }
  for (const auto& [name, tensor] : g.tensors)
    EXPECT_TRUE(!name.starts_with("after10.") || seen.contains(name)) << name;
}

// Splitting the rows of a step into several batches gives the same gradients as one batch.
TEST_P(EagleTraining, BatchesAddUp) {
  EagleGolden one = load_eagle(GetParam()), two = load_eagle(GetParam());
  const LossOptions loss{parse_loss(one.training.at("loss").get<std::string>()), 3, 1};
  GradientSums once(one.parameters), twice(two.parameters);
  add_eagle_gradients(one.draft, loss, {make_batch(one.rows, {0, 1})}, once);
  add_eagle_gradients(two.draft, loss, {make_batch(two.rows, {0}), make_batch(two.rows, {1})}, twice);
  once.publish(), twice.publish();
  for (size_t i = 0; i < one.parameters.size(); ++i)
    EXPECT_LT(parity::largest_difference(one.parameters[i].tensor.grad(), two.parameters[i].tensor.grad()), 1e-5)
        << one.parameters[i].name;
}

INSTANTIATE_TEST_SUITE_P(Cases, EagleTraining, ::testing::Values("plain", "all_norms", "norm_before_fc"));

}  // namespace
}  // namespace specdec::distill
