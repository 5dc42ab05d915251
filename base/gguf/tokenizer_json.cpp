// Makes tokenizer.json and tokenizer_config.json from a GGUF file's metadata. Sources: llama.cpp's llama-vocab.cpp (the
// tokenizer's behaviour and defaults), the Hugging Face tokenizers library (the form of tokenizer.json).
#include <cctype>

#include "base/gguf/architectures.h"
#include "base/gguf/header_reader.h"
#include "base/gguf/model_files.h"
#include "base/gguf/pre_tokenizers.h"
#include "base/gguf/sentencepiece_merges.h"
#include "base/gguf/vocabulary.h"
#include "base/utf8.h"

namespace specdec::gguf {

namespace {

constexpr char kBlank[] = "▁";  // SentencePiece's space

struct Ends {
  bool bos, eos;  // whether they are put around a text
};

Ends added_ends(const GgufFile& file, const Vocabulary& vocabulary) {
  const bool usual = vocabulary.model == Vocabulary::Model::kSentencePiece || pre_tokenizer_of(file).adds_bos;
  const Ends ends{file.flag("tokenizer.ggml.add_bos_token", usual), file.flag("tokenizer.ggml.add_eos_token", false)};
  if (ends.bos && !vocabulary.bos)
    refuse_model(file, "tokenizer.ggml.bos_token_id is missing, and texts begin with BOS");
  if (ends.eos && !vocabulary.eos) refuse_model(file, "tokenizer.ggml.eos_token_id is missing, and texts end with EOS");
  return ends;
}

// Returns the tokens that are found in a text before anything else is. llama.cpp strips white space behind those of
// Phi-3, which it knows by the model's name.
Json added_tokens(const GgufFile& file, const Vocabulary& vocabulary) {
  std::string name = file.text("general.name", "");
  for (char& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  const bool phi3 = name.find("phi-3") != std::string::npos || name.find("phi3") != std::string::npos;
  Json out = Json::array();
  for (size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    const TokenKind kind = vocabulary.kinds[id];
    if (kind != TokenKind::kControl && kind != TokenKind::kUnknown && kind != TokenKind::kUserDefined) continue;
    const std::string& token = vocabulary.tokens[id];
    const bool strips = phi3 && token != "<unk>" && token != "<s>" && token != "<|endoftext|>";
    out.push_back({{"id", id},
                   {"content", token},
                   {"single_word", false},
                   {"lstrip", false},
                   {"rstrip", strips},
                   {"normalized", false},
                   {"special", kind != TokenKind::kUserDefined}});
  }
  return out;
}

// Returns the stage that puts BOS and EOS around a text, or null.
Json post_processor(const Vocabulary& vocabulary, const Ends& ends) {
  if (!ends.bos && !ends.eos) return Json();
  Json tokens = Json::object();
  const auto special = [&](int64_t id, int type) {
    const std::string& text = vocabulary.text(id);
    tokens[text] = {{"id", text}, {"ids", {id}}, {"tokens", {text}}};
    return Json{{"SpecialToken", {{"id", text}, {"type_id", type}}}};
  };
  const auto whole = [&](const char* sequence, int type, Json& out) {
    if (ends.bos) out.push_back(special(*vocabulary.bos, type));
    out.push_back({{"Sequence", {{"id", sequence}, {"type_id", type}}}});
    if (ends.eos) out.push_back(special(*vocabulary.eos, type));
  };
  Json single = Json::array(), pair = Json::array();
  whole("A", 0, single);
  whole("A", 0, pair);
  whole("B", 1, pair);
  return {{"type", "TemplateProcessing"}, {"single", single}, {"pair", pair}, {"special_tokens", tokens}};
}

Json byte_pair_merges(const GgufFile& file, const Vocabulary& vocabulary) {
  Json out = Json::array();
  for (const std::string& merge : file.texts("tokenizer.ggml.merges")) {
    const size_t space = merge.find(' ', 1);
    const std::string left = merge.substr(0, space), right = space == std::string::npos ? "" : merge.substr(space + 1);
    if (!vocabulary.ids.contains(left) || !vocabulary.ids.contains(right) || !vocabulary.ids.contains(left + right))
      refuse_model(file, "tokenizer.ggml.merges: merge " + std::to_string(out.size()) + ", " + in_quotes(merge) +
                             ": expected two tokens that together are a token");
    out.push_back({left, right});
  }
  return out;
}

void write_byte_level(const GgufFile& file, const Vocabulary& vocabulary, Json& out) {
  const PreTokenizer pre = pre_tokenizer_of(file);
  Json stages = Json::array();
  for (const std::string& pattern : pre.patterns)
    stages.push_back(
        {{"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}, {"invert", false}});
  const Json byte_level = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", false}, {"use_regex", false}};
  stages.push_back(byte_level);
  out["normalizer"] = nullptr;
  out["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", stages}};
  out["decoder"] = byte_level;
  out["model"].update({{"unk_token", nullptr},
                       {"fuse_unk", false},
                       {"byte_fallback", false},
                       {"ignore_merges", pre.ignores_merges},
                       {"merges", byte_pair_merges(file, vocabulary)}});
}

void write_sentencepiece(const GgufFile& file, const Vocabulary& vocabulary, Json& out) {
  for (int byte = 0; byte < 256; ++byte) {
    constexpr char kHex[] = "0123456789ABCDEF";
    const std::string token = std::string("<0x") + kHex[byte / 16] + kHex[byte % 16] + ">";
    if (!vocabulary.ids.contains(token))
      refuse_model(file,
                   "tokenizer.ggml.tokens: there is no token " + token + ", which stands for a byte of unknown text");
  }
  const bool prefix = file.flag("tokenizer.ggml.add_space_prefix", true);
  const Json escape = {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", kBlank}};
  const Json unescape = {{"type", "Replace"}, {"pattern", {{"String", kBlank}}}, {"content", " "}};
  // A text, and every text behind a special token, begins with a blank.
  out["normalizer"] =
      prefix ? Json{{"type", "Sequence"}, {"normalizers", {{{"type", "Prepend"}, {"prepend", kBlank}}, escape}}}
             : escape;
  out["pre_tokenizer"] = nullptr;
  Json decoders = Json::array({unescape, {{"type", "ByteFallback"}}, {{"type", "Fuse"}}});
  if (prefix) decoders.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
  out["decoder"] = {{"type", "Sequence"}, {"decoders", decoders}};
  Json merges = Json::array();
  for (auto& [left, right] : sentencepiece_merges(file, vocabulary))
    merges.push_back({std::move(left), std::move(right)});
  out["model"].update({{"unk_token", vocabulary.unknown ? Json(vocabulary.text(*vocabulary.unknown)) : Json()},
                       {"fuse_unk", true},
                       {"byte_fallback", true},
                       {"ignore_merges", false},
                       {"merges", std::move(merges)}});
}

// Returns the chat templates of the file: null, a text, or a list of named texts.
Json chat_templates(const GgufFile& file) {
  const std::string key = "tokenizer.chat_template";
  const auto read = [&](const std::string& of) {
    std::string text = file.text(of);
    if (!is_valid_utf8(text)) refuse_model(file, of + ": the text is not valid UTF-8");
    return text;
  };
  if (!file.has(key)) return Json();
  const std::string usual = read(key);
  Json list = Json::array({{{"name", "default"}, {"template", usual}}});
  for (const auto& [name, value] : file.metadata()) {
    if (!name.starts_with(key + ".")) continue;
    const std::string short_name = name.substr(key.size() + 1);
    if (!is_valid_utf8(short_name)) refuse_model(file, "the name of " + in_quotes(name) + " is not valid UTF-8");
    if (short_name != "default") list.push_back({{"name", short_name}, {"template", read(name)}});
  }
  return list.size() == 1 ? Json(usual) : list;
}

}  // namespace

Json make_tokenizer(const GgufFile& file) {
  const Vocabulary vocabulary = read_vocabulary(file);
  Json ids = Json::object();
  for (size_t id = 0; id < vocabulary.tokens.size(); ++id) ids[vocabulary.tokens[id]] = id;
  Json out = {{"version", "1.0"},
              {"truncation", nullptr},
              {"padding", nullptr},
              {"added_tokens", added_tokens(file, vocabulary)},
              {"post_processor", post_processor(vocabulary, added_ends(file, vocabulary))},
              {"model",
               {{"type", "BPE"},
                {"dropout", nullptr},
                {"continuing_subword_prefix", nullptr},
                {"end_of_word_suffix", nullptr},
                {"vocab", std::move(ids)}}}};
  if (vocabulary.model == Vocabulary::Model::kBytePairs)
    write_byte_level(file, vocabulary, out);
  else
    write_sentencepiece(file, vocabulary, out);
  return out;
}

Json make_tokenizer_config(const GgufFile& file) {
  const Vocabulary vocabulary = read_vocabulary(file);
  const Ends ends = added_ends(file, vocabulary);
  Json out = {{"tokenizer_class", "PreTrainedTokenizerFast"},
              {"clean_up_tokenization_spaces", false},
              {"add_bos_token", ends.bos},
              {"add_eos_token", ends.eos}};
  const auto name = [&](const char* key, const std::optional<int64_t>& id) {
    if (id) out[key] = vocabulary.text(*id);
  };
  name("bos_token", vocabulary.bos);
  name("eos_token", vocabulary.eos);
  name("unk_token", vocabulary.unknown);
  name("pad_token", vocabulary.pad);
  const Json templates = chat_templates(file);
  if (!templates.is_null()) out["chat_template"] = templates;
  return out;
}

}  // namespace specdec::gguf
