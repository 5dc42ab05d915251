#include "data/regenerate/answer_turns.h"

#include <algorithm>
#include <cctype>

namespace specdec::data {

namespace {

constexpr size_t kOpeningBytes = 9;  // the length of {"name":"

std::string without_space(const std::string& text) {
  std::string out;
  std::copy_if(text.begin(), text.end(), std::back_inserter(out),
               [](char c) { return !std::isspace(static_cast<unsigned char>(c)); });
  return out;
}

bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '-' || c == '`'; }

struct CallSign {
  size_t at = 0;
  std::string opening, name;
  bool operator==(const CallSign& other) const { return opening == other.opening && name == other.name; }
};

// Returns the places where one of the function names occurs and is not part of a longer word, in order. Since `text`
// has no white space, a name in prose touches the neighbouring words and is not found.
std::vector<CallSign> call_signs(const std::string& text, const std::vector<std::string>& names) {
  std::vector<CallSign> signs;
  const std::set<std::string> unique(names.begin(), names.end());
  for (const std::string& name : unique) {
    if (name.empty()) continue;
    for (size_t at = text.find(name); at != std::string::npos; at = text.find(name, at + 1)) {
      const size_t end = at + name.size();
      if ((at > 0 && is_word(text[at - 1])) || end == text.size() || is_word(text[end])) continue;
      const size_t begin = at - std::min(at, kOpeningBytes);
      signs.push_back({at, text.substr(begin, at - begin), name});
    }
  }
  std::sort(signs.begin(), signs.end(), [](const CallSign& a, const CallSign& b) { return a.at < b.at; });
  return signs;
}

size_t occurrences(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

}  // namespace

std::vector<AnswerTurn> answer_turns(const TokenRow& row) {
  const auto size = static_cast<int64_t>(row.tokens.size());
  std::vector<AnswerTurn> turns;
  for (int64_t t = 0; t < size && row.prompt_tokens > 0; ++t) {
    if (row.loss_mask[static_cast<size_t>(t)] == 0) continue;
    if (turns.empty() || turns.back().end != t) turns.push_back({t, t, {}});
    turns.back().end = t + 1;
  }
  // In a row of plain text, every token but the first is learnt. The loss mask then does not show where the answer
  // begins, so prompt_tokens decides.
  const bool is_text =
      turns.size() == 1 && turns[0].begin == 1 && turns[0].end == size && turns[0].begin < row.prompt_tokens;
  if (turns.empty() || is_text) turns = {{row.prompt_tokens, size, {}}};
  for (AnswerTurn& turn : turns)
    for (const TurnCalls& calls : row.calls)
      if (calls.begin == turn.begin) turn.calls = calls.names;
  return turns;
}

std::set<std::string> call_openings(const std::string& answer, const std::vector<std::string>& names) {
  std::set<std::string> openings;
  for (const CallSign& sign : call_signs(without_space(answer), names))
    if (!sign.opening.empty()) openings.insert(sign.opening);
  return openings;
}

bool makes_same_calls(const std::set<std::string>& openings, const std::vector<std::string>& names,
                      const std::string& recorded, const std::string& written) {
  const std::string before = without_space(recorded), now = without_space(written);
  const std::vector<CallSign> signs = call_signs(before, names);
  if (!names.empty() && signs.empty()) return false;  // the recorded answer does not show how a call is written
  if (signs != call_signs(now, names)) return false;
  return std::all_of(openings.begin(), openings.end(), [&](const std::string& opening) {
    return occurrences(before, opening) == occurrences(now, opening);
  });
}

}  // namespace specdec::data
