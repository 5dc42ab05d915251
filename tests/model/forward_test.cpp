// Tests those properties of forward passes over cached sequences that speculative decoding relies on.
#include "engine/forward/forward.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <tuple>

#include "base/error.h"
#include "engine/kernels/ops.h"
#include "engine/weights/draft_vocab.h"
#include "tests/model/small_configs.h"

namespace specdec::model {
namespace {

// Parameters: dtype of the matrices, kind of model, and whether the matrices are packed.
class Incremental : public ::testing::TestWithParam<std::tuple<at::ScalarType, const char*, bool>> {
 protected:
  Incremental()
      : decoder(random_decoder(config_like(std::get<1>(GetParam())), 11, at::kCPU, std::get<0>(GetParam()))),
        dtype(decoder.config.dtype) {
    for (const Parameter& p : list_parameters(decoder.weights, decoder.config)) {
      if (p.tensor->scalar_type() == at::kChar) {
        p.tensor->copy_(kernels::quantise_int8(kernels::dequantise_int8(*p.tensor, p.shape[1]) * 4));
      } else {
        p.tensor->mul_(p.shape.size() == 2 ? 4 : 1);
      }
    }
    if (std::get<2>(GetParam())) pack_matrices(decoder);
    for (int i = 0; i < 200; ++i) ids.push_back((i * 37 + i / 7) % 90);
  }
  KvCache cache() const { return KvCache(decoder.config, at::kCPU, dtype); }
  at::Tensor run(KvCache& kv, size_t from, size_t count, int64_t logits = -1) const {
    const SequencePart part{.cache = &kv,
                            .tokens = std::span(ids).subspan(from, count),
                            .num_logits = logits < 0 ? static_cast<int64_t>(count) : logits};
    return forward(decoder, std::span(&part, 1));
  }
  void expect_near(const at::Tensor& found, const at::Tensor& expected) const {
    // In bf16, a router near a tie may choose other experts in the two passes, which changes every later row.
    const bool routed = decoder.config.num_experts != 0 && dtype == at::kBFloat16;
    const at::Tensor errors = std::get<0>((found - expected).abs().max(-1));
    EXPECT_LT((routed ? errors.median() : errors.max()).item<double>(),
              tolerance * expected.abs().max().item<double>());
  }
  Decoder decoder;
  at::ScalarType dtype;  // dtype of all tensors except int8 matrices
  // The allowed difference from the reference, relative to the largest logit. Products with int8 weights round their
  // inputs to 2^-15 of the largest input of a group.
  const double tolerance = std::get<0>(GetParam()) == at::kChar ? 1e-3 : dtype == at::kFloat ? 1e-5 : 4e-2;
  std::vector<int32_t> ids;
};

TEST_P(Incremental, CpuPassAgreesWithTheReference) {
  KvCache a = cache(), b = cache();
  const at::Tensor fast = run(a, 0, 60);
  kernels::force_reference(true);
  const at::Tensor slow = run(b, 0, 60);
  kernels::force_reference(false);
  EXPECT_GT(slow.abs().max().item<double>(), 1);
  expect_near(fast, slow);
  EXPECT_EQ(fast.scalar_type(), at::kFloat);
}

TEST_P(Incremental, AReducedHeadGivesTheKeptLogitsAndNoOthers) {
  KvCache a = cache(), b = cache(), c = cache();
  const at::Tensor whole = run(a, 0, 20);
  decoder.config.draft_vocab = {0, 3, 4, 5, 40, 41, 77, 89};
  const at::Tensor index = draft_vocab_index(decoder.config.draft_vocab, at::kCPU), full_head = run(b, 0, 20);
  reduce_head(decoder);
  EXPECT_EQ(decoder.weights.lm_head.size(0), 8);
  const at::Tensor reduced = run(c, 0, 20);
  for (const at::Tensor& logits : {full_head, reduced}) {
    EXPECT_TRUE(logits.sizes().equals(whole.sizes()));
    EXPECT_TRUE(at::equal(logits.index_select(1, index), whole.index_select(1, index)));
    EXPECT_EQ(logits.isneginf().sum().item<int64_t>(), 20 * (90 - 8));
  }
  const at::Tensor trained = forward(
      decoder, TrainBatch{at::tensor(std::vector<int32_t>(ids.begin(), ids.begin() + 20), at::kLong).unsqueeze(0)});
  expect_near(trained[0].to(at::kFloat), whole.index_select(1, index));
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
    parts.push_back({.cache = &together[i],
                     .tokens = std::span(ids).subspan(from[i], counts[i]),
                     .num_logits = static_cast<int64_t>(counts[i])});
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
    if (forced) {  // ATen's products of 150 rows and of 31 rows round differently
      EXPECT_TRUE(at::allclose(after, expected, 0, tolerance * expected.abs().max().item<double>()));
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
      EXPECT_EQ(hidden.scalar_type(), dtype);
    });
    std::vector<int64_t> chosen;
    KvCache again = cache();
    const SequencePart same{.cache = &again, .tokens = part.tokens};
    forward(decoder, std::span(&same, 1), [&](int64_t layer, const at::Tensor&) { chosen.push_back(layer); }, {1, 3});
    kernels::force_reference(false);
    EXPECT_EQ(layers, (std::vector<int64_t>{0, 1, 2, 3}));
    EXPECT_EQ(chosen, (std::vector<int64_t>{1, 3}));
    const at::Tensor scale = at::scalar_tensor(decoder.config.embedding_scale, at::kFloat).to(dtype);
    EXPECT_TRUE(
        at::equal(first, decoder.weights.embed.index({at::tensor({ids[0], ids[1], ids[2], ids[3], ids[4]})}) * scale));
    KvCache other = cache();
    const DecoderConfig& c = decoder.config;
    at::Tensor logits = kernels::linear(kernels::rms_norm(last, decoder.weights.norm,
                                                          {c.rms_norm_eps, c.norm_offset, c.norm_rounds_last}),
                                        decoder.weights.lm_head)
                            .to(at::kFloat);
    if (c.final_soft_cap != 0) logits = kernels::soft_cap(logits, c.final_soft_cap);
    const at::Tensor expected = run(other, 0, 5);
    EXPECT_LT((logits - expected).abs().max().item<double>(), tolerance * expected.abs().max().item<double>());
  }
}

