// Compares quantised checkpoints with the weights that make_quantised_goldens.py unpacks, and tests the errors for
// malformed checkpoints.
#include <gtest/gtest.h>

#include <fstream>
#include <set>

#include "engine/kernels/quantised_matrix.h"
#include "tests/parity/bent_checkpoint.h"
#include "tests/parity/golden.h"

namespace specdec::parity {
namespace {

using specdec::testing::Scratch;

std::filesystem::path quantised_path(const std::string& name) { return golden_path("quantised/" + name); }

class Quantised : public ::testing::TestWithParam<std::string> {};

TEST_P(Quantised, WeightsAreTheUnpackedOnes) {
  const auto golden = load_golden("quantised/" + GetParam() + ".safetensors");
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    model::Decoder decoder = model::load_decoder(quantised_path(GetParam()), at::kCPU, dtype);
    std::set<std::string> seen;
    decoder.weights.visit(decoder.config, [&](const std::string& name, at::Tensor& tensor) {
      EXPECT_TRUE(at::equal(tensor, golden.at(name).to(dtype))) << name;
      seen.insert(name);
    });
    EXPECT_EQ(seen.size(), golden.size());
    EXPECT_EQ(decoder.config.quantisation.method, model::Quantisation::Method::kNone);
  }
}

// Matrices that stay quantised must dequantise to the same numbers. Matrices with groups of 8 inputs cannot stay
// quantised.
TEST_P(Quantised, MatricesThatStaySoStandForTheUnpackedWeights) {
  const auto golden = load_golden("quantised/" + GetParam() + ".safetensors");
  model::Decoder decoder = model::load_decoder(quantised_path(GetParam()), at::kCPU, model::kAsStored);
  size_t kept = 0;
  decoder.weights.visit(decoder.config, [&](const std::string& name, at::Tensor& tensor) {
    const at::Tensor& expected = golden.at(name);
    const bool quantised = kernels::is_group_quantised(tensor);
    kept += quantised ? 1 : 0;
    EXPECT_TRUE(quantised ? at::equal(kernels::dequantise({tensor, {}}, expected.size(1)), expected)
                          : at::equal(tensor, expected.to(at::kHalf)))
        << name;
  });
  const bool fits = GetParam() == "fp8_tensor" || GetParam() == "fp8_channel" || GetParam() == "gptq_8bit";
  EXPECT_EQ(kept, fits ? 7u : 0u);
}

// Saves a quantised checkpoint, as distill does with a draft made from it. The result must be an ordinary, unquantised
// checkpoint.
TEST_P(Quantised, IsWrittenPlain) {
  const Scratch scratch;
  const model::Decoder decoder = model::load_decoder(quantised_path(GetParam()), at::kCPU, at::kHalf);
  model::save_decoder(decoder, scratch.root());
  EXPECT_FALSE(read_json(scratch / "config.json").contains("quantization_config"));
  const model::Decoder again = model::load_decoder(scratch.root(), at::kCPU, at::kHalf);
  EXPECT_TRUE(at::equal(again.weights.layers[0].down, decoder.weights.layers[0].down));
}

INSTANTIATE_TEST_SUITE_P(Packings, Quantised,
                         ::testing::Values("fp8_block", "fp8_tensor", "fp8_channel", "gptq", "gptq_act_order",
                                           "gptq_8bit", "awq"),
                         [](const auto& info) { return info.param; });

constexpr const char* kDown = "model.layers.0.mlp.down_proj.";
std::string down(const char* part) { return std::string(kDown) + part; }

std::string error_of(const std::string& name, const std::function<void(Bent&)>& bend) {
  Bent bent(quantised_path(name));
  bend(bent);
  return bent.error();
}

#define EXPECT_SAYS(message, ...)                                                              \
  for (const std::string& said = message; const char* part : {__VA_ARGS__}) {                  \
    EXPECT_NE(said.find(part), std::string::npos) << "expected '" << part << "' in: " << said; \
  }

TEST(QuantisedErrors, PartsThatAreMissingOrWrong) {
  EXPECT_EQ(error_of("gptq", [](Bent&) {}), "loaded");
  for (const char* part : {"scales", "qzeros"})
    EXPECT_SAYS(error_of("gptq", [&](Bent& b) { b.tensors.erase(down(part)); }), part);
  EXPECT_SAYS(error_of("gptq", [](Bent& b) { b.tensors.erase(down("qweight")); }), "down_proj.weight is missing");
  // g_idx may be absent; the group of input k is then k / group size.
  EXPECT_EQ(error_of("gptq", [](Bent& b) { b.tensors.erase(down("g_idx")); }), "loaded");
  EXPECT_SAYS(error_of("gptq", [](Bent& b) { b.tensors[down("qweight")].shape = {12, 16}; }),
              "[12, 16], expected [6, 32]");
  EXPECT_SAYS(error_of("gptq", [](Bent& b) { b.tensors[down("qweight")].dtype = "U32"; }), "dtype U32, expected I32");
  EXPECT_SAYS(error_of("gptq", [](Bent& b) { b.tensors[down("g_idx")].bytes[3] = std::byte{0x7f}; }), "group");
  EXPECT_SAYS(error_of("gptq", [](Bent& b) { b.tensors[down("bias")].bytes[5] = std::byte{0x3c}; }), "not part of",
              "down_proj.bias");
  EXPECT_SAYS(
      error_of("gptq", [](Bent& b) { b.tensors["model.layers.0.mlp.other.qweight"] = b.tensors[down("qweight")]; }),
      "not part of", "other.qweight");
  EXPECT_SAYS(error_of("awq", [](Bent& b) { b.tensors[down("scales")].bytes[1] = std::byte{0x7c}; }),
              "NaN or infinite");
  EXPECT_SAYS(error_of("fp8_tensor", [](Bent& b) { b.tensors.erase(down("weight_scale")); }), "down_proj.weight",
              "neither");
  EXPECT_SAYS(error_of("fp8_block", [](Bent& b) { b.tensors[down("weight_scale_inv")].shape = {1, 4}; }), "[1, 4]");
  EXPECT_SAYS(error_of("fp8_channel", [](Bent& b) { b.tensors[down("weight")].bytes[7] = std::byte{0x7f}; }),
              "NaN or infinite");
  EXPECT_SAYS(error_of("fp8_tensor", [](Bent& b) { b.config.erase("quantization_config"); }), "F8_E4M3",
              "quantization_config");
  EXPECT_SAYS(error_of("fp8_tensor",
                       [](Bent& b) { b.tensors["model.layers.0.mlp.odd_scale"] = b.tensors[down("weight_scale")]; }),
              "not part of", "odd_scale");
}

// If config.json names a quantisation but the weights are unquantised, loading must fail with the quantisation's name.
TEST(QuantisedErrors, PlainWeightsUnderAConfigOfCodes) {
  for (const char* name : {"gptq", "awq", "fp8_tensor"}) {
    const Scratch scratch;
    model::save_decoder(model::load_decoder(quantised_path(name), at::kCPU, at::kHalf), scratch.root());
    Json config = read_json(scratch / "config.json");
    config["quantization_config"] = Bent(quantised_path(name)).config["quantization_config"];
    write_file_atomic(scratch / "config.json", config.dump());
    const std::string method = std::string(name).substr(0, std::string(name).find('_'));
    for (const at::ScalarType dtype : {at::kHalf, model::kAsStored}) {
      std::string message = "loaded";
      try {
        model::load_decoder(scratch.root(), at::kCPU, dtype);
      } catch (const Error& e) {
        EXPECT_EQ(e.kind(), ErrorKind::kModel);
        message = e.what();
      }
      EXPECT_SAYS(message, "quantization_config says ", method.c_str(), "plain");
    }
  }
}

// For each part of each kind of checkpoint, a wrong shape must be found before any weight is used.
TEST(QuantisedErrors, ShapesThatDisagree) {
  const auto wrong = [](const std::string& name, const char* part, const std::vector<int64_t>& shape) {
    return error_of(name, [&](Bent& b) { b.reshape(down(part), shape); });
  };
  const auto shape_of = [](const std::string& name, const char* part) {
    return Bent(quantised_path(name)).tensors.at(down(part)).shape;
  };
  for (const auto& [name, parts] : std::vector<std::pair<std::string, std::vector<const char*>>>{
           {"gptq", {"qweight", "qzeros", "scales", "g_idx"}},
           {"gptq_act_order", {"qweight", "qzeros", "scales", "g_idx"}},
           {"gptq_8bit", {"qweight", "qzeros", "scales", "g_idx"}},
           {"awq", {"qweight", "qzeros", "scales"}},
           {"fp8_block", {"weight", "weight_scale_inv"}},
           {"fp8_channel", {"weight", "weight_scale"}}})
    for (const char* part : parts) {
      const std::vector<int64_t> right = shape_of(name, part);
      EXPECT_EQ(wrong(name, part, right), "loaded") << name << " " << part;
      for (const std::vector<int64_t>& shape : wrong_shapes(right))
        EXPECT_SAYS(wrong(name, part, shape), "down_proj.", part);
    }
  // Scales of blocks must be a matrix: a flat list, one number, or one number per row is refused.
  const std::vector<int64_t> blocks = shape_of("fp8_block", "weight_scale_inv");
  const int64_t rows = shape_of("fp8_block", "weight")[0];
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{blocks[0] * blocks[1]}, {1}, {1, 1}, {}, {rows, 1}})
    EXPECT_SAYS(wrong("fp8_block", "weight_scale_inv", shape), "weight_scale_inv has shape");
}

