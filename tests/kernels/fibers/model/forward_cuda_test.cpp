// Compares passes with the CUDA kernels on fibers with the reference in fp32.
#include "engine/forward/forward_cuda.h"

#include <gtest/gtest.h>

#include <functional>

#include "tests/kernels/fibers/fibers.h"
#include "tests/kernels/fibers/model/fiber_library.h"
#include "tests/kernels/fibers/model/toy_decoders.h"
#include "tests/model/toy_batch.h"
#include "tests/model/turn_group.h"

namespace specdec::model {
namespace {

void expect_reference(const std::string& name, const Json& config, at::ScalarType dtype,
                      const std::function<void(Decoder&)>& change = {}) {
  Decoder exact = toy_decoder(config);
  if (change) change(exact);
  const auto decoder = on_fibers(exact, dtype);
  // Copies the kernels' 16-bit or int8 weights, widened to fp32, into the reference.
  for (const Parameter& p : list_parameters(exact.weights, exact.config)) {
    DecoderWeights& narrow = const_cast<DecoderWeights&>(decoder->weights);
    for (const Parameter& q : list_parameters(narrow, decoder->config))
      if (q.name == p.name)
        *p.tensor = q.tensor->scalar_type() == at::kChar ? kernels::dequantise_int8(*q.tensor, p.shape[1])
                                                         : q.tensor->to(at::kFloat);
  }
  ASSERT_TRUE(cuda_pass_library(*decoder)) << name;
  const Batch here(*decoder, kTexts), there(exact, kTexts);
  ASSERT_TRUE(cuda_pass_applies(*decoder, here.parts())) << name;
  const at::Tensor found = forward(*decoder, here.parts()), expected = forward(exact, there.parts());
  ASSERT_EQ(found.sizes(), expected.sizes()) << name;
  const at::Tensor seen = expected.isfinite();
  EXPECT_TRUE(at::equal(found.isfinite(), seen)) << name;
  const double spread = expected.masked_select(seen).std().item<double>(),
               error = (found - expected).masked_select(seen).abs().max().item<double>();
  EXPECT_GT(spread, 0.5) << name;
  EXPECT_LT(error / spread, dtype == at::kHalf ? 0.02 : 0.15) << name;
}

TEST(CudaPass, EqualsTheReferenceOverFamilies) {
  Json windows = toy_config("mistral", 2), partial = toy_config("phi3", 2), many = toy_config("llama", 1),
       qwen3 = toy_config("qwen3", 2);
  windows["sliding_window"] = 20;
  partial["partial_rotary_factor"] = 0.5;
  many["num_attention_heads"] = 6, many["num_key_value_heads"] = 3;
  for (const at::ScalarType dtype : {at::kHalf, at::kBFloat16, at::kChar}) {
    const std::string name = c10::toString(dtype);
    expect_reference("llama " + name, toy_config("llama", 2), dtype);
    expect_reference("qwen2 " + name, toy_config("qwen2", 2), dtype);
    expect_reference("qwen3 " + name, qwen3, dtype);
    expect_reference("windows " + name, windows, dtype);
    expect_reference("partial rotation " + name, partial, dtype);
    expect_reference("many heads " + name, many, dtype);
  }
}

// Joining the projections into one product, or reducing the head to a part of the vocabulary, must not change the
// logits.
TEST(CudaPass, JoinedProjectionsAndReducedHeadsGiveTheSame) {
  const auto logits = [](const Decoder& decoder) { return forward(decoder, Batch(decoder, kTexts).parts()); };
  for (const at::ScalarType dtype : {at::kBFloat16, at::kChar}) {
    const auto decoder = on_fibers(toy_decoder(toy_config("qwen2", 2)), dtype);
    const at::Tensor expected = logits(*decoder);
    join_projections(*decoder);
    EXPECT_TRUE(at::equal(logits(*decoder), expected));
    for (int32_t id = 0; id < 61; id += 3) decoder->config.draft_vocab.push_back(id);
    const at::Tensor whole = logits(*decoder);
    reduce_head(*decoder);
    EXPECT_TRUE(at::equal(logits(*decoder), whole));
    const at::Tensor kept = at::arange(0, 61, 3);
    EXPECT_TRUE(at::equal(whole.index_select(1, kept), expected.index_select(1, kept)));
    EXPECT_EQ(whole.isfinite().sum().item<int64_t>(), whole.size(0) * kept.size(0));
  }
}

TEST(CudaPass, ARowsBitsDoNotDependOnThePass) {
  const auto decoder = on_fibers(toy_decoder(toy_config("llama", 2)), at::kBFloat16);
  std::vector<Text> texts = kTexts;
  for (int i = 0; i < 3; ++i) texts.push_back({3 * i, 60, 1});  // more rows than one block multiplies
  const at::Tensor all = forward(*decoder, Batch(*decoder, texts).parts());
  const Batch again(*decoder, texts);
  int64_t row = 0;
  for (const SequencePart& part : again.parts()) {
    if (part.num_logits > 0) {
      EXPECT_TRUE(at::equal(forward(*decoder, {&part, 1}), all.narrow(0, row, part.num_logits))) << row;
    }
    row += part.num_logits;
  }
}

// A pass of more than 64 rows uses the library's product for many rows, except with Decoder::exact. A narrower pass and
// int8 weights never use it.
TEST(CudaPass, WidePassesUseWideProducts) {
  struct Result {
    at::Tensor logits;
    int64_t wide;
  };
  const auto result = [&](bool exact, at::ScalarType dtype, size_t count) {
    const auto decoder = on_fibers(toy_decoder(toy_config("qwen2", 2)), dtype);
    join_projections(*decoder);
    decoder->exact = exact;
    const Batch batch(*decoder, std::vector<Text>(count, Text{3, 1, 1}));
    fibers::graph_counts() = {};
    const at::Tensor logits = forward(*decoder, batch.parts());
    return Result{logits, fibers::graph_counts().wide_products};
  };
  const Result exact = result(true, at::kBFloat16, 65), wide = result(false, at::kBFloat16, 65);
  EXPECT_EQ(exact.wide, 0);
  // Per layer: one product for queries, keys and values, then o, gate, up and down. One more for the head.
  EXPECT_EQ(wide.wide, 2 * 5 + 1);
  EXPECT_TRUE(at::equal(wide.logits, exact.logits));
  EXPECT_EQ(result(false, at::kBFloat16, 64).wide, 0);
  EXPECT_EQ(result(false, at::kChar, 65).wide, 0);
}

TEST(CudaPass, ObserversSeeWhatEachLayerLeft) {
  const auto decoder = on_fibers(toy_decoder(toy_config("llama", 2)), at::kHalf);
  std::map<int64_t, at::Tensor> seen;
  const Batch batch(*decoder, kTexts);
  forward(*decoder, batch.parts(), [&](int64_t layer, const at::Tensor& x) { seen[layer] = x; });
  ASSERT_EQ(seen.size(), 3u);
  Decoder shorter = *decoder;
  shorter.config.num_layers = 1;
  std::map<int64_t, at::Tensor> first;
  forward(shorter, Batch(shorter, kTexts).parts(), [&](int64_t layer, const at::Tensor& x) { first[layer] = x; });
  EXPECT_TRUE(at::equal(first[0], seen[0]));
  EXPECT_TRUE(at::equal(first[1], seen[1]));
  EXPECT_FALSE(at::equal(seen[1], seen[2]));
  std::map<int64_t, at::Tensor> some;
  forward(*decoder, Batch(*decoder, kTexts).parts(), [&](int64_t layer, const at::Tensor& x) { some[layer] = x; },
          {0, 2});
  ASSERT_EQ(some.size(), 2u);
  EXPECT_TRUE(at::equal(some[0], seen[0]) && at::equal(some[2], seen[2]));
}

TEST(CudaPass, LaunchesNineKernelsALayer) {
  const auto launches = [](int64_t layers, const std::vector<Text>& texts) {
    const auto decoder = on_fibers(toy_decoder(toy_config("qwen2", layers)), at::kBFloat16);
    join_projections(*decoder);
    const Batch batch(*decoder, texts);
    fibers::settings().launches = 0;
    forward(*decoder, batch.parts());
    return fibers::settings().launches;
  };
  for (const std::vector<Text>& texts : {std::vector<Text>{{9, 1, 1}}, kTexts}) {
    const int64_t one = launches(1, texts), four = launches(4, texts);
    EXPECT_EQ(four - one, 3 * 9);
    EXPECT_EQ(one - 9, 3);  // kernels of no layer: embedding, last norm, head
  }
}

// Each rank multiplies by its own part of every matrix, and the ranks add up their results.
TEST(CudaPass, RanksGiveTheLogitsOfOneProcess) {
  Json config = toy_config("qwen2", 2);
  config["num_attention_heads"] = 4, config["num_key_value_heads"] = 2;
  const Decoder exact = toy_decoder(config);
  const auto logits = [](const Decoder& decoder) { return forward(decoder, Batch(decoder, kTexts).parts()); };
  const at::Tensor alone = logits(*on_fibers(exact, at::kBFloat16));
  for (const int ranks : {2, 4}) {
    const auto errors = Turns::run(ranks, [&](const std::shared_ptr<const ShardGroup>& group) {
      const auto share = on_fibers(shard_of(exact, group), at::kBFloat16);
      ASSERT_TRUE(cuda_pass_applies(*share, Batch(*share, kTexts).parts()));
      const at::Tensor together = logits(*share);
      ASSERT_EQ(together.sizes(), alone.sizes());
      EXPECT_LT((together - alone).abs().max().item<double>() / alone.std().item<double>(), 0.1) << ranks << " ranks";
    });
    EXPECT_EQ(errors, std::vector<std::string>(static_cast<size_t>(ranks), ""));
  }
}

TEST(CudaPass, LeavesOtherPassesToOtherCode) {
  const auto decoder = on_fibers(toy_decoder(toy_config("llama", 1)), at::kBFloat16);
  const auto applies = [&](const std::vector<Text>& texts) {
    return cuda_pass_applies(*decoder, Batch(*decoder, texts).parts());
  };
  EXPECT_TRUE(applies({{0, 64, 1}, {0, 64, 1}, {0, 64, 1}, {0, 64, 1}}));
  EXPECT_FALSE(applies({{0, 64, 1}, {0, 64, 1}, {0, 64, 1}, {0, 64, 1}, {0, 1, 1}}));
  EXPECT_FALSE(applies({{0, 65, 1}}));
  const Batch later(*decoder, {{4, 2, 1}});
  SequencePart part = later.parts()[0];
  part.tree_mask = at::ones({2, 2}, at::kBool);
  EXPECT_FALSE(cuda_pass_applies(*decoder, {&part, 1}));
  EXPECT_FALSE(cuda_pass_library(*on_fibers(toy_decoder(toy_config("llama", 1)), at::kFloat)));
  Json mixture = toy_config("gemma2", 1);
  mixture["query_pre_attn_scalar"] = 16, mixture["sliding_window"] = 8,
  mixture["hidden_activation"] = "gelu_pytorch_tanh";
  EXPECT_FALSE(cuda_pass_library(*on_fibers(toy_decoder(mixture), at::kBFloat16)));
}

}  // namespace
}  // namespace specdec::model