TEST_P(Incremental, ObserversErrorComesOut) {
  KvCache kv = cache();
  const SequencePart part{.cache = &kv, .tokens = std::span(ids).first(5)};
  EXPECT_THROW(
      forward(decoder, std::span(&part, 1), [](int64_t, const at::Tensor&) { throw Error(ErrorKind::kData, "tap"); }),
      Error);
  EXPECT_EQ(kv.length(), 0);
}

// One pass computes all branches of a tree. The branches are longer than the attention windows of 4 and 9 tokens. The
// logits of each branch must be bit-identical to those of the same tokens as a chain.
TEST_P(Incremental, BranchesEqualTheirChains) {
  // Two chains from a common root: 0, 1 3 5 … and 2 4 6 ….
  const std::vector<int32_t> nodes(ids.begin() + 60, ids.begin() + 75);
  const auto count = static_cast<int64_t>(nodes.size());
  SequencePart tree{.tokens = nodes, .num_logits = count, .tree_mask = at::zeros({count, count}, at::kBool)};
  for (int64_t i = 0; i < count; ++i) {
    for (int64_t j = i; j > 0; j -= 2) tree.tree_mask[i][j] = true;
    tree.tree_mask[i][0] = true;
    tree.positions.push_back(21 + (i + 1) / 2);
  }
  KvCache kv = cache();
  run(kv, 0, 21, 0);
  tree.cache = &kv;
  const at::Tensor together = forward(decoder, std::span(&tree, 1));
  for (const int64_t first : {1, 2}) {
    std::vector<int32_t> chain = {nodes[0]};
    std::vector<int64_t> rows = {0};
    for (int64_t i = first; i < count; i += 2) chain.push_back(nodes[static_cast<size_t>(i)]), rows.push_back(i);
    KvCache own = cache();
    run(own, 0, 21, 0);
    const SequencePart part{.cache = &own, .tokens = chain, .num_logits = static_cast<int64_t>(chain.size())};
    EXPECT_TRUE(at::equal(forward(decoder, std::span(&part, 1)), together.index({at::tensor(rows)}))) << first;
  }
}