// The number of rows of the scales determines how many inputs share a scale. config.json must agree with this number.
TEST(QuantisedErrors, GroupsComeFromTheScales) {
  const auto with = [](const std::string& name, const Json& settings) {
    return error_of(name, [&](Bent& b) {
      Json& quantization = b.config["quantization_config"];
      for (const auto& [key, value] : settings.items())
        if (value.is_null())
          quantization.erase(key);
        else
          quantization[key] = value;
      for (auto it = b.tensors.begin(); it != b.tensors.end();)
        it = it->first.ends_with("g_idx") ? b.tensors.erase(it) : std::next(it);
    });
  };
  EXPECT_EQ(with("awq", Json::object()), "loaded");
  EXPECT_SAYS(with("awq", {{"group_size", 16}}), "scales has", "group_size of config.json, 16");
  EXPECT_SAYS(with("gptq", {{"group_size", 64}}), "scales has", "group_size of config.json, 64");
  EXPECT_SAYS(with("gptq_8bit", {{"group_size", 8}}), "scales has");
  EXPECT_SAYS(with("awq", {{"q_group_size", 64}}), "group_size and q_group_size disagree");
  EXPECT_SAYS(with("awq", {{"w_bit", 8}}), "bits and w_bit disagree");
  EXPECT_SAYS(with("gptq", {{"checkpoint_format", "gptq"}, {"format", "gptq_v2"}}), "checkpoint_format and format");
  // Accepted: llm-awq's names of the settings, no group size, and GPTQModel's settings for single matrices.
  EXPECT_EQ(with("awq", {{"group_size", nullptr}, {"q_group_size", 8}, {"bits", nullptr}, {"w_bit", 4}}), "loaded");
  EXPECT_EQ(with("awq", {{"version", "GEMM"}, {"format", "gemm"}}), "loaded");
  EXPECT_EQ(with("awq", {{"group_size", nullptr}}), "loaded");
  EXPECT_EQ(with("gptq", {{"group_size", 64}, {"dynamic", {{"+:.*", {{"group_size", 8}}}}}}), "loaded");
}

