#include "base/gguf/export_pieces.h"

#include <algorithm>

#include "base/error.h"
#include "base/gguf/pre_tokenizers.h"

namespace specdec::gguf {

namespace {

constexpr ErrorKind kPieceError = ErrorKind::kModel;
const std::string kSpaceMark = "\u2581";  // "▁"

[[noreturn]] void refuse_pieces(const std::string& where, const std::string& what) {
  throw Error(kPieceError, where + ": " + what);
}

// Returns a part of tokenizer.json for a message.
std::string brief(const Json& value) {
  const std::string text = value.dump(-1, ' ', /*ensure_ascii=*/true, Json::error_handler_t::replace);
  return text.size() <= 160 ? text : text.substr(0, 160) + "…";
}

// Returns the steps of a normaliser or pre-tokenizer: those of a Sequence, the object itself, or none for null.
std::vector<Json> steps_of(const Json& tokenizer, const char* key, const char* list) {
  if (!tokenizer.contains(key) || tokenizer[key].is_null()) return {};
  const Json& part = tokenizer[key];
  if (!part.is_object() || part.value("type", Json()) != "Sequence" || !part.contains(list)) return {part};
  const Json& steps = part[list];
  return steps.is_array() ? steps.get<std::vector<Json>>() : std::vector<Json>{steps};
}

bool is_step(const Json& step, const char* type) { return step.is_object() && step.value("type", Json()) == type; }
bool flag_of(const Json& step, const char* key, bool absent) {
  const Json value = step.value(key, Json(absent));
  return value.is_boolean() ? value.get<bool>() : absent;
}

// A regular expression by which tokenizer.json divides text, and llama.cpp's names for it: for tokenizers that always
// apply merges, and for those that take a word that is a token as it is (ignore_merges). Null: llama.cpp has none.
struct Division {
  const char *pattern, *merging, *ignoring;
};
#define SPECDEC_CONTRACTIONS R"((?i:'s|'t|'re|'ve|'m|'ll|'d))"
#define SPECDEC_BLANKS R"(\s*[\r\n]+|\s+(?!\S)|\s+)"
constexpr char kCl100k[] =
    SPECDEC_CONTRACTIONS R"(|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|)" SPECDEC_BLANKS;
constexpr char kQwen2[] =
    SPECDEC_CONTRACTIONS R"(|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|)" SPECDEC_BLANKS;
// Words whose upper-case letters come first, and words that end in upper-case letters.
#define SPECDEC_LOWER R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)"
#define SPECDEC_UPPER R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*)"
constexpr char kTekken[] = SPECDEC_LOWER "|" SPECDEC_UPPER R"(|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|)" SPECDEC_BLANKS;
constexpr char kO200k[] = SPECDEC_LOWER SPECDEC_CONTRACTIONS
    "?|" SPECDEC_UPPER SPECDEC_CONTRACTIONS R"(?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|)" SPECDEC_BLANKS;
#undef SPECDEC_CONTRACTIONS
#undef SPECDEC_BLANKS
#undef SPECDEC_LOWER
#undef SPECDEC_UPPER
constexpr Division kDivisions[] = {
    {kCl100k, "dbrx", "llama-bpe"},  // Llama 3, OLMo 2, Phi-4, SmolLM3
    {kQwen2, "qwen2", nullptr},      // Qwen 2, 2.5 and 3: single digits
    {kTekken, nullptr, "tekken"},    // Mistral NeMo
    {kO200k, "gpt-4o", nullptr},     // Phi-4-mini
};

// Returns the regular expression of a Split that keeps every piece, or "" for another step.
std::string split_pattern(const Json& step) {
  if (!is_step(step, "Split") || !step.contains("pattern") || !step["pattern"].is_object()) return "";
  const bool inverted = flag_of(step, "invert", false);
  const Json behaviour = step.value("behavior", Json());
  const Json pattern = step["pattern"].value("Regex", Json());
  const bool keeps = behaviour == "Isolated" || (behaviour == "Removed" && inverted);
  return keeps && pattern.is_string() ? pattern.get<std::string>() : "";
}

Division division_of(const std::vector<Json>& steps) {
  if (steps.empty() || !is_step(steps.back(), "ByteLevel") || flag_of(steps.back(), "add_prefix_space", true))
    return {};
  const bool by_words = flag_of(steps.back(), "use_regex", true);
  if (steps.size() == 1 && by_words) return {"", "gpt-2", nullptr};
  if (steps.size() == 2 && by_words && is_step(steps[0], "Digits") && flag_of(steps[0], "individual_digits", false))
    return {"", "smollm", nullptr};
  if (steps.size() != 2 || by_words) return {};
  const std::string pattern = split_pattern(steps[0]);
  for (const Division& known : kDivisions)
    if (pattern == known.pattern) return known;
  return {};
}

// Returns the patterns of Splits before a ByteLevel that divides nothing; {} for other steps. The tokenizer.json of a
// GGUF file (tokenizer_json.cpp), and so that of a draft for it, has llama.cpp's own patterns.
std::vector<std::string> patterns_of(const std::vector<Json>& steps) {
  std::vector<std::string> patterns;
  for (const Json& step : steps) {
    const bool last = patterns.size() + 1 == steps.size();
    const bool divides_nothing =
        is_step(step, "ByteLevel") && !flag_of(step, "add_prefix_space", true) && !flag_of(step, "use_regex", true);
    if (last && divides_nothing) return patterns;
    patterns.push_back(split_pattern(step));
    if (last || patterns.back().empty()) return {};
  }
  return {};
}

bool replaces_spaces(const Json& step) {
  return is_step(step, "Replace") && step.value("content", Json()) == kSpaceMark &&
         step.value("pattern", Json()) == Json{{"String", " "}};
}

}  // namespace

std::string pre_of(const Json& tokenizer, const std::string& where) {
  const std::vector<Json> steps = steps_of(tokenizer, "pre_tokenizer", "pretokenizers");
  const Division division = division_of(steps);
  const bool ignores = flag_of(tokenizer["model"], "ignore_merges", false);
  const char* const known = ignores ? division.ignoring : division.merging;
  const std::string name = known != nullptr ? known : pre_tokenizer_name(patterns_of(steps), ignores);
  if (name.empty())
    refuse_pieces(where, "pre_tokenizer: llama.cpp has none that divides text like " +
                             brief(tokenizer.value("pre_tokenizer", Json())) + (ignores ? " with ignore_merges" : ""));
  for (const Json& step : steps_of(tokenizer, "normalizer", "normalizers"))
    if (!is_step(step, "NFC")) refuse_pieces(where, "normalizer: llama.cpp has none like " + brief(step));
  return name;
}

bool adds_space_prefix(const Json& tokenizer, const std::string& where) {
  bool prefix = false, marks = false;
  for (const Json& step : steps_of(tokenizer, "normalizer", "normalizers")) {
    const bool prepends = is_step(step, "Prepend") && step.value("prepend", Json()) == kSpaceMark && !marks;
    if (!prepends && !replaces_spaces(step)) refuse_pieces(where, "normalizer: llama.cpp has none like " + brief(step));
    (prepends ? prefix : marks) = true;
  }
  for (const Json& step : steps_of(tokenizer, "pre_tokenizer", "pretokenizers")) {
    // Gemma's division at spaces finds none, because the normaliser has replaced them.
    if (marks && is_step(step, "Split") && step.value("pattern", Json()) == Json{{"String", " "}}) continue;
    if (!is_step(step, "Metaspace") || step.value("replacement", Json()) != kSpaceMark || flag_of(step, "split", true))
      refuse_pieces(where, "pre_tokenizer: llama.cpp has none like " + brief(step));
    marks = true;
    prefix = prefix || step.value("prepend_scheme", Json("always")) != "never";
  }
  if (!marks) refuse_pieces(where, "normalizer: expected that it writes spaces as \u2581");
  return prefix;
}

Merges merges_of(const Json& tokenizer, bool with_spaces, const std::string& where) {
  Merges merges;
  for (const Json& item : json_array(tokenizer["model"], "merges", 1 << 22, where, kPieceError)) {
    std::string left, right;
    if (item.is_string()) {
      const std::string text = item.get<std::string>();
      const size_t space = text.find(' ');
      if (space != std::string::npos && text.find(' ', space + 1) == std::string::npos)
        left = text.substr(0, space), right = text.substr(space + 1);
    } else if (item.is_array() && item.size() == 2 && item[0].is_string() && item[1].is_string()) {
      left = item[0].get<std::string>(), right = item[1].get<std::string>();
    }
    const bool spaced = left.find(' ') != std::string::npos || right.find(' ') != std::string::npos;
    if (left.empty() || right.empty() || (spaced && !with_spaces))
      refuse_pieces(where, "merges: expected two tokens without a space, found " + brief(item));
    merges.emplace_back(std::move(left), std::move(right));
  }
  return merges;
}

std::unordered_map<std::string, int64_t> ranks_of(const Merges& merges,
                                                  const std::unordered_map<std::string, int64_t>& vocabulary,
                                                  const std::string& where) {
  std::unordered_map<std::string, int64_t> ranks;
  std::unordered_map<std::string, std::vector<size_t>> divisions;  // token → lengths of the left parts that are merged
  std::string before;
  for (const auto& [left, right] : merges) {
    const std::string token = left + right;
    if (!vocabulary.contains(token)) continue;
    if (token != before && !ranks.emplace(token, static_cast<int64_t>(ranks.size())).second)
      refuse_pieces(where, "merges: those that make " + brief(token) +
                               " are not neighbours, so that llama.cpp's scores cannot express their order");
    divisions[token].push_back(left.size());
    before = token;
  }
  for (const auto& [token, id] : vocabulary)
    for (size_t length = 1; length < token.size(); ++length) {
      if ((static_cast<unsigned char>(token[length]) & 0xc0) == 0x80) continue;  // within a character
      const std::string left = token.substr(0, length), right = token.substr(length);
      if (!vocabulary.contains(left) || !vocabulary.contains(right)) continue;
      const auto merged = divisions.find(token);
      if (merged == divisions.end() || std::ranges::find(merged->second, length) == merged->second.end())
        refuse_pieces(where, "merges: llama.cpp would merge " + brief(left) + " and " + brief(right) + " to " +
                                 brief(token) + ", which this tokenizer does not");
    }
  return ranks;
}

}  // namespace specdec::gguf
