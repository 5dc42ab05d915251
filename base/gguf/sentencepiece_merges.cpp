#include "base/gguf/sentencepiece_merges.h"

#include <algorithm>
#include <cmath>
#include <string_view>
#include <unordered_set>

#include "base/gguf/architectures.h"

namespace specdec::gguf {

namespace {

constexpr size_t kMaxMerges = size_t{1} << 22;
constexpr size_t kMaxCompared = size_t{1} << 32;  // bytes that are looked up for all divisions together

struct Merge {
  double score;
  int64_t token;  // the id of both parts together
  size_t size;    // of the left part, in bytes
  bool is_run;    // whether the token repeats one character
};

// Whether `a` is applied before `b`. Runs of blanks often have one score, and llama.cpp then joins the leftmost two
// tokens first, so that the run on the left grows until there is no longer token. As its length is then the largest,
// the same happens if longer left parts come first.
bool is_earlier(const Merge& a, const Merge& b) {
  if (a.score != b.score) return a.score > b.score;
  if (a.is_run != b.is_run) return a.is_run;
  if (a.is_run && a.size != b.size) return a.size > b.size;
  return a.token != b.token ? a.token < b.token : a.size < b.size;
}

bool repeats_one_character(std::string_view text) {
  size_t size = 1;
  while (size < text.size() && (static_cast<unsigned char>(text[size]) & 0xC0) == 0x80) ++size;
  for (size_t i = size; i < text.size(); ++i)
    if (text[i] != text[i - size]) return false;
  return text.size() % size == 0;
}

// Refuses scores that do not order the tokens of a text. Tokens of other kinds are found before anything is joined.
void check_order(const GgufFile& file, const Vocabulary& vocabulary, const std::vector<Merge>& merges) {
  const Merge* last = nullptr;
  for (const Merge& merge : merges) {
    if (vocabulary.kinds[static_cast<size_t>(merge.token)] != TokenKind::kNormal) continue;
    if (last && last->score == merge.score && last->token != merge.token && !(last->is_run && merge.is_run))
      refuse_model(file, "tokenizer.ggml.scores: tokens " + std::to_string(last->token) + " and " +
                             std::to_string(merge.token) +
                             " have the same score, so which is joined first depends on the text; use the "
                             "model's Hugging Face checkpoint instead");
    last = &merge;
  }
}

bool begins_character(char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }

}  // namespace

std::vector<std::pair<std::string, std::string>> sentencepiece_merges(const GgufFile& file,
                                                                      const Vocabulary& vocabulary) {
  const std::vector<double> scores = file.numbers("tokenizer.ggml.scores");
  if (scores.size() != vocabulary.tokens.size())
    refuse_model(file, "tokenizer.ggml.scores: expected one score for each of the " +
                           std::to_string(vocabulary.tokens.size()) + " tokens, found " +
                           std::to_string(scores.size()));
  std::unordered_set<std::string_view> known(vocabulary.tokens.begin(), vocabulary.tokens.end());
  std::vector<Merge> merges;
  size_t compared = 0;
  for (size_t id = 0; id < scores.size(); ++id) {
    if (!std::isfinite(scores[id]))
      refuse_model(file, "tokenizer.ggml.scores: the score of token " + std::to_string(id) + " is not finite");
    const std::string_view token = vocabulary.tokens[id];
    const bool is_run = repeats_one_character(token);
    for (size_t i = 1; i < token.size(); ++i) {
      if (!begins_character(token[i])) continue;
      compared += token.size();
      if (compared > kMaxCompared) refuse_model(file, "tokenizer.ggml.tokens: the tokens are too long");
      if (!known.contains(token.substr(0, i)) || !known.contains(token.substr(i))) continue;
      if (merges.size() >= kMaxMerges)
        refuse_model(file, "tokenizer.ggml.tokens: more than " + std::to_string(kMaxMerges) +
                               " divisions of tokens into two tokens");
      merges.push_back({scores[id], static_cast<int64_t>(id), i, is_run});
    }
  }
  std::sort(merges.begin(), merges.end(), is_earlier);
  check_order(file, vocabulary, merges);
  std::vector<std::pair<std::string, std::string>> out;
  out.reserve(merges.size());
  for (const Merge& merge : merges) {
    const std::string& token = vocabulary.text(merge.token);
    out.emplace_back(token.substr(0, merge.size), token.substr(merge.size));
  }
  return out;
}

}  // namespace specdec::gguf
