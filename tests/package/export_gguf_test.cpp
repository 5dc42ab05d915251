#include "deploy/package/export_gguf.h"

#include <limits>
#include <set>

#include "base/gguf/blocks.h"
#include "base/gguf/model_files.h"
#include "tests/base/gguf/sample_checkpoint.h"

namespace specdec::deploy {
namespace {

using testing::expect_error;
using testing::llama_config;
using testing::put;
using testing::sample_weight;
using testing::write_checkpoint;

std::vector<float> values_of(const gguf::GgufFile& file, const std::string& name) {
  const gguf::Tensor& tensor = file.tensor(name);
  std::vector<std::byte> bytes(tensor.bytes);
  file.read(tensor, 0, bytes);
  size_t count = 1;
  for (const int64_t d : tensor.shape) count *= static_cast<size_t>(d);
  std::vector<float> values(count);
  gguf::dequantise(*tensor.type, bytes, values);
  return values;
}

TEST(ExportGguf, WritesWeightsWithTheRowsOfQueriesAndKeysReordered) {
  const testing::Scratch dir;
  write_checkpoint(dir / "model");
  const GgufResult done = export_gguf({.model = dir / "model", .out = dir / "m.gguf"}, {});
  EXPECT_EQ(done.architecture, "llama");
  EXPECT_EQ(done.type, "f32");
  EXPECT_EQ(done.tensors, 21u);
  EXPECT_EQ(done.bytes, fs::file_size(dir / "m.gguf"));
  const gguf::GgufFile file(dir / "m.gguf");
  EXPECT_EQ(file.text("general.architecture"), "llama");
  EXPECT_EQ(file.integer("general.file_type", 0, 99), 0);
  const auto parameters = testing::llama_parameters();
  size_t permuted = 0;
  for (const auto& [name, tensor] : file.tensors()) {
    const auto place = gguf::place_of(file, name);
    ASSERT_TRUE(place) << name;
    const auto found =
        std::ranges::find_if(parameters, [&](const auto& parameter) { return parameter.first == place->name; });
    ASSERT_NE(found, parameters.end()) << place->name;
    EXPECT_EQ(tensor.shape, found->second) << name;
    const std::vector<float> values = values_of(file, name);
    const auto number = static_cast<size_t>(found - parameters.begin());
    const int64_t columns = tensor.shape.back(), heads = place->permuted_heads;
    permuted += heads != 0;
    for (size_t i = 0; i < values.size(); ++i) {
      // The row's place in the checkpoint, as Place::permuted_heads defines it.
      const int64_t row = static_cast<int64_t>(i) / columns, head_rows = heads == 0 ? 1 : tensor.shape[0] / heads;
      const int64_t source =
          heads == 0 ? row : row / head_rows * head_rows + row % 2 * (head_rows / 2) + row % head_rows / 2;
      ASSERT_EQ(values[i],
                sample_weight(number, static_cast<size_t>(source * columns + static_cast<int64_t>(i) % columns)))
          << name << " " << i;
    }
  }
  EXPECT_EQ(permuted, 4u);
}

TEST(ExportGguf, TheFileHasTheConfigurationAndTokensOfTheModel) {
  const testing::Scratch dir;
  Json config = llama_config();
  config["vocab_size"] = 265, config["bos_token_id"] = 1, config["eos_token_id"] = 2;
  write_checkpoint(dir / "model", config, testing::sentencepiece_tokenizer());
  put(dir / "model/tokenizer_config.json", R"({"eos_token": "</s>"})");
  put(dir / "model/chat_template.jinja", "{{ 1 }}");
  export_gguf({.model = dir / "model", .out = dir / "m.gguf", .name = "My model"}, {});
  const gguf::GgufFile file(dir / "m.gguf");
  EXPECT_EQ(file.text("general.name"), "My model");
  const Json made = gguf::make_config(file);
  for (const char* key : {"model_type", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
                          "num_key_value_heads", "head_dim", "max_position_embeddings", "rms_norm_eps",
                          "tie_word_embeddings", "bos_token_id", "eos_token_id"})
    EXPECT_EQ(made[key], config[key]) << key;
  const Json tokenizer = gguf::make_tokenizer(file);
  EXPECT_EQ(tokenizer["model"]["vocab"], testing::sentencepiece_tokenizer()["model"]["vocab"]);
  std::vector<std::string> merges;
  for (const Json& merge : tokenizer["model"]["merges"])
    merges.push_back(merge.is_string() ? merge.get<std::string>()
                                       : merge[0].get<std::string>() + " " + merge[1].get<std::string>());
  EXPECT_EQ(std::set<std::string>(merges.begin(), merges.end()),
            (std::set<std::string>{"a b", "\u2581 a", "\u2581 ab", "\u2581a b"}));
  EXPECT_EQ(merges.front(), "a b");
  EXPECT_EQ(gguf::make_tokenizer_config(file)["chat_template"], "{{ 1 }}");
}

TEST(ExportGguf, StoresMatricesInTheTypeAndVectorsInFp32) {
  const testing::Scratch dir;
  write_checkpoint(dir / "model");
  for (const auto& [type, matrix, end, file_type] :
       std::vector<std::tuple<std::string, std::string, std::string, int64_t>>{{"f16", "F16", "F16", 1},
                                                                               {"bf16", "BF16", "BF16", 32},
                                                                               {"q8_0", "Q8_0", "Q8_0", 7},
                                                                               {"q4_0", "Q4_0", "Q8_0", 2}}) {
    const fs::path out = dir / (type + ".gguf");
    EXPECT_EQ(export_gguf({.model = dir / "model", .out = out, .type = type}, {}).type, type);
    const gguf::GgufFile file(out);
    EXPECT_EQ(file.integer("general.file_type", 0, 99), file_type);
    EXPECT_EQ(file.tensor("blk.0.ffn_down.weight").type->name, matrix);
    EXPECT_EQ(file.tensor("token_embd.weight").type->name, end);
    EXPECT_EQ(file.tensor("output.weight").type->name, end);
    EXPECT_STREQ(file.tensor("output_norm.weight").type->name, "F32");
    const auto values = values_of(file, "blk.0.attn_v.weight");
    for (size_t i = 0; i < values.size(); ++i) ASSERT_NEAR(values[i], sample_weight(7, i), type == "q4_0" ? 0.1 : 0.01);
  }
}

TEST(ExportGguf, RowsThatAreNoWholeBlocksKeep16Bits) {
  const testing::Scratch dir;
  write_checkpoint(dir / "model");
  Json config = llama_config();
  config["intermediate_size"] = 63;
  // A feed-forward part 63 wide: mlp.down_proj has rows of 63 values.
  std::vector<std::vector<float>> kept;
  std::vector<TensorToWrite> tensors;
  const auto parameters = testing::llama_parameters();
  kept.reserve(parameters.size());
  for (auto [name, shape] : parameters) {
    for (int64_t& d : shape)
      if (d == 64) d = 63;
    kept.emplace_back(static_cast<size_t>(shape[0] * (shape.size() == 2 ? shape[1] : 1)), 0.5f);
    tensors.push_back({name, "F32", shape, std::as_bytes(std::span<const float>(kept.back()))});
  }
  write_safetensors(dir / "model/model.safetensors", tensors);
  put(dir / "model/config.json", config.dump());
  export_gguf({.model = dir / "model", .out = dir / "m.gguf", .type = "q8_0"}, {});
  const gguf::GgufFile file(dir / "m.gguf");
  EXPECT_STREQ(file.tensor("blk.0.ffn_down.weight").type->name, "F16");
  EXPECT_STREQ(file.tensor("blk.0.ffn_up.weight").type->name, "Q8_0");
}

TEST(ExportGguf, RefusesValuesThatTheTypeCannotHoldAndLeavesNothing) {
  const testing::Scratch dir;
  const auto with = [&](float value) {
    write_checkpoint(dir / "model");
    std::vector<std::vector<float>> values;
    std::vector<TensorToWrite> tensors;
    const auto parameters = testing::llama_parameters();
    values.reserve(parameters.size());
    for (const auto& [name, shape] : parameters) {
      values.emplace_back(static_cast<size_t>(shape[0] * (shape.size() == 2 ? shape[1] : 1)), 0.5f);
      if (name == "lm_head.weight") values.back()[3] = value;
      tensors.push_back({name, "F32", shape, std::as_bytes(std::span<const float>(values.back()))});
    }
    write_safetensors(dir / "model/model.safetensors", tensors);
  };
  with(1e5f);
  expect_error(ErrorKind::kModel, {"model.safetensors: tensor lm_head.weight", "F16", "--type"},
               [&] { export_gguf({.model = dir / "model", .out = dir / "m.gguf", .type = "f16"}, {}); });
  with(std::numeric_limits<float>::quiet_NaN());
  expect_error(ErrorKind::kModel, {"tensor lm_head.weight holds a NaN"},
               [&] { export_gguf({.model = dir / "model", .out = dir / "m.gguf"}, {}); });
  for (const auto& entry : fs::directory_iterator(dir.root())) EXPECT_EQ(entry.path().filename(), "model");
  expect_error(ErrorKind::kUsage, {"q3_k", "auto, f32"},
               [&] { export_gguf({.model = dir / "model", .out = dir / "m.gguf", .type = "q3_k"}, {}); });
}

TEST(ExportGguf, ATiedHeadMustBeTheEmbedding) {
  const testing::Scratch dir;
  Json config = llama_config();
  config["tie_word_embeddings"] = true;
  write_checkpoint(dir / "model", config);
  expect_error(ErrorKind::kModel, {"config.json", "tie_word_embeddings"},
               [&] { export_gguf({.model = dir / "model", .out = dir / "m.gguf"}, {}); });
}

}  // namespace
}  // namespace specdec::deploy