const auto name_of = [](const auto& info) {
  return std::string(c10::toString(std::get<0>(info.param))) + "_" + std::get<1>(info.param) +
         (std::get<2>(info.param) ? "_packed" : "");
};
INSTANTIATE_TEST_SUITE_P(Models, Incremental,
                         ::testing::Combine(::testing::Values(at::kFloat, at::kBFloat16),
                                            ::testing::Values("llama", "gemma", "olmo", "experts"), ::testing::Bool()),
                         name_of);
INSTANTIATE_TEST_SUITE_P(Int8Models, Incremental,
                         ::testing::Combine(::testing::Values(at::kChar),
                                            ::testing::Values("llama", "gemma", "olmo", "experts"),
                                            ::testing::Values(false)),
                         name_of);

// Tests a decoder with int8 matrices, tied embeddings, and other tensors in fp32 or bf16. Its logits must be close to
// those of the unquantised decoder. A row must have the same bits, whatever other rows the pass has.
TEST(Int8Decoder, IsCloseToTheWideOneAndItsRowsStandAlone) {
  for (const auto side : {at::kFloat, at::kBFloat16}) {
    DecoderConfig c = config_like("llama");
    c.dtype = side, c.tie_embeddings = true;
    const Decoder wide = random_decoder(c, 3, at::kCPU, side), int8 = random_decoder(c, 3, at::kCPU, at::kChar);
    EXPECT_EQ(int8.weights.embed.scalar_type(), side);
    EXPECT_EQ(int8.weights.norm.scalar_type(), side);
    for (const at::Tensor* matrix : {&int8.weights.layers[1].q, &int8.weights.layers[1].down, &int8.weights.lm_head})
      EXPECT_EQ(matrix->scalar_type(), at::kChar);
    std::vector<int32_t> ids;
    for (int i = 0; i < 32; ++i) ids.push_back(i * 29 % 90);
    const auto run = [&](const Decoder& decoder, size_t step) {
      KvCache kv(c, at::kCPU, side);
      std::vector<at::Tensor> rows;
      for (size_t i = 0; i < ids.size(); i += step) {
        const SequencePart part{
            .cache = &kv, .tokens = std::span(ids).subspan(i, step), .num_logits = static_cast<int64_t>(step)};
        rows.push_back(forward(decoder, std::span(&part, 1)));
      }
      return at::cat(rows);
    };
    const at::Tensor alone = run(int8, 1), expected = run(wide, 8);
    EXPECT_TRUE(at::equal(run(int8, 4), alone));
    EXPECT_TRUE(at::equal(run(int8, 16), alone));
    const double nmse = ((alone - expected).square().sum() / expected.square().sum()).item<double>();
    // Expected error: the largest of 64 normal weights (a group) is about 2.5 standard deviations s, so the int8 step
    // is 2.5 s / 127. The relative squared error of a matrix, step² / (12 s²), is then about 3e-5. The errors of about
    // eight matrices in a row add up.
    EXPECT_LT(nmse, 4e-4);
    EXPECT_GT(nmse, 1e-7);  // proves that the weights were quantised
  }
}

