// Compares the CUDA attention of a pass over real caches, with the kernels on fibers, with the reference.
#include "engine/forward/paged_attention.h"

#include <gtest/gtest.h>

#include <memory>

#include "base/error.h"
#include "tests/kernels/fibers/model/fiber_library.h"

namespace specdec::model {
namespace {

constexpr int64_t kLayers = 2;

DecoderConfig config_of(int64_t heads, int64_t kv_heads, int64_t d) {
  DecoderConfig c;
  c.vocab_size = 50, c.hidden_size = heads * d, c.num_layers = kLayers;
  c.num_heads = heads, c.num_kv_heads = kv_heads, c.head_dim = d;
  c.layers.resize(kLayers);
  return c;
}

at::Tensor tree_mask(const std::vector<int>& parents) {
  const auto n = static_cast<int64_t>(parents.size());
  const at::Tensor mask = at::zeros({n, n}, at::kBool);
  for (int64_t i = 0; i < n; ++i)
    for (int64_t node = i; node >= 0; node = parents[static_cast<size_t>(node)]) mask[i][node] = true;
  return mask;
}

// Sequences with the same content in two sets of caches: one for the kernel, and one for the reference.
class Fixture {
 public:
  Fixture(DecoderConfig config, at::ScalarType dtype) : config_(std::move(config)), dtype_(dtype) {}

  void add(int64_t length, int64_t count, const at::Tensor& mask = {}) {
    tokens_.emplace_back(static_cast<size_t>(count), 1);
    for (auto* caches : {&paged_, &plain_}) caches->push_back(std::make_unique<KvCache>(config_, at::kCPU, dtype_));
    for (int64_t layer = 0; layer < kLayers && length > 0; ++layer) {
      const at::Tensor k = random(length, config_.num_kv_heads), v = random(length, config_.num_kv_heads);
      for (auto* caches : {&paged_, &plain_}) caches->back()->append(layer, k, v);
    }
    for (auto* caches : {&paged_, &plain_}) caches->back()->commit(length);
    masks_.push_back(mask);
  }

  at::Tensor random(int64_t rows, int64_t heads) const { return at::randn({rows, heads, config_.head_dim}).to(dtype_); }
  std::vector<SequencePart> parts(const std::vector<std::unique_ptr<KvCache>>& caches) const {
    std::vector<SequencePart> out;
    for (size_t i = 0; i < caches.size(); ++i)
      out.push_back({.cache = caches[i].get(), .tokens = tokens_[i], .num_logits = 1, .tree_mask = masks_[i]});
    return out;
  }

  // Compares the results of the parts that the kernel takes, and the contents of the caches after the pass.
  void compare(const kernels::AttentionOptions& options) {
    const auto here = parts(paged_), there = parts(plain_);
    const PagedAttention attention(fibers::fiber_library(), config_, here, dtype_, at::kCPU);
    int64_t rows = 0;
    for (const auto& t : tokens_) rows += static_cast<int64_t>(t.size());
    for (int64_t layer = 0; layer < kLayers; ++layer) {
      const at::Tensor q = 2 * random(rows, config_.num_heads), k = random(rows, config_.num_kv_heads),
                       v = random(rows, config_.num_kv_heads), out = at::zeros_like(q);
      attention.attend(layer, options, q, k, v, out);
      int64_t row = 0;
      for (size_t i = 0; i < there.size(); ++i) {
        const auto count = static_cast<int64_t>(tokens_[i].size());
        const auto own = [&](const at::Tensor& x) { return x.narrow(0, row, count); };
        if (attention.takes(i)) {
          const auto [keys, values] = there[i].cache->append(layer, own(k), own(v));
          const auto wide = [](const at::Tensor& x) { return x.to(at::kFloat).unsqueeze(0); };
          const at::Tensor expected =
              kernels::attention(wide(own(q)), wide(keys), wide(values), allowed_keys(there[i], at::kCPU), options)
                  .squeeze(0);
          const double error = (own(out).to(at::kFloat) - expected).abs().max().item<double>();
          EXPECT_LT(error, dtype_ == at::kHalf ? 4e-3 : 3e-2) << "part " << i << " of layer " << layer;
        } else {
          EXPECT_EQ(own(out).abs().max().item<double>(), 0) << "part " << i;
        }
        row += count;
      }
    }
    for (size_t i = 0; i < here.size(); ++i) {
      if (!attention.takes(i)) continue;
      for (auto* cache : {paged_[i].get(), plain_[i].get()}) cache->commit(static_cast<int64_t>(tokens_[i].size()));
      for (int64_t layer = 0; layer < kLayers; ++layer) {
        EXPECT_TRUE(at::equal(paged_[i]->keys(layer), plain_[i]->keys(layer))) << i;
        EXPECT_TRUE(at::equal(paged_[i]->values(layer), plain_[i]->values(layer))) << i;
      }
    }
  }

 private:
  DecoderConfig config_;
  at::ScalarType dtype_;
  std::vector<std::vector<int32_t>> tokens_;
  std::vector<at::Tensor> masks_;
  std::vector<std::unique_ptr<KvCache>> paged_, plain_;
};

TEST(PagedAttention, EqualsTheReferenceOverCaches) {
  at::manual_seed(5);
  for (const auto dtype : {at::kBFloat16, at::kHalf}) {
    Fixture sequences(config_of(6, 3, 40), dtype);
    sequences.add(0, 3);
    sequences.add(70, 1);
    sequences.add(130, 5, tree_mask({-1, -1, 0, 1, 3}));
    sequences.compare({.soft_cap = 3, .window = 66});
  }
}

// The kernel leaves out a prompt of 65 tokens, and a mask under which a token sees a later one, and takes the others.
TEST(PagedAttention, LeavesPromptsOut) {
  at::manual_seed(6);
  Fixture sequences(config_of(4, 1, 32), at::kHalf);
  sequences.add(20, 2);
  sequences.add(0, 65);
  sequences.add(5, 2, at::ones({2, 2}, at::kBool));
  sequences.add(3, 4);
  sequences.compare({.scale = 0.3});
}

TEST(PagedAttention, CoversHalvesWithHeadsOfWholeVectors) {
  EXPECT_TRUE(PagedAttention::covers(config_of(2, 1, 80), at::kHalf));
  EXPECT_FALSE(PagedAttention::covers(config_of(2, 1, 80), at::kFloat));
  EXPECT_FALSE(PagedAttention::covers(config_of(2, 1, 20), at::kBFloat16));
  EXPECT_FALSE(PagedAttention::covers(config_of(2, 1, 264), at::kBFloat16));
}

}  // namespace
}  // namespace specdec::model
