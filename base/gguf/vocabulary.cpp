#include "base/gguf/vocabulary.h"

#include <algorithm>
#include <set>

#include "base/gguf/architectures.h"
#include "base/gguf/header_reader.h"
#include "base/utf8.h"

namespace specdec::gguf {

namespace {

constexpr int64_t kMaxTokens = 1 << 20;  // Gemma has 2^18
constexpr size_t kMaxTokenBytes = 1 << 16;

// Texts of tokens that end an answer, whatever the metadata says: files converted before EOT had a key of its own, and
// models with several ends, lack it there. Unlike llama.cpp's, this list lacks "</s>", which is EOS where it ends a
// text and an HTML tag for Gemma.
constexpr const char* kEnds[] = {"<|eot_id|>",        "<|im_end|>", "<|end|>", "<end_of_turn>",   "<|endoftext|>",
                                 "<|eom_id|>",        "<EOT>",      "_<EOT>",  "<|end_of_text|>", "<eos>",
                                 "<end_of_utterance>"};

Vocabulary::Model read_model(const GgufFile& file) {
  const std::string model = file.text("tokenizer.ggml.model");
  if (model == "gpt2") return Vocabulary::Model::kBytePairs;
  if (model == "llama") return Vocabulary::Model::kSentencePiece;
  refuse_model(file,
               "tokenizer.ggml.model " + in_quotes(model) +
                   " is not supported; supported: gpt2 (byte-level BPE) and llama (SentencePiece); use the model's "
                   "Hugging Face checkpoint instead");
}

void read_tokens(const GgufFile& file, Vocabulary& out) {
  out.tokens = file.texts("tokenizer.ggml.tokens");
  if (out.tokens.empty()) refuse_model(file, "tokenizer.ggml.tokens: the list is empty");
  if (static_cast<int64_t>(out.tokens.size()) > kMaxTokens)
    refuse_model(file, "tokenizer.ggml.tokens: " + std::to_string(out.tokens.size()) + " tokens, the limit is " +
                           std::to_string(kMaxTokens));
  out.ids.reserve(out.tokens.size());
  for (size_t id = 0; id < out.tokens.size(); ++id) {
    std::string& token = out.tokens[id];
    if (token.empty()) token = "[EMPTY_" + std::to_string(id) + "]";  // llama.cpp's name
    if (token.size() > kMaxTokenBytes)
      refuse_model(file, "tokenizer.ggml.tokens: token " + std::to_string(id) + " has " + std::to_string(token.size()) +
                             " bytes, the limit is " + std::to_string(kMaxTokenBytes));
    if (!is_valid_utf8(token))
      refuse_model(file, "tokenizer.ggml.tokens: token " + std::to_string(id) + " is not valid UTF-8");
    const auto [at, is_new] = out.ids.emplace(token, static_cast<int64_t>(id));
    if (!is_new)
      refuse_model(file, "tokenizer.ggml.tokens: tokens " + std::to_string(at->second) + " and " + std::to_string(id) +
                             " are both " + in_quotes(token));
  }
}

void read_kinds(const GgufFile& file, Vocabulary& out) {
  const std::vector<int64_t> types = file.integers("tokenizer.ggml.token_type");
  if (types.empty()) {
    out.kinds.assign(out.tokens.size(), TokenKind::kNormal);
    return;
  }
  if (types.size() != out.tokens.size())
    refuse_model(file, "tokenizer.ggml.token_type: expected one type for each of the " +
                           std::to_string(out.tokens.size()) + " tokens, found " + std::to_string(types.size()));
  for (const int64_t type : types) {
    if (type < 0 || type > static_cast<int64_t>(TokenKind::kByte))
      refuse_model(file, "tokenizer.ggml.token_type: expected types from 0 to 6, found " + std::to_string(type));
    out.kinds.push_back(static_cast<TokenKind>(type));
  }
}

}  // namespace

Vocabulary read_vocabulary(const GgufFile& file) {
  Vocabulary out;
  out.model = read_model(file);
  read_tokens(file, out);
  read_kinds(file, out);
  const auto last = static_cast<int64_t>(out.tokens.size()) - 1;
  // `usual` is SentencePiece's id, which llama.cpp assumes if the key is missing.
  const auto id_of = [&](const std::string& key, int64_t usual) -> std::optional<int64_t> {
    const std::string whole = "tokenizer.ggml." + key + "_token_id";
    if (file.has(whole)) return file.integer(whole, 0, std::min(last, kMaxTokens));
    if (out.model == Vocabulary::Model::kSentencePiece && usual >= 0 && usual <= last) return usual;
    return std::nullopt;
  };
  out.bos = id_of("bos", 1);
  out.eos = id_of("eos", 2);
  out.unknown = id_of("unknown", 0);
  out.pad = id_of("padding", -1);
  std::set<int64_t> ends;
  for (const auto& id : {out.eos, id_of("eot", -1), id_of("eom", -1)})
    if (id) ends.insert(*id);
  for (const char* text : kEnds) {
    const auto found = out.ids.find(text);
    if (found == out.ids.end()) continue;
    ends.insert(found->second);
    // llama.cpp treats such a token as a control token, whatever its type says.
    out.kinds[static_cast<size_t>(found->second)] = TokenKind::kControl;
  }
  out.ends.assign(ends.begin(), ends.end());
  return out;
}

}  // namespace specdec::gguf