// longrope scales positions differently once a text has more than 24 tokens. The logits must equal those of passes of
// one token each, wherever the text is cut into passes and whatever other sequences the passes have.
TEST(StretchedPass, CutsAndNeighboursChangeNothing) {
  DecoderConfig c = config_like("llama");
  c.rope.kind = RopeConfig::Kind::kLongRope, c.rope.original_max_position = 24, c.rope.attention_factor = 1.2;
  for (int i = 0; i < 20; ++i) c.rope.short_factor.push_back(1 + 0.02 * i), c.rope.long_factor.push_back(1 + 0.3 * i);
  Decoder decoder = random_decoder(c, 11, at::kCPU, at::kFloat);
  decoder.weights.visit(c, [](const std::string&, at::Tensor& tensor) { tensor.mul_(tensor.dim() == 2 ? 4 : 1); });
  std::vector<int32_t> ids;
  for (int i = 0; i < 40; ++i) ids.push_back((i * 37 + i / 7) % 90);
  const auto run = [&](KvCache& kv, size_t from, size_t count, int64_t logits) {
    const SequencePart part{.cache = &kv, .tokens = std::span(ids).subspan(from, count), .num_logits = logits};
    return forward(decoder, std::span(&part, 1));
  };
  KvCache one(c, at::kCPU, at::kFloat);
  std::vector<at::Tensor> rows;
  for (size_t i = 0; i < 40; ++i) rows.push_back(run(one, i, 1, 1));
  const at::Tensor alone = at::cat(rows);
  for (const size_t count : {3, 7, 16, 40}) {
    KvCache kv(c, at::kCPU, at::kFloat);
    std::vector<at::Tensor> parts;
    for (size_t at = 0; at < 40; at += count)
      parts.push_back(run(kv, at, std::min(count, 40 - at), static_cast<int64_t>(std::min(count, 40 - at))));
    EXPECT_TRUE(at::equal(at::cat(parts), alone)) << count;
  }
  // Truncates the first sequence below 24 tokens, where the scaling changes, and continues it in passes together with a
  // short and a long sequence.
  KvCache first(c, at::kCPU, at::kFloat), second(c, at::kCPU, at::kFloat), third(c, at::kCPU, at::kFloat);
  run(first, 0, 30, 1), run(second, 0, 10, 0), run(third, 0, 35, 0);
  first.truncate(21);
  std::vector<SequencePart> parts = {{.cache = &first, .tokens = std::span(ids).subspan(21, 6), .num_logits = 6},
                                     {.cache = &second, .tokens = std::span(ids).subspan(10, 2), .num_logits = 2},
                                     {.cache = &third, .tokens = std::span(ids).subspan(35, 1), .num_logits = 1}};
  std::vector<int64_t> layers;
  at::Tensor last;
  const auto observer = [&](int64_t layer, const at::Tensor& hidden) { layers.push_back(layer), last = hidden; };
  const at::Tensor expected = at::cat({alone.narrow(0, 21, 6), alone.narrow(0, 10, 2), alone.narrow(0, 35, 1)});
  EXPECT_TRUE(at::equal(forward(decoder, parts, observer), expected));
  EXPECT_EQ(layers, (std::vector<int64_t>{0, 1, 2, 3}));
  first.truncate(21), second.truncate(10), third.truncate(35), layers.clear();
  EXPECT_TRUE(at::equal(forward(decoder, parts, observer, {1, 3}), expected));
  EXPECT_EQ(layers, (std::vector<int64_t>{1, 3}));
  const at::Tensor from_states =
      at::linear(kernels::rms_norm(last, decoder.weights.norm, c.rms_norm_eps), decoder.weights.lm_head);
  EXPECT_LT((from_states - expected).abs().max().item<double>(), 1e-4);
  // prefix(length) must copy the first `length` tokens of a cache and the cache's rope scaling. The copy and the
  // original must continue correctly below and above 24 tokens, where the scaling changes.
  for (const int64_t length : {0, 20, 30}) {
    KvCache copy = third.prefix(length);
    EXPECT_TRUE(at::equal(run(copy, static_cast<size_t>(length), 8, 8), alone.narrow(0, length, 8))) << length;
  }
  EXPECT_TRUE(at::equal(run(third, 36, 4, 4), alone.narrow(0, 36, 4)));
  EXPECT_THROW(third.prefix(41), Error);
}

TEST(BadParts, AreErrors) {
  DecoderConfig c;
  c.model_type = "llama";
  c.vocab_size = 10, c.hidden_size = 8, c.intermediate_size = 8, c.num_layers = 1, c.num_heads = 2, c.num_kv_heads = 1,
  c.head_dim = 4;
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
    return ErrorKind::kUsage;  // stands for "no error"
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

}  // namespace
}  // namespace specdec::model
