#include "text/tokenizer.h"

#include <algorithm>
#include <cctype>
#include <set>

#include "base/file.h"
#include "base/json.h"
#include "text/rust_error.h"

namespace specdec::text {

namespace {

constexpr size_t kMaxTokenizerBytes = 128u << 20;
constexpr size_t kMaxConfigBytes = 16u << 20;
constexpr char kReplacement[] = "\xEF\xBF\xBD";  // U+FFFD

// Returns the text of a token given as "<s>" or as {"content": "<s>", …}; "" for null and anything else.
std::string token_text(const Json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_object() && value.contains("content") && value["content"].is_string())
    return value["content"].get<std::string>();
  return "";
}

// Converts a token that token_text() accepts to a change for sd_tokenizer_new. The token becomes special. `if_known`
// becomes the field `known`, which says what to do if tokenizer.json already has the token.
Json change(const Json& value, const char* if_known) {
  Json token = value.is_object() ? value : Json::object();
  token["content"] = token_text(value);
  token["special"] = true;
  token["known"] = if_known;
  return token;
}

Json read_config(const fs::path& file) {
  if (!fs::exists(file)) return Json::object();
  const Json config = read_json(file, ErrorKind::kModel, {kMaxConfigBytes, 64});
  if (!config.is_object()) throw Error(ErrorKind::kModel, file.string() + ": expected a JSON object");
  return config;
}

// Merges added tokens as transformers 5.23 does (tokenization_utils_base.py, _from_pretrained). `named` has the tokens
// that the configuration names, such as bos_token. Tokens in the configuration's list (added_tokens_decoder) replace
// the flags of tokenizer.json's tokens. Named tokens become special if they are in the list or there is no list. Tokens
// that tokenizer.json lacks are added: those in the list, the named ones, and the extra (or additional) special tokens.
Json added_tokens(const Json& config, std::map<std::string, Json> named) {
  Json added = Json::array();
  std::map<int64_t, Json> by_id;
  const Json decoder = config.value("added_tokens_decoder", Json::object());
  for (const auto& [id, token] : decoder.items())
    if (token.is_object() && !token_text(token).empty()) by_id[std::strtoll(id.c_str(), nullptr, 10)] = token;
  std::set<std::string> listed;
  for (auto& [id, token] : by_id) {
    listed.insert(token_text(token));
    added.push_back(std::move(token));
  }
  const auto add_named = [&](const Json& token) {
    const bool rules = decoder.empty() || listed.contains(token_text(token));
    added.push_back(change(token, rules ? "special" : "keep"));
  };
  for (const char* first : {"bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"})
    if (const auto found = named.extract(first)) add_named(found.mapped());
  for (const auto& [name, token] : named) add_named(token);
  const char* further = config.contains("extra_special_tokens") ? "extra_special_tokens" : "additional_special_tokens";
  const Json extra = config.value(further, Json::array());
  for (const Json& token : extra.is_array() ? extra : Json::array())
    if (!token_text(token).empty()) added.push_back(change(token, "keep"));
  return added;
}

bool is_byte_token(const std::string& token) {
  return token.size() == 6 && token.starts_with("<0x") && token[5] == '>' &&
         std::isxdigit(static_cast<unsigned char>(token[3])) && std::isxdigit(static_cast<unsigned char>(token[4]));
}

// Returns the length in bytes of the longest common prefix of both texts that ends between two characters.
size_t common_characters(std::string_view a, std::string_view b) {
  auto common = static_cast<size_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin());
  const auto is_inside = [&common](std::string_view text) {
    return common < text.size() && (static_cast<unsigned char>(text[common]) & 0xC0) == 0x80;
  };
  while (common > 0 && (is_inside(a) || is_inside(b))) --common;
  return common;
}

}  // namespace

std::string SpecialTokens::name(const std::string& key) const {
  const auto found = names.find(key);
  return found == names.end() ? "" : found->second;
}

SpecialTokens read_special_tokens(const fs::path& model_directory) {
  SpecialTokens tokens;
  std::map<std::string, Json> named;
  const Json config = read_config(model_directory / "tokenizer_config.json"),
             map = read_config(model_directory / "special_tokens_map.json");
  for (const Json& from : {config, config.value("extra_special_tokens", Json::object()), map})
    for (const auto& [key, value] : from.items())
      if (key.ends_with("_token") && !token_text(value).empty()) named.emplace(key, value);
  for (const auto& [key, value] : named) tokens.names[key] = token_text(value);
  tokens.added = added_tokens(config, std::move(named));
  return tokens;
}

struct Tokenizer::Impl {
  sd_tokenizer* handle = nullptr;
  std::string bos, eos;
  int32_t bos_id = -1, eos_id = -1;
  int32_t streaming = SD_STREAM_WHOLE;
  ~Impl() { sd_tokenizer_free(handle); }

