#include "data/formats/field_map.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <span>
#include <utility>

#include "base/error.h"
#include "base/shell.h"

namespace specdec::data {

namespace {

constexpr size_t kMostNames = 16, kLongestName = 40;

constexpr std::pair<std::string_view, std::string FieldMap::*> kParts[] = {
    {"prompt", &FieldMap::prompt},     {"answer", &FieldMap::answer},
    {"messages", &FieldMap::messages}, {"system", &FieldMap::system},
    {"model", &FieldMap::model},       {"domain", &FieldMap::domain},
    {"time", &FieldMap::time},         {"conversation", &FieldMap::conversation},
    {"tenant", &FieldMap::tenant},     {"temperature", &FieldMap::temperature},
};
constexpr std::array kContentParts = {&FieldMap::prompt, &FieldMap::answer, &FieldMap::messages, &FieldMap::system};

// A key that contains one of these words is taken for the prompt; kAnswerWords likewise for the answer.
constexpr std::string_view kPromptWords[] = {"prompt", "question", "input", "instruction",
                                             "query",  "request",  "user",  "text"};
constexpr std::string_view kAnswerWords[] = {"answer",    "output", "response", "completion",
                                             "assistant", "reply",  "target",   "result"};
// A key with one of these endings, such as request_id, holds neither a prompt nor an answer.
constexpr std::string_view kOtherEnds[] = {"id", "name", "type", "time", "timestamp", "status", "model", "tokens"};

[[noreturn]] void refuse_map(const std::string& text, const std::string& problem) {
  throw Error(ErrorKind::kUsage,
              "--map: expected KEY=FIELD,… with prompt and answer, or with messages, found '" + text + "': " + problem);
}

std::string part_names() {
  std::string names;
  for (const auto& [name, part] : kParts) names += (names.empty() ? "" : ", ") + std::string(name);
  return names;
}

void require_complete(const FieldMap& map, const std::string& text) {
  if (!map.messages.empty() && (!map.prompt.empty() || !map.answer.empty()))
    refuse_map(text, "messages hold the prompt and the answer: leave these out");
  if (map.messages.empty() && map.prompt.empty()) refuse_map(text, "no prompt");
  if (map.messages.empty() && map.answer.empty()) refuse_map(text, "no answer");
  for (const auto part : kContentParts)
    for (const auto& [name, other] : kParts)
      if (other != part && !(map.*part).empty() && map.*other == map.*part)
        refuse_map(text, "the field '" + map.*part + "' twice");
}

std::string lower_case(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

// Returns whether a word begins at index `at` of the key: at its start, after a non-letter, or at the capital letter in
// "userInput".
bool begins_word(const std::string& key, size_t at) {
  if (at == 0) return true;
  const auto before = static_cast<unsigned char>(key[at - 1]), first = static_cast<unsigned char>(key[at]);
  return !std::isalpha(before) || (std::islower(before) && std::isupper(first));
}

// Returns the length of the longest of `words` that occurs in the key at the beginning of a word; 0 if none does.
size_t match_length(const std::string& key, std::span<const std::string_view> words) {
  const std::string lower = lower_case(key);
  size_t longest = 0;
  for (const std::string_view word : words)
    for (size_t at = lower.find(word); at != std::string::npos; at = lower.find(word, at + 1))
      if (begins_word(key, at)) longest = std::max(longest, word.size());
  return longest;
}

// Returns whether the key looks like the name of a field: one word of letters, digits and a few signs, and neither an
// e-mail address nor a number. Other keys are never shown, because a damaged row, or a table without a header, has
// text in the place of names.
bool is_field_name(const std::string& key) {
  const auto fits = [](char c) {
    return static_cast<unsigned char>(c) >= 0x80 || std::isalnum(static_cast<unsigned char>(c)) ||
           std::string_view("_-.:/@$").find(c) != std::string_view::npos;
  };
  return !key.empty() && key.size() <= kLongestName && std::all_of(key.begin(), key.end(), fits) &&
         !std::isdigit(static_cast<unsigned char>(key.front())) && key.find('@', 1) == std::string::npos &&
         !key.ends_with('.') && one_line(key) == key;
}

bool may_be_content(const std::string& key, const Json& value) {
  const std::string lower = lower_case(key);
  return value.is_string() && is_field_name(key) &&
         std::none_of(std::begin(kOtherEnds), std::end(kOtherEnds),
                      [&](std::string_view end) { return lower.ends_with(end); });
}

// Returns the key that contains the longest of `words`; if several keys contain it, the shortest of these keys; "" if
// no key contains any. A key is skipped if it contains an element of `other_words` that is longer than its element of
// `words`.
std::string best_key(const Json& row, std::span<const std::string_view> words,
                     std::span<const std::string_view> other_words) {
  std::string best;
  size_t longest = 0;
  for (const auto& [key, value] : row.items()) {
    const size_t length = match_length(key, words);
    if (length == 0 || length < match_length(key, other_words) || !may_be_content(key, value)) continue;
    if (length < longest || (length == longest && key.size() >= best.size())) continue;
    best = key;
    longest = length;
  }
  return best;
}

// Returns the names of the first keys of the row, separated by commas, and how many keys are not shown.
std::string key_names(const Json& row) {
  std::string names;
  size_t shown = 0;
  for (const auto& [key, value] : row.items())
    if (shown < kMostNames && is_field_name(key)) names += (shown++ ? ", " : "") + key;
  if (shown < row.size()) names += (shown ? " and " : "") + std::to_string(row.size() - shown) + " not shown";
  return names;
}

}  // namespace

bool FieldMap::holds_content(std::string_view key) const {
  return std::any_of(kContentParts.begin(), kContentParts.end(),
                     [&](const auto part) { return !(this->*part).empty() && this->*part == key; });
}

FieldMap parse_field_map(const std::string& text) {
  FieldMap map;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string item = text.substr(begin, end - begin);
    begin = end + 1;
    const size_t equals = item.find('=');
    if (equals == std::string::npos) refuse_map(text, "no '=' in '" + item + "'");
    const std::string name = item.substr(0, equals);
    const auto known =
        std::find_if(std::begin(kParts), std::end(kParts), [&](const auto& p) { return p.first == name; });
    if (known == std::end(kParts)) refuse_map(text, "'" + name + "' is none of " + part_names());
    std::string& field = map.*known->second;
    if (!field.empty()) refuse_map(text, "'" + name + "' twice");
    field = item.substr(equals + 1);
    if (field.empty()) refuse_map(text, "no field after '" + item + "'");
  }
  if (!text.empty()) require_complete(map, text);
  return map;
}

std::string describe_unknown_row(const Json& row) {
  if (row.empty()) return "the row has no keys";
  std::string prompt = best_key(row, kPromptWords, kAnswerWords), answer = best_key(row, kAnswerWords, kPromptWords);
  if (prompt.empty()) prompt = "FIELD";
  if (answer.empty() || answer == prompt) answer = "FIELD";
  return "the keys are those of no format: " + key_names(row) + "; to read files that hold only such rows, give " +
         shell_words({"--map", "prompt=" + prompt + ",answer=" + answer});
}

}  // namespace specdec::data