// If config.json has no group size, the size that follows from the scales must give the right weights.
TEST(QuantisedErrors, GroupsOfTheScalesGiveTheSameWeights) {
  for (const std::string name : {"awq", "gptq"}) {
    Bent bent(quantised_path(name));
    bent.config["quantization_config"].erase("group_size");
    for (auto it = bent.tensors.begin(); it != bent.tensors.end();)
      it = it->first.ends_with("g_idx") ? bent.tensors.erase(it) : std::next(it);
    const Scratch scratch;
    bent.write(scratch.root());
    model::Decoder decoder = model::load_decoder(scratch.root(), at::kCPU, at::kFloat);
    const auto golden = load_golden("quantised/" + name + ".safetensors");
    decoder.weights.visit(decoder.config, [&](const std::string& tensor_name, at::Tensor& tensor) {
      EXPECT_TRUE(at::equal(tensor, golden.at(tensor_name).to(at::kFloat))) << name << " " << tensor_name;
    });
  }
}

// GPTQModel 5 stores the format of zero points in `format` only. Read in the wrong format, every zero point would be
// off by one.
TEST(QuantisedErrors, TheFormatOfZeroPointsUnderItsOtherName) {
  Bent bent(quantised_path("gptq_act_order"));
  ASSERT_EQ(bent.config["quantization_config"]["checkpoint_format"], "gptq_v2");
  bent.config["quantization_config"].erase("checkpoint_format");
  bent.config["quantization_config"]["format"] = "gptq_v2";
  const Scratch scratch;
  bent.write(scratch.root());
  model::Decoder decoder = model::load_decoder(scratch.root(), at::kCPU, at::kFloat);
  const auto golden = load_golden("quantised/gptq_act_order.safetensors");
  const std::string name = std::string(kDown) + "weight";
  EXPECT_TRUE(at::equal(decoder.weights.layers[0].down, golden.at(name).to(at::kFloat)));
}

TEST(QuantisedErrors, PackingsThatAreNotRead) {
  const auto with = [](const std::string& name, const char* key, Json value) {
    return error_of(name, [&](Bent& b) { b.config["quantization_config"][key] = std::move(value); });
  };
  EXPECT_SAYS(with("gptq", "quant_method", "bitsandbytes"), "bitsandbytes", "supported: fp8");
  EXPECT_SAYS(with("gptq", "bits", 3), "gptq of 3 bits");
  EXPECT_SAYS(with("gptq", "checkpoint_format", "marlin"), "marlin");
  EXPECT_SAYS(with("awq", "bits", 8), "awq of 8 bits");
  EXPECT_SAYS(with("awq", "version", "gemv"), "gemv");
  EXPECT_SAYS(with("fp8_block", "fmt", "e5m2"), "e5m2");
  EXPECT_SAYS(with("fp8_block", "weight_block_size", Json{128}), "weight_block_size");
  EXPECT_SAYS(with("fp8_channel", "format", "pack-quantized"), "pack-quantized");
  EXPECT_SAYS(
      error_of("fp8_channel",
               [](Bent& b) { b.config["quantization_config"]["config_groups"]["group_0"]["weights"]["type"] = "int"; }),
      "type 'int'");
  EXPECT_SAYS(error_of("gptq", [](Bent& b) { b.config["quantization_config"] = 4; }), "quantization_config");
}

}  // namespace
}  // namespace specdec::parity