  std::string decode(const uint32_t* ids, size_t count, bool skip_special) const {
    sd_bytes out{}, message{};
    check(sd_tokenizer_decode(handle, ids, count, skip_special, &out, &message), message, "token ids",
          ErrorKind::kData);
    return take(out);
  }
};

Tokenizer::Tokenizer(const fs::path& model_directory) : impl_(std::make_unique<Impl>()) {
  const fs::path file = model_directory / "tokenizer.json";
  const std::string json = read_file(file, kMaxTokenizerBytes, ErrorKind::kModel);
  const SpecialTokens tokens = read_special_tokens(model_directory);
  const std::string added = tokens.added.dump();
  sd_bytes message{};
  check(sd_tokenizer_new(reinterpret_cast<const uint8_t*>(json.data()), json.size(),
                         reinterpret_cast<const uint8_t*>(added.data()), added.size(), &impl_->handle, &message),
        message, file.string(), ErrorKind::kModel);
  sd_tokenizer_streaming(impl_->handle, &impl_->streaming);
  impl_->bos = tokens.name("bos_token");
  impl_->eos = tokens.name("eos_token");
  impl_->bos_id = impl_->bos.empty() ? -1 : token_to_id(impl_->bos);
  impl_->eos_id = impl_->eos.empty() ? -1 : token_to_id(impl_->eos);
}
Tokenizer::~Tokenizer() = default;
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;

std::vector<int32_t> Tokenizer::encode(std::string_view text, bool add_special_tokens) const {
  sd_ids out{};
  sd_bytes message{};
  check(sd_tokenizer_encode(impl_->handle, reinterpret_cast<const uint8_t*>(text.data()), text.size(),
                            add_special_tokens, &out, &message),
        message, "", ErrorKind::kData);
  std::vector<int32_t> ids(out.data, out.data + out.size);
  sd_ids_free(out);
  return ids;
}

std::string Tokenizer::decode(const std::vector<int32_t>& ids, bool skip_special_tokens) const {
  for (size_t i = 0; i < ids.size(); ++i)
    if (ids[i] < 0)
      throw Error(ErrorKind::kData,
                  "token ids: found " + std::to_string(ids[i]) + " at index " + std::to_string(i) + ", expected >= 0");
  return impl_->decode(reinterpret_cast<const uint32_t*>(ids.data()), ids.size(), skip_special_tokens);
}

int64_t Tokenizer::vocab_size() const {
  uint64_t size = 0;
  sd_tokenizer_vocab_size(impl_->handle, &size);
  return static_cast<int64_t>(size);
}

int32_t Tokenizer::token_to_id(const std::string& token) const {
  int64_t id = -1;
  sd_tokenizer_token_to_id(impl_->handle, reinterpret_cast<const uint8_t*>(token.data()), token.size(), &id);
  return id > INT32_MAX ? -1 : static_cast<int32_t>(id);
}

std::string Tokenizer::id_to_token(int32_t id) const {
  sd_bytes out{};
  int32_t special = 0;
  if (id < 0 || sd_tokenizer_id_to_token(impl_->handle, static_cast<uint32_t>(id), &special, &out) != SD_OK) return "";
  return take(out);
}

TokenBytes Tokenizer::token_bytes(int64_t size) const {
  sd_bytes bytes{}, message{};
  sd_ids ends{}, special{};
  check(sd_tokenizer_token_bytes(impl_->handle, static_cast<size_t>(size), &bytes, &ends, &special, &message), message,
        "tokenizer.json", ErrorKind::kModel);
  const std::string joined = take(bytes);
  TokenBytes out;
  out.tokens.reserve(ends.size);
  for (size_t i = 0, at = 0; i < ends.size; at = ends.data[i++])
    out.tokens.push_back(joined.substr(at, ends.data[i] - at));
  out.special.assign(special.data, special.data + special.size);
  sd_ids_free(ends);
  sd_ids_free(special);
  for (size_t i = 0; i < out.tokens.size(); ++i) {
    const auto id = static_cast<int32_t>(i);
    if (out.tokens[i].size() < 2 || out.tokens[i][0] != ' ') continue;
    if (std::binary_search(out.special.begin(), out.special.end(), id)) continue;
    out.strips_first_space = !decode({id}, true).starts_with(' ');
    break;
  }
  return out;
}

const sd_tokenizer* Tokenizer::handle() const { return impl_->handle; }
int32_t Tokenizer::bos_id() const { return impl_->bos_id; }
int32_t Tokenizer::eos_id() const { return impl_->eos_id; }
bool Tokenizer::streams() const { return impl_->streaming != SD_STREAM_WHOLE; }
const std::string& Tokenizer::bos_token() const { return impl_->bos; }
const std::string& Tokenizer::eos_token() const { return impl_->eos; }

