// Encodes texts with the tokenizers that are made from GGUF files. The expected ids follow from llama.cpp's rules
// (llama-vocab.cpp).
#include "base/gguf/model_files.h"
#include "tests/base/gguf/sample_vocabulary.h"
#include "text/tokenizer.h"

namespace specdec::text {
namespace {

using testing::put;
using testing::SampleModel;

using Ids = std::vector<int32_t>;

class GgufTokenizer : public ::testing::Test {
 protected:
  Tokenizer load(const SampleModel& model) {
    const gguf::GgufFile file = model.open(dir_ / "m.gguf");
    put(dir_ / "tokenizer.json", gguf::make_tokenizer(file).dump());
    put(dir_ / "tokenizer_config.json", gguf::make_tokenizer_config(file).dump());
    return Tokenizer(dir_.root());
  }
  testing::Scratch dir_;
};

// Ids of the pieces behind the bytes of sentencepiece_model(); kByte + x is the byte x.
constexpr int32_t kBegin = 1, kByte = 3, kBlank = 259, kA = 260, kB = 261, kC = 262, kBlankAb = 264, kAbc = 265,
                  kBc = 266, kBlanks2 = 267, kBlanks3 = 268, kTurn = 269, kUser = 270;

TEST_F(GgufTokenizer, SentencePiece) {
  const Tokenizer tokenizer = load(testing::sentencepiece_model());
  EXPECT_EQ(tokenizer.encode("ab", true), (Ids{kBegin, kBlankAb}));  // a blank is put in front
  EXPECT_EQ(tokenizer.encode("", true), Ids{kBegin});
  EXPECT_EQ(tokenizer.encode("abc", false), (Ids{kBlankAb, kC}));  // "▁ab" −2 comes before "abc" −3
  EXPECT_EQ(tokenizer.encode("cabc", false), (Ids{kBlank, kC, kAbc}));
  EXPECT_EQ(tokenizer.encode("bbc", false), (Ids{kBlank, kB, kBc}));
  EXPECT_EQ(tokenizer.encode("é", false), (Ids{kBlank, kByte + 0xC3, kByte + 0xA9}));
  EXPECT_EQ(tokenizer.encode("a<turn>a", false), (Ids{kBlank, kA, kTurn, kBlank, kA}));  // behind a token, too
  EXPECT_EQ(tokenizer.encode("a  xb", false), (Ids{kBlank, kA, kUser, kBlank, kB}));
  EXPECT_EQ(tokenizer.encode("<0x41>", false).size(), 7u);  // the text of a byte is no byte
  // The run on the left grows: 3 + 3 + 1 blanks, the first of which is put in front.
  EXPECT_EQ(tokenizer.encode("      ", false), (Ids{kBlanks3, kBlanks3, kBlank}));
  EXPECT_EQ(tokenizer.encode("    c", false), (Ids{kBlanks3, kBlanks2, kC}));
  EXPECT_EQ(tokenizer.decode(tokenizer.encode("ab é c", true), true), "ab é c");
  EXPECT_EQ(tokenizer.token_to_id("<turn>"), kTurn);
}

TEST_F(GgufTokenizer, SentencePieceWithoutBlankInFront) {
  SampleModel model = testing::sentencepiece_model();
  model.flag("tokenizer.ggml.add_space_prefix", false);
  model.flag("tokenizer.ggml.add_bos_token", false);
  const Tokenizer tokenizer = load(model);
  EXPECT_EQ(tokenizer.encode("a b", true), (Ids{kA, kBlank, kB}));
  EXPECT_EQ(tokenizer.decode({kBlank, kB}, true), " b");
}

// Returns a byte-level model with a token for each of the letters, "Ġ" and "Ċ" for blank and newline, and a few others.
SampleModel byte_level(const std::string& pre) {
  SampleModel model("llama");
  model.vocabulary("gpt2", {"a", "b", "1", "2", "Ġ", "Ċ", "ab", "12", "Ġa", "ĊĊ", "<end>", "b1", "Ġab", "'", "S", "'S"},
                   {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 3, 1, 1, 1, 1, 1});
  model.text("tokenizer.ggml.pre", pre);
  model.file.add_texts("tokenizer.ggml.merges", {"b 1", "a b", "1 2", "Ġ a", "Ċ Ċ", "' S"});
  model.id("bos", 10);
  model.id("eos", 10);
  return model;
}

TEST_F(GgufTokenizer, ByteLevelSplitsAsThePreTokenizerSays) {
  const Tokenizer gpt2 = load(byte_level("gpt-2"));
  EXPECT_EQ(gpt2.encode("ab12", true), (Ids{6, 7}));  // "b1" spans two pieces
  EXPECT_EQ(gpt2.encode("a ab<end>\n\n", true), (Ids{0, 4, 6, 10, 9}));
  EXPECT_EQ(gpt2.encode("'S", true), (Ids{13, 14}));
  EXPECT_EQ(gpt2.decode({8, 9, 7}, true), " a\n\n12");
  EXPECT_EQ(load(byte_level("smollm")).encode("ab12", true), (Ids{6, 2, 3}));  // digits one by one
  EXPECT_EQ(load(byte_level("qwen2")).encode("ab12'S", true), (Ids{6, 2, 3, 15}));
  // llama-bpe takes a piece that is a token whole, and puts BOS in front.
  EXPECT_EQ(load(byte_level("llama-bpe")).encode("ab12 ab", true), (Ids{10, 6, 7, 12}));
}

TEST_F(GgufTokenizer, PatternsOfEveryPreTokenizerAreAccepted) {
  for (const char* pre : {"default", "gpt-2", "smollm", "llama-bpe", "glm4", "dbrx", "qwen2", "qwen35", "minicpm5",
                          "seed-coder", "gpt-4o", "tekken", "falcon", "deepseek-llm", "deepseek-coder", "deepseek-v3"})
    EXPECT_EQ(load(byte_level(pre)).encode("b a", false), (Ids{1, 8})) << pre;
}

}  // namespace
}  // namespace specdec::text
