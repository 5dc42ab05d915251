// Tests that, after the first few steps, a step allocates no memory except the logits of its forward passes.
#include <gtest/gtest.h>

#include <deque>

#include "engine/decode/runners/model_runner.h"
#include "engine/decode/sampling/randomness.h"
#include "engine/decode/step.h"
#include "engine/weights/weights.h"
#include "tests/model/counted_malloc.h"

namespace specdec::decode {
namespace {

struct CountedModel final : ForwardingModel {
  using ForwardingModel::ForwardingModel;
  void extend(std::span<const Extension> extensions, LogitRows& out) override {
    ++passes;
    inside += allocations_of([&] { ForwardingModel::extend(extensions, out); });
  }
  int passes = 0;
  int64_t inside = 0;
};

std::unique_ptr<CausalModel> tiny_model(uint64_t seed) {
  model::DecoderConfig c;
  c.model_type = "llama";
  c.vocab_size = 90, c.hidden_size = 64, c.intermediate_size = 128, c.num_layers = 2, c.num_heads = 4,
  c.num_kv_heads = 2, c.head_dim = 16;
  c.layers.resize(2);
  auto decoder = std::make_shared<model::Decoder>(model::random_decoder(c, seed, at::kCPU, at::kFloat));
  model::pack_matrices(*decoder);
  return make_model_runner(decoder, int64_t{1} << 20);
}

struct Case {
  double temperature;
  VerifyRule rule;
  int k;  // -1: adaptive
};

class StepAllocations : public testing::TestWithParam<Case> {};

TEST_P(StepAllocations, AWarmStepMakesLogitsAndNothingElse) {
  if (!SPECDEC_OWN_MALLOC)
    GTEST_SKIP()
        << "allocations are counted by a malloc of this binary's own: needs glibc and no sanitizer that brings one";
  const auto target_runner = tiny_model(1), draft_runner = tiny_model(2);
  CountedModel target(*target_runner), draft(*draft_runner);
  CostModel costs;
  const SystemClock clock;
  Stepper stepper(target, &draft, &costs, &clock);
  const auto run = [&](auto&& each) {  // one batch of three sequences, each shorter than a cache block
    std::deque<Sequence> sequences;
    std::vector<Sequence*> batch;
    const RequestOptions options{.max_tokens = 60, .sampling = {.temperature = GetParam().temperature}};
    const Drafting drafts{.verify = GetParam().rule, .model = ControllerOptions{.fixed_k = GetParam().k, .max_k = 4}};
    for (int32_t i = 0; i < 3; ++i) {
      const auto seed = static_cast<uint64_t>(i);
      Sequence& s = sequences.emplace_back(stepper, Request{{i, 7}, seed, options}, drafts);
      stepper.start(s);
      batch.push_back(&s);
    }
    while (std::all_of(batch.begin(), batch.end(), [](const Sequence* s) { return s->tokens().size() < 50; }))
      each(batch);
    for (Sequence* s : batch) stepper.close(*s);
  };
  for (int i = 0; i < 4; ++i) run([&](auto& batch) { stepper.step(batch); });
  int steps = 0;
  run([&](auto& batch) {
    if (++steps <= 6) return stepper.step(batch);  // the draft opens its caches in these steps
    const int64_t inside = target.inside + draft.inside;
    const int passes = target.passes + draft.passes;
    const int64_t made = allocations_of([&] { stepper.step(batch); }) - (target.inside + draft.inside - inside);
    EXPECT_EQ(made, 0) << "step " << steps << " of " << target.passes + draft.passes - passes << " passes";
  });
  EXPECT_GT(steps, 8);
}

INSTANTIATE_TEST_SUITE_P(Rules, StepAllocations,
                         testing::Values(Case{0, VerifyRule::kToken, 3}, Case{1, VerifyRule::kToken, 3},
                                         Case{1, VerifyRule::kBlock, 3}, Case{1, VerifyRule::kCoupled, 3},
                                         Case{1, VerifyRule::kToken, 0}, Case{1, VerifyRule::kToken, -1}),
                         [](const auto& info) {
                           return "T" + std::to_string(static_cast<int>(info.param.temperature)) +
                                  to_string(info.param.rule) +
                                  (info.param.k < 0 ? "Auto" : std::to_string(info.param.k));
                         });

}  // namespace
}  // namespace specdec::decode
