#include "base/gguf/export_tokenizer.h"

#include <algorithm>
#include <cstdio>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <unordered_map>

#include "base/error.h"
#include "base/gguf/export_pieces.h"

namespace specdec::gguf {

namespace {

constexpr ErrorKind kTokenizerError = ErrorKind::kModel;

// llama.cpp's numbers of the types of tokens (llama.h, enum llama_token_type).
constexpr int32_t kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5, kByte = 6;

// Texts of tokens that end an answer in llama.cpp, whatever the file says (src/llama-vocab.cpp, special_eog_ids).
constexpr const char* kEndsKnownByText[] = {"<|eot_id|>",      "<|im_end|>", "<|end|>",           "<end_of_turn>",
                                            "<|endoftext|>",   "</s>",       "<|eom_id|>",        "<EOT>",
                                            "<|end_of_text|>", "<eos>",      "<end_of_utterance>"};

struct AddedToken {
  std::string text;
  bool special = false, strips = false;  // strips: takes the spaces after it
};

std::string byte_token(int byte) {
  char text[7];
  std::snprintf(text, sizeof text, "<0x%02X>", static_cast<unsigned>(byte));
  return text;
}

class TokenizerExport {
 public:
  TokenizerExport(const TokenizerFiles& files, int64_t vocab_size) : files_(files), vocab_size_(vocab_size) {}

  ExportedTokenizer run() {
    read_model();
    read_added();
    place_tokens();
    const bool fallback = flag(model_, "byte_fallback");
    if (fallback)
      export_with_fallback();
    else
      export_byte_level();
    add("tokens", texts_);
    add("token_type", types_);
    add_special_ids();
    add_template();
    out_.has_phi3_tokens =
        ids_.contains("</s>") && ids_.contains("<unk>") && ids_.contains("<s>") && ids_.contains("<|endoftext|>");
    return std::move(out_);
  }

 private:
  [[noreturn]] void refuse(const std::string& what) const { throw Error(kTokenizerError, files_.where + ": " + what); }
  static std::string shown_text(const std::string& text) {
    return Json(text.substr(0, 80)).dump(-1, ' ', /*ensure_ascii=*/true, Json::error_handler_t::replace);
  }
  static bool flag(const Json& object, const char* key) {
    const Json value = object.value(key, Json(false));
    return value.is_boolean() && value.get<bool>();
  }
  void add(const std::string& key, StoredValue value) {
    out_.metadata.emplace_back("tokenizer.ggml." + key, std::move(value));
  }

  void read_model() {
    if (!files_.tokenizer.is_object()) refuse("expected an object");
    if (!files_.tokenizer.contains("model") || !files_.tokenizer["model"].is_object())
      refuse("model: expected an object");
    const Json& model = files_.tokenizer["model"];
    for (const auto& [key, value] : model.items())
      if (!value.is_structured()) model_[key] = value;
    const Json type = model_.value("type", Json("BPE"));
    if (type != "BPE") refuse("model: expected BPE, found " + type.dump(-1, ' ', true).substr(0, 80));
    for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"})
      if (const Json value = model_.value(key, Json()); !value.is_null() && value != "")
        refuse(std::string("model: ") + key + ", which llama.cpp does not have");
    const Json& vocabulary = json_object(model, "vocab", 1 << 24, files_.where, kTokenizerError);
    for (const auto& [text, id] : vocabulary.items())
      vocabulary_[text] = json_int(Json{{"vocab", id}}, "vocab", {0, (1 << 24) - 1}, files_.where, kTokenizerError);
  }

  void read_entry(int64_t id, const Json& entry) {
    if (!entry.is_object() || !entry.contains("content") || !entry["content"].is_string())
      refuse("added_tokens: expected objects with a content");
    added_[id] = {entry["content"].get<std::string>(), flag(entry, "special"), flag(entry, "rstrip")};
  }

