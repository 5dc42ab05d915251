#include "base/fingerprint.h"

#include "tests/base/scratch.h"

namespace specdec {
namespace {

using testing::put;
using testing::TinyModel;
using testing::write_tiny_model;

class FingerprintTest : public ::testing::Test {
 protected:
  FingerprintTest() { write_tiny_model(dir / "base", {.layers = 2}); }

  // Returns which tiers of the fingerprint differ from the base model's after `change` was made to a copy of it.
  std::string after(const std::function<void(const fs::path&)>& change) {
    const fs::path copy = dir / ("copy" + std::to_string(++copies_));
    fs::copy(dir / "base", copy, fs::copy_options::recursive);
    change(copy);
    const Fingerprint a = fingerprint_model(dir / "base"), b = fingerprint_model(copy);
    EXPECT_EQ(a == b, a.id == b.id);
    return differing_tiers(a, b);
  }

  testing::Scratch dir;
  int copies_ = 0;
};

// The digests come from an independent implementation, fingerprint_golden.py. They are part of every package and draft,
// so they must never change.
TEST_F(FingerprintTest, GoldenDigests) {
  write_tiny_model(dir / "golden");
  const Fingerprint f = fingerprint_model(dir / "golden");
  EXPECT_EQ(f.config, "b17b4e798db519d93e24e20ccc84f6f92396612d87de5e31b8cb8720e92fd12b");
  EXPECT_EQ(f.tokenizer, "ab085907151575d49ef8dd0437f1ab1405bd0783332b93ed08a0214e412b7810");
  EXPECT_EQ(f.header, "0520458f32ad75865e247947e4b299f83163b6b9a4e891ef9d3bafe3e8dccf97");
  EXPECT_EQ(f.weights, "d5ab9056fd72551e0e3c51c8955b4d6774fed9161f8c4c4c080ff13ec5659fb5");
  EXPECT_EQ(f.id, "145084163c4c48627e654adc1feab3ef1c1e3e3ef650b907887c65bad08ee04c");
}

TEST_F(FingerprintTest, ReshardingAndRewritingChangeNothing) {
  write_tiny_model(dir / "sharded", {.layers = 2, .shards = 3});
  EXPECT_EQ(fingerprint_model(dir / "base"), fingerprint_model(dir / "sharded"));
  EXPECT_EQ(after([](const fs::path& m) {
              Json config = Json::parse(testing::get(m / "config.json"));
              config["transformers_version"] = "9.9";
              config["_name_or_path"] = "elsewhere";
              put(m / "config.json", config.dump());
              put(m / "README.md", "x");
              put(m / "specdec.json", "{}");
            }),
            "");
}

TEST_F(FingerprintTest, OneBitOfOneSmallTensorChangesTheWeights) {
  EXPECT_EQ(after([](const fs::path& m) {
              const TensorEntry e = SafetensorsFile(m / "model.safetensors").tensors().at("model.norm.weight");
              std::string bytes = testing::get(m / "model.safetensors");
              bytes[e.offset + 17] ^= 0x10;
              put(m / "model.safetensors", bytes);
            }),
            "weights");
}

TEST_F(FingerprintTest, AFineTuneOfOneLargeTensorChangesTheWeights) {
  const TensorEntry e = SafetensorsFile(dir / "base" / "model.safetensors").tensors().at("model.embed_tokens.weight");
  ASSERT_GT(e.bytes, 16384u);
  EXPECT_EQ(after([&](const fs::path& m) {
              std::string bytes = testing::get(m / "model.safetensors");
              for (uint64_t i = 0; i < e.bytes; i += 4) bytes[e.offset + i] ^= 1;
              put(m / "model.safetensors", bytes);
            }),
            "weights");
}

TEST_F(FingerprintTest, EachFileBelongsToItsTier) {
  const auto edit = [](const fs::path& file, const char* key, const Json& value) {
    Json content = Json::parse(testing::get(file));
    content[key] = value;
    put(file, content.dump());
  };
  EXPECT_EQ(after([&](const fs::path& m) { edit(m / "config.json", "rope_theta", 5e5); }), "config");
  EXPECT_EQ(after([&](const fs::path& m) { edit(m / "generation_config.json", "eos_token_id", 3); }), "config");
  EXPECT_EQ(after([&](const fs::path& m) { fs::remove(m / "generation_config.json"); }), "config");
  EXPECT_EQ(after([&](const fs::path& m) { put(m / "hf_quant_config.json", "{\"quantization\": {}}"); }), "config");
  EXPECT_EQ(after([&](const fs::path& m) { put(m / "tokenizer.json", testing::get(m / "tokenizer.json") + " "); }),
            "tokenizer");
  EXPECT_EQ(after([&](const fs::path& m) { edit(m / "tokenizer_config.json", "chat_template", "{{ messages }} "); }),
            "tokenizer");
  EXPECT_EQ(after([&](const fs::path& m) { edit(m / "tokenizer_config.json", "bos_token", "<bos>"); }), "tokenizer");
  EXPECT_EQ(after([&](const fs::path& m) { edit(m / "tokenizer_config.json", "model_max_length", 77); }), "");
  EXPECT_EQ(after([&](const fs::path& m) { put(m / "chat_template.jinja", "other"); }), "tokenizer");
  EXPECT_EQ(after([](const fs::path& m) { write_tiny_model(m, {.layers = 3}); }), "config, header, weights");
}

TEST_F(FingerprintTest, TheTemplateCountsNotTheFileItIsIn) {
  const auto moved = [&](const char* file, const std::string& content) {
    return after([&](const fs::path& m) {
      put(m / "tokenizer_config.json", R"({"bos_token": "<s>", "eos_token": "</s>"})");
      put(m / file, content);
    });
  };
  EXPECT_EQ(moved("chat_template.jinja", "{{ messages }}"), "");
  EXPECT_EQ(moved("chat_template.json", R"({"chat_template": "{{ messages }}"})"), "");
  EXPECT_EQ(moved("chat_template.json", R"({"chat_template": "{{ x }}"})"), "tokenizer");
}

TEST_F(FingerprintTest, MalformedModelsAreErrors) {
  const std::vector<std::pair<std::string, std::function<void(const fs::path&)>>> bad = {
      {"config.json", [](const fs::path& m) { fs::remove(m / "config.json"); }},
      {"config.json", [](const fs::path& m) { put(m / "config.json", "[]"); }},
      {"tokenizer.json", [](const fs::path& m) { fs::remove(m / "tokenizer.json"); }},
      {"tokenizer_config.json", [](const fs::path& m) { put(m / "tokenizer_config.json", "7"); }},
      {"chat_template", [](const fs::path& m) { put(m / "chat_template.json", "{}"); }},
      {"no model.safetensors", [](const fs::path& m) { fs::remove(m / "model.safetensors"); }}};
  for (const auto& [reason, change] : bad) testing::expect_error(ErrorKind::kModel, {reason}, [&] { after(change); });
  testing::expect_error(ErrorKind::kModel, {"expected a model directory"}, [&] { fingerprint_model(dir / "none"); });
}

TEST_F(FingerprintTest, JsonRoundTripRefusesEdits) {
  const Fingerprint f = fingerprint_model(dir / "base");
  const Json json = to_json(f);
  EXPECT_EQ(fingerprint_from_json(json, "m"), f);
  for (const char* key : {"id", "config", "tokenizer", "header", "weights"}) {
    Json edited = json;
    edited[key] = std::string(64, 'a');
    testing::expect_error(ErrorKind::kData, {"does not belong"}, [&] { fingerprint_from_json(edited, "m"); });
    edited[key] = "short";
    testing::expect_error(ErrorKind::kModel, {key, "hexadecimal"},
                          [&] { fingerprint_from_json(edited, "m", ErrorKind::kModel); });
    edited.erase(key);
    testing::expect_error(ErrorKind::kData, {key, "missing"}, [&] { fingerprint_from_json(edited, "m"); });
  }
}

}  // namespace
}  // namespace specdec
