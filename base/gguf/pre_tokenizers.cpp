#include "base/gguf/pre_tokenizers.h"

#include "base/gguf/architectures.h"
#include "base/gguf/header_reader.h"

namespace specdec::gguf {

namespace {

constexpr const char* kGpt2 = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr const char* kDigit = R"(\p{N})";
constexpr const char* kDigits = R"(\p{N}+)";
constexpr const char* kThreeDigits = R"(\p{N}{1,3})";
constexpr const char* kThreeAsciiDigits = "[0-9][0-9][0-9]";
constexpr const char* kPunctuation = R"([\p{P}\$\+<=>\^~\|]+)";
constexpr const char* kFalconPunctuation = R"([\p{P}\$\+<=>\^~\|`]+)";
constexpr const char* kNewline = R"([\r\n])";
constexpr const char* kEastAsian = "[一-龥ࠀ-一가-퟿]+";
constexpr const char* kHanAndKana = "[一-龥぀-ゟ゠-ヿ]+";
constexpr const char* kDeepseekLetters = R"(\s?[)"
                                         "A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ"
                                         "-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉ"
                                         "ⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃"
                                         "]+";
constexpr const char* kDeepseekPunctuation = R"(\s?[!-/:-~！-／：-～‘-‟　-。]+)";

// Patterns with common parts.
struct Joined {
  const std::string contractions = R"((?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]))",
                    words = R"([^\r\n\p{L}\p{N}]?\p{L}+)", others = R"( ?[^\s\p{L}\p{N}]+[\r\n]*)",
                    others_with_slashes = R"( ?[^\s\p{L}\p{N}]+[\r\n/]*)", blanks = R"(\s*[\r\n]+|\s+(?!\S)|\s+)";
  // Words of upper-case letters followed by lower-case ones. As in llama.cpp, only ASCII letters have a case.
  const std::string lower_words = R"([^\r\n\p{L}\p{N}]?(?:(?=\p{L})[^a-z])*(?:(?=\p{L})[^A-Z])+)",
                    upper_words = R"([^\r\n\p{L}\p{N}]?(?:(?=\p{L})[^a-z])+(?:(?=\p{L})[^A-Z])*)";
  std::string with_digits(const char* digits) const {
    return contractions + "|" + words + "|" + digits + "|" + others + "|" + blanks;
  }
  const std::string llama3 = with_digits(kThreeDigits), qwen2 = with_digits(kDigit), minicpm5 = with_digits(kDigits);
  const std::string qwen35 =
      contractions + R"(|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|)" + blanks;
  const std::string seed_coder = contractions + "|" + words + R"(|\p{N}| ?[^\s\p{L}\p{N}\r\n]+|)" + blanks;
  const std::string gpt4o = lower_words + contractions + "?|" + upper_words + contractions + "?|" + kThreeDigits + "|" +
                            others_with_slashes + "|" + blanks;
  const std::string tekken = lower_words + "|" + upper_words + "|" + kDigit + "|" + others_with_slashes + "|" + blanks;
  const std::string deepseek3 =
      R"([!"#$%\&'()*+,\-./:;<=>?@\[\\\]^_`{|}\~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|)"
      R"( ?[\p{P}\p{S}]+[\r\n]*|)" +
      blanks;
};

struct Row {
  std::vector<const char*> names;  // values of tokenizer.ggml.pre
  PreTokenizer pre;
};

std::vector<Row> make_rows() {
  const Joined p;
  return {
      {{"default"}, {.patterns = {kPunctuation, kGpt2, kDigits, kThreeAsciiDigits}}},
      {{"gpt-2", "phi-2", "gigachat", "a.x-4.0", "mellum", "mpt", "olmo", "jais", "trillion", "granite-docling",
        "exaone4"},
       {.patterns = {kGpt2}}},
      {{"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b", "mellum2"},
       {.patterns = {kDigit, kGpt2}}},
      {{"llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"},
       {.patterns = {p.llama3}, .ignores_merges = true, .adds_bos = true}},
      {{"glm4"}, {.patterns = {p.llama3}, .ignores_merges = true}},
      {{"dbrx", "smaug-bpe", "chatglm-bpe"}, {.patterns = {p.llama3}}},
      {{"qwen2", "deepseek-r1-qwen", "kormo", "f2llmv2", "stablelm2", "megrez", "hunyuan", "solar-open", "grok-2"},
       {.patterns = {p.qwen2}}},
      {{"qwen35"}, {.patterns = {p.qwen35}}},
      {{"minicpm5"}, {.patterns = {kThreeDigits, p.minicpm5}, .ignores_merges = true}},
      {{"seed-coder"}, {.patterns = {p.seed_coder}}},
      {{"gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"}, {.patterns = {p.gpt4o}}},
      {{"tekken"}, {.patterns = {p.tekken}, .ignores_merges = true, .adds_bos = true}},
      {{"falcon"}, {.patterns = {kFalconPunctuation, kGpt2, kThreeAsciiDigits}}},
      {{"deepseek-llm"},
       {.patterns = {kNewline, kDeepseekLetters, kDeepseekPunctuation, R"(\s+$)", kEastAsian, kDigits}}},
      {{"deepseek-coder"}, {.patterns = {kNewline, R"(\s?\p{L}+)", R"(\s?\p{P}+)", kEastAsian, kDigit}}},
      {{"deepseek-v3", "hunyuan-dense", "joyai-llm"}, {.patterns = {kThreeDigits, kHanAndKana, p.deepseek3}}},
  };
}

const std::vector<Row>& all_rows() {
  static const std::vector<Row> kRows = make_rows();
  return kRows;
}

}  // namespace

PreTokenizer pre_tokenizer_of(const GgufFile& file) {
  const std::string name = file.text("tokenizer.ggml.pre", "default");
  std::string known;
  for (const Row& row : all_rows())
    for (const char* of_row : row.names) {
      if (name == of_row) return row.pre;
      known += (known.empty() ? "" : ", ") + std::string(of_row);
    }
  refuse_model(file, "tokenizer.ggml.pre " + in_quotes(name) + " is not supported; supported: " + known +
                         "; use the model's Hugging Face checkpoint instead");
}

std::string pre_tokenizer_name(const std::vector<std::string>& patterns, bool ignores_merges) {
  for (const Row& row : all_rows())
    if (row.pre.patterns == patterns && row.pre.ignores_merges == ignores_merges) return row.names.front();
  return "";
}

}  // namespace specdec::gguf
