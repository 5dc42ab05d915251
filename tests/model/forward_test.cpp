// Properties of the incremental pass that speculation rests on.
#include "engine/model/forward.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "engine/kernels/ops.h"

namespace specdec::model {
namespace {

class Incremental : public ::testing::TestWithParam<at::ScalarType> {
 protected:
  Incremental() {
    DecoderConfig c;
    c.model_type = "llama";
    c.vocab_size = 90, c.hidden_size = 192, c.intermediate_size = 500, c.num_layers = 3, c.num_heads = 6, c.num_kv_heads = 3, c.head_dim = 40;
    c.layers.resize(3);
    decoder = random_decoder(c, 11, at::kCPU, GetParam());
    decoder.weights.visit(c, [](const std::string&, at::Tensor& tensor) { tensor.mul_(tensor.dim() == 2 ? 4 : 1); });
    for (int i = 0; i < 200; ++i) ids.push_back((i * 37 + i / 7) % 90);
  }
  KvCache cache() const { return KvCache(decoder.config, at::kCPU, GetParam()); }
  at::Tensor run(KvCache& kv, size_t from, size_t count, int64_t logits = -1) const {
    const SequencePart part{.cache = &kv, .tokens = std::span(ids).subspan(from, count), .num_logits = logits < 0 ? static_cast<int64_t>(count) : logits};
    return forward(decoder, std::span(&part, 1));
  }
  Decoder decoder;
  std::vector<int32_t> ids;
};

TEST_P(Incremental, CpuPassAgreesWithTheReference) {
  KvCache a = cache(), b = cache();
  const at::Tensor fast = run(a, 0, 60);
  kernels::force_reference(true);
  const at::Tensor slow = run(b, 0, 60);
  kernels::force_reference(false);
  const double scale = slow.abs().max().item<double>();
  EXPECT_GT(scale, 1);
  EXPECT_LT((fast - slow).abs().max().item<double>(), (GetParam() == at::kFloat ? 1e-5 : 4e-2) * scale);
  EXPECT_EQ(fast.scalar_type(), at::kFloat);
}

TEST_P(Incremental, RowsOfAPassEqualTokenByToken) {
  KvCache one = cache();
  std::vector<at::Tensor> rows;
  for (size_t i = 0; i < 48; ++i) rows.push_back(run(one, i, 1));
  const at::Tensor alone = at::cat(rows);
  for (const size_t count : {2, 3, 4, 5, 6, 7, 8, 16, 48}) {
    KvCache kv = cache();
    std::vector<at::Tensor> parts;
    for (size_t at = 0; at < 48; at += count) parts.push_back(run(kv, at, std::min(count, 48 - at)));
    EXPECT_TRUE(at::equal(at::cat(parts), alone)) << count;
  }
}

TEST_P(Incremental, NeighboursAndThreadsChangeNothing) {
  const auto setup = [&](std::vector<KvCache>& caches) {
    for (size_t i = 0; i < 3; ++i) run(caches.emplace_back(cache()), i * 11, 20 + i * 9, 0);
  };
  std::vector<KvCache> together, alone;
  setup(together);
  setup(alone);
  const size_t counts[] = {4, 1, 7}, from[] = {100, 120, 140};
  std::vector<SequencePart> parts;
  std::vector<at::Tensor> expected;
  for (size_t i = 0; i < 3; ++i) {
    parts.push_back({.cache = &together[i], .tokens = std::span(ids).subspan(from[i], counts[i]), .num_logits = static_cast<int64_t>(counts[i])});
    expected.push_back(run(alone[i], from[i], counts[i]));
  }
  EXPECT_TRUE(at::equal(forward(decoder, parts), at::cat(expected)));

  const int before = at::get_num_threads();
  KvCache kv = cache();
  const at::Tensor reference = run(kv, 0, 40);
  for (const int threads : {1, 2, 3}) {
    at::set_num_threads(threads);
    KvCache other = cache();
    EXPECT_TRUE(at::equal(run(other, 0, 40), reference)) << threads;
  }
  at::set_num_threads(before);
}

TEST_P(Incremental, TruncatedEqualsNeverDrafted) {
  for (const bool forced : {false, true}) {
    kernels::force_reference(forced);
    KvCache drafted = cache(), plain = cache();
    run(drafted, 0, 150, 0);
    drafted.truncate(31);
    run(plain, 0, 31, 0);
    EXPECT_EQ(drafted.length(), 31);
    const at::Tensor after = run(drafted, 60, 5), expected = run(plain, 60, 5);
    kernels::force_reference(false);
    if (forced) {  // ATen's products of 150 rows and of 31 round differently
      EXPECT_TRUE(at::allclose(after, expected, 0, (GetParam() == at::kFloat ? 1e-5 : 4e-2) * expected.abs().max().item<double>()));
    } else {
      EXPECT_TRUE(at::equal(after, expected));
    }
  }
}

TEST_P(Incremental, ObserverSeesTheResidualStream) {
  for (const bool forced : {false, true}) {
    kernels::force_reference(forced);
    KvCache kv = cache();
    const SequencePart part{.cache = &kv, .tokens = std::span(ids).first(5)};
    std::vector<int64_t> layers;
    at::Tensor first, last;
    forward(decoder, std::span(&part, 1), [&](int64_t layer, const at::Tensor& hidden) {
      layers.push_back(layer);
      (layer == 0 ? first : last) = hidden;
      EXPECT_EQ(hidden.scalar_type(), GetParam());
    });
    kernels::force_reference(false);
    EXPECT_EQ(layers, (std::vector<int64_t>{0, 1, 2, 3}));
    EXPECT_TRUE(at::equal(first, decoder.weights.embed.index({at::tensor({ids[0], ids[1], ids[2], ids[3], ids[4]})})));
    KvCache other = cache();
    const at::Tensor logits = at::linear(kernels::rms_norm(last, decoder.weights.norm, decoder.config.rms_norm_eps), decoder.weights.lm_head).to(at::kFloat);
    const at::Tensor expected = run(other, 0, 5);
    EXPECT_LT((logits - expected).abs().max().item<double>(), (GetParam() == at::kFloat ? 1e-5 : 4e-2) * expected.abs().max().item<double>());
  }
}

TEST_P(Incremental, ObserversErrorComesOut) {
  KvCache kv = cache();
  const SequencePart part{.cache = &kv, .tokens = std::span(ids).first(5)};
  EXPECT_THROW(forward(decoder, std::span(&part, 1), [](int64_t, const at::Tensor&) { throw Error(ErrorKind::kData, "tap"); }), Error);
  EXPECT_EQ(kv.length(), 0);
}

INSTANTIATE_TEST_SUITE_P(Dtypes, Incremental, ::testing::Values(at::kFloat, at::kBFloat16),
                         [](const auto& info) { return std::string(c10::toString(info.param)); });

TEST(BadParts, AreErrors) {
  DecoderConfig c;
  c.model_type = "llama";
  c.vocab_size = 10, c.hidden_size = 8, c.intermediate_size = 8, c.num_layers = 1, c.num_heads = 2, c.num_kv_heads = 1, c.head_dim = 4;
  c.layers.resize(1);
  const Decoder decoder = random_decoder(c, 1, at::kCPU, at::kFloat);
  KvCache kv(c, at::kCPU, at::kFloat);
  const auto kind = [&](SequencePart part) {
    try {
      forward(decoder, std::span(&part, 1));
    } catch (const Error& e) {
      EXPECT_EQ(kv.length(), 0);
      return e.kind();
    }
    kv.truncate(0);
    return ErrorKind::kUsage;  // none
  };
  const std::vector<int32_t> good = {1, 2}, large = {10}, negative = {-1};
  EXPECT_EQ(kind({.cache = &kv, .tokens = good}), ErrorKind::kUsage);
  EXPECT_EQ(kind({.cache = &kv, .tokens = large}), ErrorKind::kData);
  EXPECT_EQ(kind({.cache = &kv, .tokens = negative}), ErrorKind::kData);
  EXPECT_EQ(kind({.cache = &kv, .tokens = {}}), ErrorKind::kInternal);
  EXPECT_EQ(kind({.cache = nullptr, .tokens = good}), ErrorKind::kInternal);
  EXPECT_EQ(kind({.cache = &kv, .tokens = good, .num_logits = 3}), ErrorKind::kInternal);
  EXPECT_EQ(kind({.cache = &kv, .tokens = good, .tree_mask = at::ones({1, 2}, at::kBool)}), ErrorKind::kInternal);
  EXPECT_EQ(kind({.cache = &kv, .tokens = good, .positions = {0}}), ErrorKind::kInternal);
  EXPECT_THROW(kv.truncate(1), Error);
}

TEST(KvCacheTest, GrowsKeepsAndCounts) {
  DecoderConfig c;
  c.num_layers = 2, c.num_kv_heads = 3, c.head_dim = 4;
  KvCache kv(c, at::kCPU, at::kFloat);
  at::Tensor all = at::arange(300 * 12, at::kFloat).view({300, 3, 4});
  for (int64_t at = 0; at < 300; at += 50) {
    for (int64_t layer = 0; layer < 2; ++layer) {
      const auto [k, v] = kv.append(layer, all.narrow(0, at, 50) + layer, -all.narrow(0, at, 50));
      EXPECT_TRUE(at::equal(k, (all.narrow(0, 0, at + 50) + layer).transpose(0, 1)));
      EXPECT_TRUE(at::equal(v, -all.narrow(0, 0, at + 50).transpose(0, 1)));
    }
    kv.commit(50);
  }
  EXPECT_EQ(kv.length(), 300);
  EXPECT_GE(kv.capacity(), 300);
  EXPECT_EQ(kv.bytes(), kv.capacity() * KvCache::bytes_per_token(c, at::kFloat));
  EXPECT_EQ(KvCache::bytes_per_token(c, at::kFloat), 2 * 2 * 3 * 4 * 4);
  EXPECT_THROW(kv.commit(kv.capacity()), Error);
}

}  // namespace
}  // namespace specdec::model