  // Reads the added tokens. As in transformers 5, tokenizer_config.json rules: its list of them replaces flags, and the
  // tokens that it names are special.
  void read_added() {
    const auto range = [&](const Json& id) {
      return json_int(Json{{"id", id}}, "id", {0, (1 << 24) - 1}, files_.where, kTokenizerError);
    };
    for (const Json& entry : files_.tokenizer.value("added_tokens", Json::array()))
      read_entry(range(entry.is_object() ? entry.value("id", Json()) : Json()), entry);
    const Json listed = files_.tokenizer_config.value("added_tokens_decoder", Json::object());
    if (listed.is_object())
      for (const auto& [key, entry] : listed.items()) {
        const bool is_number =
            !key.empty() && key.size() < 9 && key.find_first_not_of("0123456789") == std::string::npos;
        if (!is_number) refuse("tokenizer_config.json: added_tokens_decoder: expected ids as keys");
        read_entry(std::stoll(key), entry);
      }
    std::set<std::string> named;
    for (const char* key : {"bos_token", "eos_token", "unk_token", "pad_token"})
      if (const std::string text = named_text(files_.tokenizer_config.value(key, Json())); !text.empty())
        named.insert(text);
    for (const char* key : {"additional_special_tokens", "extra_special_tokens"})
      for (const Json& item : files_.tokenizer_config.value(key, Json::array())) named.insert(named_text(item));
    for (auto& [id, token] : added_)
      if (named.contains(token.text)) token.special = true;
  }

  // Returns the text of a token that tokenizer_config.json names, by text or by object; "" for null.
  static std::string named_text(const Json& value) {
    const Json text = value.is_object() ? value.value("content", Json()) : value;
    return text.is_string() ? text.get<std::string>() : "";
  }

  void place_tokens() {
    texts_.resize(static_cast<size_t>(vocab_size_));
    types_.assign(static_cast<size_t>(vocab_size_), kUnused);
    std::map<int64_t, std::string> by_id;
    for (const auto& [text, id] : vocabulary_) by_id[id] = text;
    for (const auto& [id, token] : added_) by_id[id] = token.text;
    if (!by_id.empty() && by_id.rbegin()->first >= vocab_size_)
      refuse("token " + std::to_string(by_id.rbegin()->first) + " is outside of the model's vocabulary of " +
             std::to_string(vocab_size_));
    for (size_t i = 0; i < texts_.size(); ++i) texts_[i] = "[PAD" + std::to_string(i) + "]";
    for (const auto& [id, text] : by_id) {
      texts_[static_cast<size_t>(id)] = text;
      types_[static_cast<size_t>(id)] = kNormal;
    }
    for (size_t i = 0; i < texts_.size(); ++i)
      if (texts_[i].empty() || !ids_.emplace(texts_[i], static_cast<int64_t>(i)).second)
        refuse("token " + std::to_string(i) + " " + shown_text(texts_[i]) + " is empty or occurs twice");
    for (const auto& [id, token] : added_) {
      types_[static_cast<size_t>(id)] = token.special ? kControl : kUserDefined;
      out_.strips_spaces = out_.strips_spaces || token.strips;
    }
  }

  void export_byte_level() {
    if (flag(model_, "fuse_unk")) refuse("model: fuse_unk without byte_fallback");
    add("model", std::string("gpt2"));
    add("pre", pre_of(files_.tokenizer, files_.where));
    if (files_.tokenizer.contains("normalizer") && !files_.tokenizer["normalizer"].is_null())
      out_.warnings.push_back(
          "llama.cpp does not normalise text (NFC), and makes other tokens of decomposed characters");
    std::vector<std::string> merges;
    for (const auto& [left, right] : merges_of(files_.tokenizer, false, files_.where))
      merges.push_back(left + " " + right);
    add("merges", std::move(merges));
  }

