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

[[noreturn]] void fail(const GgufFile& file, const std::string& message) {
  throw Error(ErrorKind::kModel, path_of(file) + ": " + message);
}

struct Merge {
  double score;
  int64_t token;  // the id of both parts together
  size_t size;    // of the left part, in bytes
};

bool begins_character(char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }

}  // namespace

std::vector<std::pair<std::string, std::string>> sentencepiece_merges(const GgufFile& file,
                                                                      const Vocabulary& vocabulary) {
  const std::vector<double> scores = file.numbers("tokenizer.ggml.scores");
  if (scores.size() != vocabulary.tokens.size())
    fail(file, "tokenizer.ggml.scores: expected one score for each of the " + std::to_string(vocabulary.tokens.size()) +
                   " tokens, found " + std::to_string(scores.size()));
  std::unordered_set<std::string_view> known(vocabulary.tokens.begin(), vocabulary.tokens.end());
  std::vector<Merge> merges;
  size_t compared = 0;
  for (size_t id = 0; id < scores.size(); ++id) {
    if (!std::isfinite(scores[id]))
      fail(file, "tokenizer.ggml.scores: the score of token " + std::to_string(id) + " is not finite");
    const std::string_view token = vocabulary.tokens[id];
    for (size_t i = 1; i < token.size(); ++i) {
      if (!begins_character(token[i])) continue;
      compared += token.size();
      if (compared > kMaxCompared) fail(file, "tokenizer.ggml.tokens: the tokens are too long");
      if (!known.contains(token.substr(0, i)) || !known.contains(token.substr(i))) continue;
      if (merges.size() >= kMaxMerges)
        fail(file,
             "tokenizer.ggml.tokens: more than " + std::to_string(kMaxMerges) + " divisions of tokens into two tokens");
      merges.push_back({scores[id], static_cast<int64_t>(id), i});
    }
  }
  std::stable_sort(merges.begin(), merges.end(), [](const Merge& a, const Merge& b) { return a.score > b.score; });
  const Merge* last = nullptr;  // of the kind that a text consists of; the others are found before anything is joined
  for (const Merge& merge : merges) {
    if (vocabulary.kinds[static_cast<size_t>(merge.token)] != TokenKind::kNormal) continue;
    if (last && last->score == merge.score && last->token != merge.token)
      fail(file, "tokenizer.ggml.scores: tokens " + std::to_string(last->token) + " and " +
                     std::to_string(merge.token) +
                     " have the same score, so the file does not say which is joined first; use the model's Hugging "
                     "Face checkpoint instead");
    last = &merge;
  }
  std::vector<std::pair<std::string, std::string>> out;
  out.reserve(merges.size());
  for (const Merge& merge : merges) {
    const std::string& token = vocabulary.text(merge.token);
    out.emplace_back(token.substr(0, merge.size), token.substr(merge.size));
  }
  return out;
}

}  // namespace specdec::gguf
