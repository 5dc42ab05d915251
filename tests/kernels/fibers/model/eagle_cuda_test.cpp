// Compares passes of an EAGLE-3 head, with the CUDA kernels on fibers, with the reference in fp32.
#include "engine/forward/eagle_cuda.h"

#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <functional>

#include "engine/cache/kv_cache.h"
#include "tests/kernels/fibers/model/toy_decoders.h"
#include "tests/model/toy_batch.h"

namespace specdec::model {
namespace {

// Returns the reference for a head on fibers: the same weights in fp32.
EagleHead exact(const EagleHead& head) {
  EagleHead out = head;
  out.library = nullptr;
  out.weights.visit(out.config, [](const std::string&, at::Tensor& tensor) { tensor = tensor.to(at::kFloat); });
  out.weights.embed = out.weights.embed.to(at::kFloat);
  return out;
}

// The caches of two texts, and a pass that continues one text with a chain and the other with a tree.
struct Texts {
  explicit Texts(const EagleHead& head) {
    for (int64_t i = 0; i < 2; ++i) {
      caches.push_back(std::make_unique<KvCache>(head.config.layer, at::kCPU, head.weights.fc.scalar_type()));
      tokens.push_back(tokens_of(i, 8));
    }
    const SequencePart before[] = {{.cache = caches[0].get(), .tokens = std::span(tokens[0]).first(5)},
                                   {.cache = caches[1].get(), .tokens = std::span(tokens[1]).first(4)}};
    eagle_pass(head, before, states(head, 9, 1));
    parts = {{.cache = caches[0].get(), .tokens = std::span(tokens[0]).last(3)},
             {.cache = caches[1].get(), .tokens = std::span(tokens[1]).last(4)}};
    parts[1].tree_mask = at::eye(4, at::kBool);
    parts[1].tree_mask[2][0] = parts[1].tree_mask[3][1] = true;
    parts[1].positions = {4, 4, 5, 5};
  }
  static at::Tensor states(const EagleHead& head, int64_t rows, int64_t seed) {
    at::manual_seed(static_cast<uint64_t>(seed));
    return at::randn({rows, head.config.layer.hidden_size}).to(head.weights.fc.scalar_type());
  }
  std::vector<std::unique_ptr<KvCache>> caches;
  std::vector<std::vector<int32_t>> tokens;
  std::vector<SequencePart> parts;
};

void expect_close(const at::Tensor& found, const at::Tensor& expected, const std::string& what) {
  ASSERT_EQ(found.sizes(), expected.sizes()) << what;
  const double error = (found.to(at::kFloat) - expected).abs().max().item<double>();
  EXPECT_LT(error / expected.std().item<double>(), 0.1) << what;
}

TEST(CudaHeadPass, EqualsTheReference) {
  const Decoder target = toy_decoder(toy_config("llama", 4));
  for (const bool first : {false, true})
    for (const bool output : {false, true}) {
      const auto head = head_on_fibers(target, {1, 4, 5, 20, 33}, 7, at::kBFloat16);
      head->config.norm_before_residual = first;
      head->config.norm_output = output;
      const EagleHead reference = exact(*head);
      const Texts here(*head), there(reference);
      ASSERT_TRUE(cuda_head_applies(*head, here.parts));
      ASSERT_FALSE(cuda_head_applies(reference, there.parts));
      const at::Tensor hidden = Texts::states(*head, 7, 2);
      const EagleOutput found = eagle_pass(*head, here.parts, hidden),
                        expected = eagle_pass(reference, there.parts, hidden.to(at::kFloat));
      const std::string name = std::to_string(first) + std::to_string(output);
      expect_close(found.fed_back, expected.fed_back, "fed back " + name);
      expect_close(found.normed, expected.normed, "normed " + name);
      const at::NoGradGuard none;
      expect_close(eagle_logits(*head, found.normed), eagle_logits(reference, expected.normed), "logits " + name);
      EXPECT_EQ(here.caches[1]->length(), 8);
    }
}

TEST(CudaHeadPass, ARowsBitsDoNotDependOnThePass) {
  const auto head = head_on_fibers(toy_decoder(toy_config("llama", 4)), {}, 7, at::kHalf);
  const Texts together(*head), apart(*head);
  const at::Tensor hidden = Texts::states(*head, 7, 2);
  const EagleOutput all = eagle_pass(*head, together.parts, hidden);
  int64_t row = 0;
  for (const SequencePart& part : apart.parts) {
    const auto count = static_cast<int64_t>(part.tokens.size());
    const EagleOutput one = eagle_pass(*head, {&part, 1}, hidden.narrow(0, row, count));
    EXPECT_TRUE(at::equal(one.fed_back, all.fed_back.narrow(0, row, count)));
    EXPECT_TRUE(at::equal(one.normed, all.normed.narrow(0, row, count)));
    row += count;
  }
}

}  // namespace
}  // namespace specdec::model