  void export_with_fallback() {
    if (flag(model_, "ignore_merges")) refuse("model: ignore_merges with byte_fallback, which llama.cpp does not have");
    for (int byte = 0; byte < 256; ++byte) {
      const auto found = vocabulary_.find(byte_token(byte));
      if (found == vocabulary_.end()) refuse("model: byte_fallback without the token " + byte_token(byte));
      types_[static_cast<size_t>(found->second)] = kByte;
    }
    // llama.cpp writes spaces as "▁" after it has looked for added tokens, so that these would have to hold spaces; the
    // tokenizers library merges such tokens.
    std::unordered_map<std::string, int64_t> merging = vocabulary_;
    for (const auto& [id, token] : added_) {
      const bool is_piece = !token.special && token.text.find("\u2581") != std::string::npos;
      if (is_piece)
        types_[static_cast<size_t>(id)] = kNormal;
      else
        merging.erase(token.text);
    }
    const bool prefix = adds_space_prefix(files_.tokenizer, files_.where);
    const auto ranks = ranks_of(merges_of(files_.tokenizer, true, files_.where), merging, files_.where);
    std::vector<float> scores(texts_.size(), 0);
    for (size_t i = 0; i < texts_.size(); ++i) {
      const auto rank = ranks.find(texts_[i]);
      if (types_[i] == kNormal)
        scores[i] = -static_cast<float>(rank == ranks.end() ? static_cast<int64_t>(ranks.size()) : rank->second);
    }
    if (const auto unknown = id_of(named_text(model_.value("unk_token", Json()))))
      types_[static_cast<size_t>(*unknown)] = kUnknown;
    add("model", std::string("llama"));
    add("pre", std::string("default"));
    add("scores", std::move(scores));
    add("add_space_prefix", prefix);
  }

  std::optional<int64_t> id_of(const std::string& text) const {
    const auto found = ids_.find(text);
    return text.empty() || found == ids_.end() ? std::nullopt : std::optional(found->second);
  }

  // Returns the special tokens that the post-processor puts before and after a text.
  std::pair<std::vector<std::string>, std::vector<std::string>> added_around() const {
    std::pair<std::vector<std::string>, std::vector<std::string>> around;
    const Json processor = files_.tokenizer.value("post_processor", Json());
    if (!processor.is_object()) return around;
    std::vector<Json> steps = {processor};
    if (processor.value("type", Json()) == "Sequence" && processor.value("processors", Json()).is_array())
      steps = processor["processors"].get<std::vector<Json>>();
    for (const Json& step : steps) {
      const Json type = step.is_object() ? step.value("type", Json()) : Json();
      if (type == "ByteLevel") continue;
      if (type != "TemplateProcessing") refuse("post_processor: expected TemplateProcessing or ByteLevel");
      bool after = false;
      for (const Json& piece : json_array(step, "single", 64, files_.where, kTokenizerError)) {
        if (piece.contains("Sequence")) {
          after = true;
        } else if (piece.contains("SpecialToken")) {
          const std::string text = named_text(piece["SpecialToken"].value("id", Json()));
          (after ? around.second : around.first).push_back(text);
        }
      }
    }
    return around;
  }

  // Returns an id of config.json or generation_config.json, which may be a list of ids.
  static std::vector<int64_t> ids_in(const Json& config, const char* key, int64_t vocab_size) {
    const Json value = config.value(key, Json());
    std::vector<int64_t> ids;
    for (const Json& item : value.is_array() ? value : Json::array({value}))
      if (item.is_number_integer() && item >= 0 && item < vocab_size) ids.push_back(item.get<int64_t>());
    return ids;
  }