IncrementalDecoder::IncrementalDecoder(const Tokenizer& tokenizer, const std::vector<int32_t>& context,
                                       std::vector<int32_t> shown)
    : tokenizer_(&tokenizer), shown_(std::move(shown)) {
  read_context(context);
}

// Returns the token if it may add to the text, and nothing for an unknown token or a special one that is not shown.
// decode() drops tokens without text before its decoder sees them, so they must not become context either.
std::optional<std::string> IncrementalDecoder::token_with_text(int32_t id) const {
  if (id < 0) throw Error(ErrorKind::kData, "token ids: found " + std::to_string(id) + ", expected >= 0");
  sd_bytes out{};
  int32_t special = 0;
  if (sd_tokenizer_id_to_token(tokenizer_->handle(), static_cast<uint32_t>(id), &special, &out) != SD_OK) return {};
  std::string token = take(out);
  if (special && std::find(shown_.begin(), shown_.end(), id) == shown_.end()) return {};
  return token;
}

// `ids` contains only tokens with text, so decode() need not skip any.
std::string IncrementalDecoder::decoded(std::span<const uint32_t> ids) const {
  return tokenizer_->impl_->decode(ids.data(), ids.size(), false);
}

// Stores the last tokens of the context in pending_, as many as can influence how later tokens decode. They have at
// least kBytes bytes of text, because UTF-8 decoding after that does not depend on earlier bytes. If the context ends
// with a run of byte tokens (<0xNN>), they include the whole run.
void IncrementalDecoder::read_context(const std::vector<int32_t>& context) {
  constexpr size_t kBytes = 16;
  const int32_t streaming = tokenizer_->impl_->streaming;
  size_t enough = 32;
  std::vector<uint32_t> last;  // the last tokens, in reverse order
  for (auto id = context.rbegin(); id != context.rend(); ++id) {
    const std::optional<std::string> token = token_with_text(*id);
    if (!token) continue;
    last.push_back(static_cast<uint32_t>(*id));
    const bool in_run = streaming == SD_STREAM_BYTE_RUNS && is_byte_token(*token);
    if (streaming == SD_STREAM_WHOLE || in_run || last.size() < enough) continue;
    if (decoded(std::vector<uint32_t>(last.rbegin(), last.rend())).size() >= kBytes) break;
    enough = 2 * last.size();
  }
  pending_.assign(last.rbegin(), last.rend());
  if (!pending_.empty()) emitted_prefix_ = decoded(pending_);
}

std::string IncrementalDecoder::push(int32_t id) {
  const std::optional<std::string> token = token_with_text(id);
  if (!token) return "";
  pending_.push_back(static_cast<uint32_t>(id));
  const int32_t streaming = tokenizer_->impl_->streaming;
  if (streaming == SD_STREAM_WHOLE || (streaming == SD_STREAM_BYTE_RUNS && is_byte_token(*token))) return "";
  return advance(false);
}

std::string IncrementalDecoder::finish() {
  std::string text = advance(true);
  pending_.clear();
  emitted_prefix_.clear();
  return text;
}

std::string IncrementalDecoder::advance(bool last) {
  std::string text = decoded(pending_);
  // A trailing U+FFFD may be the beginning of a character whose other bytes are still to come. It stands for at most
  // one character.
  const bool unsettled = !last && text.ends_with(kReplacement);
  if (unsettled) text.resize(text.size() - 3);
  if (!text.starts_with(emitted_prefix_)) {
    // emitted_prefix_ is the part of the text of pending_ that was already returned. New tokens may change the end of
    // emitted_prefix_: they may complete a character that begins there, or continue a run of byte tokens. The unchanged
    // beginning of emitted_prefix_ is kept.
    const size_t common = common_characters(text, emitted_prefix_);
    if (common == text.size() && !last) return "";  // `text` is a prefix of what was already returned
    emitted_prefix_.resize(common);
  }
  std::string fresh = text.substr(emitted_prefix_.size());
  emitted_prefix_ = std::move(text);
  if (last) return fresh;
  // Shortens pending_ to its last token, or to its last 32 tokens while a character is unfinished (UTF-8 resynchronises
  // within 3 bytes). The remaining tokens are context and must have text. Otherwise a decoder that strips white space
  // at the beginning of a text would strip it from the new text.
  const size_t keep = unsettled ? 32 : 1;
  if (pending_.size() <= (unsettled ? 2 * keep : keep)) return fresh;
  std::string context = decoded(std::span(pending_).last(keep));
  if (context.size() < (unsettled ? 16u : 1u)) return fresh;
  if (unsettled) context.resize(context.size() - 3);
  pending_.erase(pending_.begin(), pending_.end() - static_cast<ptrdiff_t>(keep));
  emitted_prefix_ = std::move(context);
  return fresh;
}

}  // namespace specdec::text
