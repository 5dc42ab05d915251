// tests/text/gguf_tokenizer_test.cpp checks the ids that these tokenizers give.
#include "base/gguf/model_files.h"
#include "tests/base/gguf/sample_model.h"
#include "tests/base/gguf/sample_vocabulary.h"

namespace specdec::gguf {
namespace {

using testing::bytes_and;
using testing::SampleModel;
using testing::sentencepiece_model;

class TokenizerJson : public ::testing::Test {
 protected:
  Json tokenizer(const SampleModel& model) { return make_tokenizer(model.open(dir_ / "m.gguf")); }
  Json tokenizer_config(const SampleModel& model) { return make_tokenizer_config(model.open(dir_ / "m.gguf")); }
  void refused(const SampleModel& model, const std::vector<std::string>& parts) {
    testing::expect_error(ErrorKind::kModel, parts, [&] { tokenizer(model); });
  }
  testing::Scratch dir_;
};

// A byte-level model with this pre-tokenizer.
SampleModel with_pre(const std::string& pre) {
  SampleModel model("llama");
  model.few_tokens();
  model.remove("tokenizer.ggml.pre");
  model.text("tokenizer.ggml.pre", pre);
  model.id("bos", 3);
  return model;
}

// Returns the patterns by which a pre-tokenizer splits.
std::vector<std::string> patterns(const Json& tokenizer) {
  std::vector<std::string> out;
  for (const Json& stage : tokenizer["pre_tokenizer"]["pretokenizers"])
    if (stage["type"] == "Split") out.push_back(stage["pattern"]["Regex"]);
  return out;
}

TEST_F(TokenizerJson, ByteLevel) {
  const Json found = tokenizer(with_pre("gpt-2"));
  EXPECT_EQ(found["model"]["vocab"], Json({{"a", 0}, {"b", 1}, {"ab", 2}, {"<bos>", 3}, {"<|im_end|>", 4}}));
  EXPECT_EQ(found["model"]["merges"], Json::parse(R"([["a", "b"]])"));
  EXPECT_EQ(found["model"]["ignore_merges"], false);
  EXPECT_EQ(found["model"]["byte_fallback"], false);
  EXPECT_EQ(found["decoder"]["type"], "ByteLevel");
  EXPECT_EQ(found["pre_tokenizer"]["pretokenizers"].back()["type"], "ByteLevel");
  EXPECT_EQ(found["pre_tokenizer"]["pretokenizers"].back()["use_regex"], false);
  EXPECT_TRUE(found["post_processor"].is_null());
  ASSERT_EQ(found["added_tokens"].size(), 2u);
  EXPECT_EQ(found["added_tokens"][1], Json({{"id", 4},
                                            {"content", "<|im_end|>"},
                                            {"single_word", false},
                                            {"lstrip", false},
                                            {"rstrip", false},
                                            {"normalized", false},
                                            {"special", true}}));
}

TEST_F(TokenizerJson, PreTokenizers) {
  EXPECT_EQ(patterns(tokenizer(with_pre("gpt-2"))).size(), 1u);
  EXPECT_EQ(patterns(tokenizer(with_pre("smollm"))), patterns(tokenizer(with_pre("starcoder"))));
  EXPECT_EQ(patterns(tokenizer(with_pre("smollm"))).front(), R"(\p{N})");
  EXPECT_EQ(patterns(tokenizer(with_pre("qwen2"))),
            std::vector<std::string>{R"((?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|)"
                                     R"([^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|)"
                                     R"(\s*[\r\n]+|\s+(?!\S)|\s+)"});
  const Json llama3 = tokenizer(with_pre("llama-bpe"));
  EXPECT_NE(patterns(llama3).front().find(R"(|\p{N}{1,3}|)"), std::string::npos);
  EXPECT_EQ(llama3["model"]["ignore_merges"], true);
  EXPECT_FALSE(llama3["post_processor"].is_null());  // BOS, if the file does not say otherwise
  SampleModel missing = with_pre("gpt-2");
  missing.remove("tokenizer.ggml.pre");
  EXPECT_EQ(patterns(tokenizer(missing)), patterns(tokenizer(with_pre("default"))));
  refused(with_pre("new\n"), {"m.gguf: tokenizer.ggml.pre 'new?' is not supported", "gpt-2", "llama-bpe"});
}

TEST_F(TokenizerJson, BosAndEosAroundAText) {
  SampleModel model = with_pre("gpt-2");
  model.id("eos", 4);
  model.flag("tokenizer.ggml.add_bos_token", true);
  model.flag("tokenizer.ggml.add_eos_token", true);
  const Json stage = tokenizer(model)["post_processor"];
  EXPECT_EQ(stage["single"],
            Json::parse(R"([{"SpecialToken": {"id": "<bos>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
                            {"SpecialToken": {"id": "<|im_end|>", "type_id": 0}}])"));
  EXPECT_EQ(stage["special_tokens"]["<bos>"], Json::parse(R"({"id": "<bos>", "ids": [3], "tokens": ["<bos>"]})"));
  model.remove("tokenizer.ggml.bos_token_id");
  refused(model, {"tokenizer.ggml.bos_token_id is missing"});
  SampleModel without = with_pre("llama-bpe");
  without.flag("tokenizer.ggml.add_bos_token", false);
  EXPECT_TRUE(tokenizer(without)["post_processor"].is_null());
}

TEST_F(TokenizerJson, SentencePiece) {
  SampleModel model = sentencepiece_model();
  const Json found = tokenizer(model);
  EXPECT_EQ(found["model"]["byte_fallback"], true);
  EXPECT_EQ(found["model"]["unk_token"], "<unk>");
  EXPECT_EQ(found["normalizer"]["normalizers"][0], Json({{"type", "Prepend"}, {"prepend", "▁"}}));
  EXPECT_EQ(found["decoder"]["decoders"].back()["type"], "Strip");
  EXPECT_TRUE(found["pre_tokenizer"].is_null());
  // By score: "ab" −1, "▁ab" −2, "abc" −3; blanks, which have one score, by the length of the left part.
  EXPECT_EQ(found["model"]["merges"], Json::parse(R"([["a", "b"], ["▁", "ab"], ["a", "bc"], ["ab", "c"], ["b", "c"],
                                                      ["▁▁", "▁"], ["▁", "▁"], ["▁", "▁▁"]])"));
  EXPECT_EQ(found["post_processor"]["single"][0]["SpecialToken"]["id"], "<s>");  // BOS is 1 unless the file says so
  Json kinds = Json::object();
  for (const Json& token : found["added_tokens"]) kinds[token["content"].get<std::string>()] = token["special"];
  EXPECT_EQ(kinds, Json({{"<unk>", true}, {"<s>", true}, {"</s>", true}, {"<turn>", true}, {"  x", false}}));

  model.flag("tokenizer.ggml.add_space_prefix", false);
  EXPECT_EQ(tokenizer(model)["normalizer"]["type"], "Replace");
  EXPECT_EQ(tokenizer(model)["decoder"]["decoders"].back()["type"], "Fuse");
  model.text("general.name", "Phi-3 mini");
  for (const Json& token : tokenizer(model)["added_tokens"])
    EXPECT_EQ(token["rstrip"], token["content"] != "<unk>" && token["content"] != "<s>") << token;
}

TEST_F(TokenizerJson, RefusesScoresThatDoNotOrder) {
  const std::string key = "tokenizer.ggml.scores";
  SampleModel none = sentencepiece_model();
  none.remove(key);
  refused(none, {key, "found 0"});
  const size_t tokens = bytes_and({}).size() + testing::kPieces.size();
  SampleModel equal = sentencepiece_model();
  equal.remove(key);
  equal.file.add_array<float>(key, 6, std::vector<float>(tokens, -1000));
  refused(equal, {key, "have the same score"});
  SampleModel infinite = sentencepiece_model();
  infinite.remove(key);
  std::vector<float> scores(tokens, -1000);
  scores[3] = std::numeric_limits<float>::infinity();
  infinite.file.add_array<float>(key, 6, scores);
  refused(infinite, {key, "token 3 is not finite"});
}

TEST_F(TokenizerJson, RefusesVocabulariesThatItCannotRead) {
  const auto changed = [](const std::vector<std::string>& tokens, const std::vector<int32_t>& types) {
    SampleModel model("llama");
    model.vocabulary("gpt2", tokens, types);
    model.text("tokenizer.ggml.pre", "gpt-2");
    model.file.add_texts("tokenizer.ggml.merges", {"a b"});
    return model;
  };
  refused(changed({"a", "b", "a"}, {1, 1, 1}), {"tokens 0 and 2 are both 'a'"});
  refused(changed({"a", "\xff"}, {1, 1}), {"token 1 is not valid UTF-8"});
  refused(changed({"a", "b", "ab"}, {1, 1}), {"tokenizer.ggml.token_type", "3 tokens, found 2"});
  refused(changed({"a", "b", "ab"}, {1, 1, 7}), {"tokenizer.ggml.token_type", "found 7"});
  refused(changed({"a", "b"}, {1, 1}), {"tokenizer.ggml.merges: merge 0, 'a b'"});
  SampleModel model = changed({"a", ""}, {1, 1});
  model.remove("tokenizer.ggml.merges");
  model.file.add_texts("tokenizer.ggml.merges", {});
  EXPECT_TRUE(tokenizer(model)["model"]["vocab"].contains("[EMPTY_1]"));
  model.remove("tokenizer.ggml.model");
  model.text("tokenizer.ggml.model", "bert");
  refused(model, {"tokenizer.ggml.model 'bert' is not supported"});
  SampleModel bytes("llama");
  bytes.vocabulary("llama", {"<unk>", "a"}, {2, 1});
  bytes.file.add_array<float>("tokenizer.ggml.scores", 6, {0, 0});
  refused(bytes, {"there is no token <0x00>"});
}

TEST_F(TokenizerJson, ConfigurationHasSpecialTokensAndTemplates) {
  SampleModel model = with_pre("gpt-2");
  model.id("eos", 4);
  model.id("padding", 4);
  EXPECT_EQ(tokenizer_config(model), Json({{"tokenizer_class", "PreTrainedTokenizerFast"},
                                           {"clean_up_tokenization_spaces", false},
                                           {"add_bos_token", false},
                                           {"add_eos_token", false},
                                           {"bos_token", "<bos>"},
                                           {"eos_token", "<|im_end|>"},
                                           {"pad_token", "<|im_end|>"}}));
  model.text("tokenizer.chat_template", "{{ messages }}");
  EXPECT_EQ(tokenizer_config(model)["chat_template"], "{{ messages }}");
  model.text("tokenizer.chat_template.tool_use", "{{ tools }}");
  EXPECT_EQ(tokenizer_config(model)["chat_template"], Json::parse(R"([{"name": "default", "template": "{{ messages }}"},
                            {"name": "tool_use", "template": "{{ tools }}"}])"));
  model.text("tokenizer.chat_template.bad", "\xff");
  testing::expect_error(ErrorKind::kModel, {"tokenizer.chat_template.bad", "not valid UTF-8"},
                        [&] { tokenizer_config(model); });
}

}  // namespace
}  // namespace specdec::gguf