  void add_special_ids() {
    const auto [before, after] = added_around();
    if (before.size() > 1 || after.size() > 1)
      refuse("post_processor: puts several tokens around a text; llama.cpp puts one");
    const auto named = [&](const char* key) { return id_of(named_text(files_.tokenizer_config.value(key, Json()))); };
    std::optional<int64_t> bos = before.empty() ? named("bos_token") : id_of(before[0]);
    if (!before.empty() && !bos) refuse("post_processor: names a token that does not exist");
    if (const auto ids = ids_in(files_.config, "bos_token_id", vocab_size_); !bos && !ids.empty()) bos = ids[0];
    std::vector<int64_t> ends = ids_in(files_.config, "eos_token_id", vocab_size_);
    for (const int64_t id : ids_in(files_.generation_config, "eos_token_id", vocab_size_))
      if (std::ranges::find(ends, id) == ends.end()) ends.push_back(id);
    // The token that the tokenizer calls EOS is the first if it is among them.
    const auto eos = named("eos_token");
    if (const auto at = eos ? std::ranges::find(ends, *eos) : ends.end(); at != ends.end())
      std::rotate(ends.begin(), at, at + 1);
    if (ends.empty() && eos) ends.push_back(*eos);
    if (!after.empty() && (ends.empty() || id_of(after[0]) != ends[0]))
      refuse("post_processor: puts a token after a text that is not the EOS token");
    const auto id = [&](const char* key, std::optional<int64_t> value) {
      if (value) add(key, static_cast<uint32_t>(*value));
    };
    id("bos_token_id", bos);
    add_ends(ends);
    id("unknown_token_id", id_of(named_text(model_.value("unk_token", Json()))));
    std::optional<int64_t> pad = named("pad_token");
    if (const auto ids = ids_in(files_.config, "pad_token_id", vocab_size_); !pad && !ids.empty()) pad = ids[0];
    id("padding_token_id", pad);
    add("add_bos_token", !before.empty());
    add("add_eos_token", !after.empty());
  }

  // Writes the ids that end an answer. The file has places for three, and llama.cpp knows others by their texts.
  void add_ends(const std::vector<int64_t>& ends) {
    if (ends.empty()) return;
    add("eos_token_id", static_cast<uint32_t>(ends[0]));
    const auto is_known = [&](int64_t id) {
      return std::ranges::find(kEndsKnownByText, texts_[static_cast<size_t>(id)]) != std::end(kEndsKnownByText);
    };
    std::vector<int64_t> others;
    for (const bool known : {false, true})
      std::copy_if(ends.begin() + 1, ends.end(), std::back_inserter(others),
                   [&](int64_t id) { return is_known(id) == known; });
    for (size_t i = 0; i < others.size(); ++i) {
      if (i < 2)
        add(i == 0 ? "eot_token_id" : "eom_token_id", static_cast<uint32_t>(others[i]));
      else if (!is_known(others[i]))
        out_.warnings.push_back("llama.cpp does not end an answer at token " + std::to_string(others[i]) + " " +
                                shown_text(texts_[static_cast<size_t>(others[i])]));
    }
  }

  void add_template() {
    const std::string key = "tokenizer.chat_template";
    const Json found = files_.tokenizer_config.value("chat_template", Json());
    std::string main = files_.chat_template;
    std::vector<std::string> names;
    if (found.is_string() && main.empty()) main = found.get<std::string>();
    if (found.is_array())
      for (const Json& item : found) {
        const std::string name = item.is_object() ? named_text(item.value("name", Json())) : "",
                          text = item.is_object() ? named_text(item.value("template", Json())) : "";
        if (name == "default" && main.empty()) main = text;
        if (name.empty() || name == "default" || text.empty() || std::ranges::find(names, name) != names.end())
          continue;
        names.push_back(name);
        out_.metadata.emplace_back(key + "." + name, text);
      }
    if (!names.empty()) out_.metadata.emplace_back("tokenizer.chat_templates", names);
    if (!main.empty()) out_.metadata.emplace_back(key, main);
  }

  const TokenizerFiles& files_;
  const int64_t vocab_size_;
  Json model_ = Json::object();  // without vocabulary and merges, which are large
  std::unordered_map<std::string, int64_t> vocabulary_, ids_;
  std::map<int64_t, AddedToken> added_;
  std::vector<std::string> texts_;
  std::vector<int32_t> types_;
  ExportedTokenizer out_;
};

}  // namespace

ExportedTokenizer export_tokenizer(const TokenizerFiles& files, int64_t vocab_size) {
  return TokenizerExport(files, vocab_size).run();
}

}  // namespace specdec::gguf
