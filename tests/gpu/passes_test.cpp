// Compares passes of small bf16 decoders of every family on the machine's device with the same decoders in fp32 on a
// CPU.
#include <gtest/gtest.h>

#include <map>

#include "tests/base/scratch.h"
#include "tests/gpu/machine.h"
#include "tests/gpu/report.h"
#include "tests/model/quantised_files.h"
#include "tests/model/toy_batch.h"
#include "tests/model/toy_decoders.h"

namespace specdec::gpu {
namespace {

using model::Decoder;

// Returns the config.json of a small decoder of a model family, with the keys that the family needs.
Json family_config(const std::string& type) {
  Json config = model::toy_config(type, 2);
  if (type == "mistral") config["sliding_window"] = 20;
  if (type == "phi3") config["sliding_window"] = 30, config["pad_token_id"] = 0;
  if (type == "smollm3") config["no_rope_layer_interval"] = 2, config["pad_token_id"] = 0;
  if (type == "olmo2") config["pad_token_id"] = 0;
  if (type == "gemma2" || type == "gemma3_text") {
    config["query_pre_attn_scalar"] = 16, config["sliding_window"] = 8, config["pad_token_id"] = 0;
    config["hidden_activation"] = "gelu_pytorch_tanh";
  }
  if (type == "mixtral") config["num_local_experts"] = 4, config["num_experts_per_tok"] = 2;
  if (type == "qwen3_moe")
    config.update(
        {{"num_experts", 4}, {"num_experts_per_tok", 2}, {"moe_intermediate_size", 24}, {"norm_topk_prob", true}});
  return config;
}

// Copies the weights of `decoder`, widened to fp32, into `reference`, so that only the arithmetic differs.
void take_weights(Decoder& reference, const Decoder& decoder) {
  auto& from = const_cast<model::DecoderWeights&>(decoder.weights);
  std::map<std::string, at::Tensor> by_name;
  from.visit(decoder.config, [&](const std::string& name, at::Tensor& tensor) { by_name[name] = tensor; });
  for (const model::Parameter& p : list_parameters(reference.weights, reference.config)) {
    const at::Tensor found = by_name.at(p.name).cpu();
    *p.tensor = found.scalar_type() == at::kChar ? kernels::dequantise_int8(found, p.shape[1]) : found.to(at::kFloat);
  }
}

// Returns the largest error of each row of logits, in units of the standard deviation of all logits.
at::Tensor errors_of_rows(const std::string& type, at::ScalarType dtype) {
  Decoder reference = model::toy_decoder(family_config(type));
  const auto decoder = on_machine(reference, dtype);
  take_weights(reference, *decoder);
  const model::Batch here(*decoder, model::kTexts), there(reference, model::kTexts);
  const at::Tensor found = forward(*decoder, here.parts()).cpu(), expected = forward(reference, there.parts());
  EXPECT_EQ(found.sizes(), expected.sizes());
  return std::get<0>((found - expected).abs().max(1)) / expected.std();
}

TEST(Passes, EqualTheCpusOverFamilies) {
  for (const char* type : {"llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3_text", "phi3", "smollm3", "olmo2",
                           "mixtral", "qwen3_moe"}) {
    const at::Tensor errors = errors_of_rows(type, at::kBFloat16);
    const double worst = errors.max().item<double>();
    record("passes", type, worst);
    // If a router's probabilities are nearly tied, bf16 rounding may choose another expert, which changes the row. So
    // only 60 % of the rows must be close.
    const bool chooses = std::string(type).starts_with("mixtral") || std::string(type).ends_with("moe");
    const double row = chooses ? at::quantile(errors, 0.6).item<double>() : worst;
    EXPECT_LT(row, 0.15) << type;
  }
  for (const char* type : {"llama", "qwen2", "qwen3"}) {
    const double worst = errors_of_rows(type, at::kChar).max().item<double>();
    record("passes", std::string(type) + " int8", worst);
    EXPECT_LT(worst, 0.15) << type;
  }
}

// Compares decoders whose matrices stay quantised as in the checkpoint with the dequantised decoders in fp32.
TEST(Passes, OfCodesEqualTheCpus) {
  const std::map<std::string, Json> quantisations = {
      {"gptq",
       {{"quant_method", "gptq"}, {"bits", 4}, {"group_size", 32}, {"desc_act", true}, {"checkpoint_format", "gptq"}}},
      {"gptq 8 bits", {{"quant_method", "gptq"}, {"bits", 8}, {"group_size", 64}}},
      {"awq", {{"quant_method", "awq"}, {"bits", 4}, {"group_size", 32}, {"version", "gemm"}}},
      {"fp8", {{"quant_method", "fp8"}, {"weight_block_size", {16, 32}}}}};
  for (const auto& [name, quantisation] : quantisations) {
    const testing::Scratch scratch;
    model::QuantisedCheckpoint(model::quantised_config("qwen2", "bfloat16", quantisation)).write(scratch.root());
    Decoder decoder = model::load_decoder(scratch.root(), machine().device, model::kAsStored);
    if (!machine().real) decoder.library = machine().library;
    const Decoder reference = model::load_decoder(scratch.root(), at::kCPU, at::kFloat);
    std::vector<model::Text> texts = model::kTexts;
    for (const bool long_prompt : {false, true}) {
      if (long_prompt) texts = {{0, 300, 2}};
      const model::Batch here(decoder, texts), there(reference, texts);
      const at::Tensor found = forward(decoder, here.parts()).cpu(), expected = forward(reference, there.parts());
      const double error = (found - expected).abs().max().item<double>() / expected.std().item<double>();
      record("passes", name + (long_prompt ? ", long" : ""), error);
      EXPECT_LT(error, 0.15) << name;
    }
  }
}

}  // namespace
}  // namespace specdec::gpu
