#include "deploy/package/checks.h"

#include <cmath>

#include "tests/base/scratch.h"

namespace specdec::deploy {
namespace {

using specdec::testing::get;
using specdec::testing::put;
using specdec::testing::write_tiny_model;

class ChecksTest : public ::testing::Test {
 protected:
  ChecksTest() {
    write_tiny_model(dir / "target", {.layers = 2, .vocab = 64, .hidden = 8});
    write_tiny_model(dir / "draft", {.vocab = 64, .hidden = 8});
    for (const char* model : {"target", "draft"}) {
      edit(model, "dtype", "float32");
      edit(model, "rope_theta", 1e4);
      edit(model, "rope_parameters", {{"rope_theta", 1e4}});
      edit(model, "max_position_embeddings", 128);
    }
  }
  void edit(const std::string& model, const char* key, const Json& value) {
    Json config = Json::parse(get(dir / model / "config.json"));
    config[key] = value;
    put(dir / model / "config.json", config.dump());
  }
  void expect_finding(bool fatal, const std::string& text) {
    const auto findings = check_pair(dir / "target", dir / "draft");
    ASSERT_EQ(findings.size(), 1u);
    EXPECT_EQ(findings[0].fatal, fatal);
    EXPECT_NE((findings[0].file + ": " + findings[0].text).find(text), std::string::npos) << findings[0].text;
  }
  // Writes a weight file with one tensor of four elements in this dtype. The third element has the bit pattern `bits`.
  void write_element(const std::string& model, const std::string& dtype, uint64_t bits) {
    std::vector<std::byte> data(static_cast<size_t>(dtype_bytes(dtype)) * 4);
    std::memcpy(data.data() + dtype_bytes(dtype) * 2, &bits, static_cast<size_t>(dtype_bytes(dtype)));
    write_safetensors(dir / model / "model.safetensors", {{"w", dtype, {4}, data}});
  }
  testing::Scratch dir;
};

TEST_F(ChecksTest, AGoodPairHasNoFindings) { EXPECT_TRUE(check_pair(dir / "target", dir / "draft").empty()); }

TEST_F(ChecksTest, Vocabulary) {
  edit("draft", "vocab_size", 65);
  expect_finding(true, "vocab_size 65, the target has 64");
}
TEST_F(ChecksTest, Tokenizer) {
  put(dir / "draft/tokenizer.json", get(dir / "draft/tokenizer.json") + "\n");
  expect_finding(true, "byte for byte");
}
TEST_F(ChecksTest, Context) {
  edit("draft", "max_position_embeddings", 64);
  expect_finding(false, "max_position_embeddings 64 below the target's 128");
}
TEST_F(ChecksTest, Nulls) {
  edit("draft", "use_cache", nullptr);
  expect_finding(false, "use_cache: null");
}
TEST_F(ChecksTest, RemoteCode) {
  edit("draft", "auto_map", Json::object());
  expect_finding(false, "auto_map");
}
TEST_F(ChecksTest, KeysOfBothGenerations) {
  Json config = Json::parse(get(dir / "draft/config.json"));
  config.erase("rope_theta");
  put(dir / "draft/config.json", config.dump());
  expect_finding(false, "write both rope_parameters and rope_theta");
  config["rope_theta"] = 1e4;
  config.erase("dtype");
  put(dir / "draft/config.json", config.dump());
  expect_finding(false, "write both torch_dtype and dtype");
}

TEST_F(ChecksTest, NotANumberInEveryFloatType) {
  const std::vector<std::tuple<std::string, uint64_t, bool>> elements = {{"F32", 0x7fc00000, false},
                                                                         {"F32", 0xff800000, false},
                                                                         {"F32", 0x7f7fffff, true},
                                                                         {"F32", 0x00000001, true},
                                                                         {"BF16", 0x7f80, false},
                                                                         {"BF16", 0xffff, false},
                                                                         {"BF16", 0x7f7f, true},
                                                                         {"F16", 0x7c00, false},
                                                                         {"F16", 0xfe00, false},
                                                                         {"F16", 0x7bff, true},
                                                                         {"F64", 0x7ff0000000000000, false},
                                                                         {"F64", 0x7fefffffffffffff, true},
                                                                         {"I32", 0x7fc00000, true}};
  for (const auto& [dtype, bits, good] : elements)
    for (const char* model : {"target", "draft"}) {
      write_element("target", "F32", 0);
      write_element("draft", "F32", 0);
      write_element(model, dtype, bits);
      const auto findings = check_pair(dir / "target", dir / "draft");
      EXPECT_EQ(findings.empty(), good) << dtype << " " << std::hex << bits;
      if (!good && !findings.empty()) {
        EXPECT_TRUE(findings[0].fatal);
        EXPECT_NE(findings[0].text.find("w: holds a NaN or an infinity"), std::string::npos);
        EXPECT_NE(findings[0].file.find(model), std::string::npos);
      }
    }
}

TEST_F(ChecksTest, ModelFilesOfAShardedModel) {
  write_tiny_model(dir / "sharded", {.layers = 2, .shards = 2});
  put(dir / "sharded/unused.safetensors", "x");
  EXPECT_EQ(
      model_files(dir / "sharded"),
      (std::vector<std::string>{"config.json", "generation_config.json", "model-0.safetensors", "model-1.safetensors",
                                "model.safetensors.index.json", "tokenizer.json", "tokenizer_config.json"}));
}

}  // namespace
}  // namespace specdec::deploy
