// Loads checkpoints whose matrices stay quantised, and compares their passes, with the CUDA kernels on fibers, with the
// dequantised decoder in fp32.
#include "engine/weights/quantised_layers.h"

#include <gtest/gtest.h>

#include <functional>

#include "engine/forward/forward_cuda.h"
#include "engine/forward/memory_plan.h"
#include "tests/base/scratch.h"
#include "tests/kernels/fibers/fibers.h"
#include "tests/kernels/fibers/model/fiber_library.h"
#include "tests/model/quantised_files.h"
#include "tests/model/toy_batch.h"

namespace specdec::model {
namespace {

using specdec::testing::Scratch;

struct Case {
  std::string name, type, dtype;
  Json quantization;
};
std::vector<Case> cases() {
  return {
      {"gptq", "qwen2", "float16", {{"quant_method", "gptq"}, {"bits", 4}, {"group_size", 32}}},
      {"gptq_act_order",
       "llama",
       "bfloat16",
       {{"quant_method", "gptq"},
        {"bits", 4},
        {"group_size", 32},
        {"desc_act", true},
        {"checkpoint_format", "gptq_v2"}}},
      {"gptq_8bit", "qwen3", "bfloat16", {{"quant_method", "gptq"}, {"bits", 8}, {"group_size", -1}}},
      {"awq", "llama", "float16", {{"quant_method", "awq"}, {"bits", 4}, {"group_size", 32}, {"version", "gemm"}}},
      {"fp8_block", "qwen2", "bfloat16", {{"quant_method", "fp8"}, {"weight_block_size", {16, 32}}}},
      {"fp8_tensor", "llama", "float16", {{"quant_method", "fp8"}, {"one_scale", true}}},
      {"fp8_rows", "llama", "bfloat16", {{"quant_method", "fp8"}}},
  };
}

// Two decoders of one checkpoint: `kept` keeps the matrices quantised for the kernels, `wide` has them dequantised to
// fp32.
struct Pair {
  Decoder kept, wide;
};
Pair load(const Case& c, const std::function<void(StoredTensors&)>& change = {}) {
  const Scratch scratch;
  QuantisedCheckpoint checkpoint(quantised_config(c.type, c.dtype, c.quantization));
  if (change) change(checkpoint.tensors);
  checkpoint.write(scratch.root());
  Pair out{load_decoder(scratch.root(), at::kCPU, kAsStored), load_decoder(scratch.root(), at::kCPU, at::kFloat)};
  out.kept.library = &fibers::fiber_library();
  return out;
}

const at::Tensor& order_of(const LayerWeights& w, const std::string& name) {
  return name.ends_with("o_proj.weight")                                          ? w.o_order
         : name.ends_with("down_proj.weight")                                     ? w.down_order
         : name.ends_with("gate_proj.weight") || name.ends_with("up_proj.weight") ? w.mlp_order
                                                                                  : w.attention_order;
}

// Expects that all matrices dequantise to the numbers of `wide`. Returns the names of those that stayed quantised.
std::vector<std::string> expect_numbers(Pair& pair) {
  std::vector<std::string> quantised;
  std::map<std::string, at::Tensor> wide;
  pair.wide.weights.visit(pair.wide.config, [&](const std::string& name, at::Tensor& t) { wide[name] = t; });
  for (const Parameter& p : list_parameters(pair.kept.weights, pair.kept.config)) {
    const at::Tensor& expected = wide.at(p.name);
    if (!kernels::is_group_quantised(*p.tensor)) {
      EXPECT_TRUE(at::equal(*p.tensor, expected.to(pair.kept.config.dtype))) << p.name;
      continue;
    }
    quantised.push_back(p.name);
    const auto layer = static_cast<size_t>(p.name[std::string("model.layers.").size()] - '0');
    const at::Tensor found =
        kernels::dequantise({*p.tensor, order_of(pair.kept.weights.layers[layer], p.name)}, p.shape[1]);
    EXPECT_TRUE(at::equal(found, expected)) << p.name;
  }
  return quantised;
}

TEST(QuantisedLayers, StandForTheDequantisedNumbers) {
  for (const Case& c : cases()) {
    Pair pair = load(c);
    EXPECT_EQ(expect_numbers(pair).size(), 14u) << c.name;
    EXPECT_EQ(pair.kept.weights.layers[1].down_order.defined(), c.name == "gptq_act_order");
    EXPECT_EQ(dtype_of(pair.kept), kAsStored);
    EXPECT_EQ(dtype_of(pair.wide), at::kFloat);
  }
}

double error_of(const Pair& pair, const std::vector<Text>& texts) {
  const Batch here(pair.kept, texts), there(pair.wide, texts);
  const at::Tensor found = forward(pair.kept, here.parts()), expected = forward(pair.wide, there.parts());
  EXPECT_EQ(found.sizes(), expected.sizes());
  const double spread = expected.std().item<double>();
  EXPECT_GT(spread, 0.5);
  return (found - expected).abs().max().item<double>() / spread;
}

TEST(QuantisedLayers, GiveTheLogitsOfTheDequantisedDecoder) {
  for (const Case& c : cases()) {
    Pair pair = load(c);
    ASSERT_TRUE(cuda_pass_applies(pair.kept, Batch(pair.kept, kTexts).parts())) << c.name;
    const double most = c.dtype == "float16" ? 0.02 : 0.15;
    EXPECT_LT(error_of(pair, kTexts), most) << c.name;
    // The kernels do not take a prompt of 80 rows, so ATen computes it.
    EXPECT_LT(error_of(pair, {{0, 80, 3}}), most) << c.name;
  }
}

// Joining queries, keys and values into one product changes no bit, and needs as few launches as with plain matrices.
TEST(QuantisedLayers, JoinedProjectionsGiveTheSame) {
  for (const Case& c : cases()) {
    Pair pair = load(c);
    const auto logits = [&] {
      const Batch batch(pair.kept, kTexts);
      fibers::settings().launches = 0;
      return forward(pair.kept, batch.parts());
    };
    const at::Tensor apart = logits();
    EXPECT_EQ(fibers::settings().launches, 2 * 11 + 3) << c.name;
    join_projections(pair.kept);
    EXPECT_TRUE(at::equal(logits(), apart)) << c.name;
    EXPECT_EQ(fibers::settings().launches, 2 * 9 + 3) << c.name;
  }
}

TEST(QuantisedLayers, WhatHasNoPlaceInTheLayoutIsDequantised) {
  const auto num_quantised = [](const Case& c, const std::function<void(StoredTensors&)>& change) {
    Pair pair = load(c, change);
    const std::vector<std::string> names = expect_numbers(pair);
    EXPECT_LT(error_of(pair, {{5, 3, 3}}), 0.15) << c.name;
    return names.size();
  };
  const std::vector<Case> all = cases();
  const std::string layer = "model.layers.1.";
  Case small = all[0];
  small.quantization["group_size"] = 8;
  EXPECT_EQ(num_quantised(small, {}), 0u);
  // A scale of the MLP's up matrix is no fp16 number, so this layer's gate and up matrices are dequantised.
  EXPECT_EQ(num_quantised(all[0],
                          [&](StoredTensors& tensors) {
                            StoredTensor& scales = tensors[layer + "mlp.up_proj.scales"];
                            scales = {"F32", scales.data.to(at::kFloat)};
                            scales.data[0][0] += 1e-6;
                          }),
            12u);
  // The key matrix has its inputs in another order than queries and values, so it alone is dequantised.
  EXPECT_EQ(num_quantised(all[1],
                          [&](StoredTensors& tensors) {
                            at::Tensor& index = tensors[layer + "self_attn.k_proj.g_idx"].data;
                            index = index.flip(0).contiguous();
                          }),
            13u);
}

TEST(QuantisedLayers, NumbersThatAreNotFiniteAreRefused) {
  const auto refused = [](const Case& c, const char* part, double value) {
    const Scratch scratch;
    QuantisedCheckpoint checkpoint(quantised_config(c.type, c.dtype, c.quantization));
    checkpoint.tensors["model.layers.0.self_attn.q_proj." + std::string(part)].data[0][0] = value;
    checkpoint.write(scratch.root());
    EXPECT_THROW(load_decoder(scratch.root(), at::kCPU, kAsStored), Error) << c.name << " " << part;
  };
  refused(cases()[0], "scales", INFINITY);
  refused(cases()[4], "weight", 255);  // 255 is NaN in E4M3
  refused(cases()[4], "weight_scale_inv", NAN);
}

TEST(QuantisedLayers, ThePlanCountsTheirBytes) {
  for (const Case& c : cases()) {
    const Scratch scratch;
    QuantisedCheckpoint(quantised_config(c.type, c.dtype, c.quantization)).write(scratch.root());
    const DecoderConfig config = load_decoder_config(scratch.root());
    Decoder kept = load_decoder(scratch.root(), at::kCPU, kAsStored);
    int64_t bytes = 0;
    for (const Parameter& p : list_parameters(kept.weights, kept.config))
      bytes += static_cast<int64_t>(p.tensor->nbytes());
    EXPECT_EQ(bytes, weight_bytes(config, kAsStored)) << c.name;
    EXPECT_LT(bytes, weight_bytes(config, at::kHalf));
    const MemoryPlan plan = plan_memory({config, kAsStored, nullptr, at::kHalf, 1, 64, at::kCPU});
    EXPECT_EQ(plan.target_weights, c.name.starts_with("fp8") ? "fp8" : c.name == "gptq_8bit" ? "int8" : "int4");
  }
}

TEST(QuantisedLayers, ThePlanCountsSmallGroupsAsDequantised) {
  const Json quantization = {{"quant_method", "gptq"}, {"bits", 4}, {"group_size", 8}};
  const DecoderConfig config = parse_decoder_config(quantised_config("llama", "float16", quantization), "toy");
  EXPECT_EQ(weight_bytes(config, kAsStored), weight_bytes(config, at::kHalf));
}

TEST(QuantisedLayers, AreForWholeDecodersOnAGpu) {
  const at::Device gpu(at::kCUDA, 0);
  DecoderConfig config =
      parse_decoder_config(quantised_config("llama", "bfloat16", {{"quant_method", "awq"}, {"bits", 4}}), "toy");
  EXPECT_EQ(resolve_decoding_dtype("auto", config, gpu), kAsStored);
  EXPECT_EQ(resolve_decoding_dtype("auto", config, gpu, 2), at::kBFloat16);
  EXPECT_EQ(resolve_decoding_dtype("auto", config, at::kCPU), at::kBFloat16);
  EXPECT_EQ(resolve_decoding_dtype("bf16", config, gpu), at::kBFloat16);
  EXPECT_EQ(resolve_decoding_dtype("int8", config, gpu), at::kChar);
  EXPECT_EQ(side_dtype(kAsStored, config), at::kBFloat16);
  EXPECT_EQ(dtype_flag(kAsStored), "stored");
  config.quantisation = {};
  EXPECT_EQ(resolve_decoding_dtype("auto", config, gpu), at::kBFloat16);
}

}  // namespace
}  // namespace specdec::model
