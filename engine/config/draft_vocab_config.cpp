#include <charconv>

#include "base/error.h"
#include "engine/config/families.h"

namespace specdec::model {

namespace {

constexpr const char* kDraftVocabKey = "specdec_draft_vocab";

}  // namespace

std::vector<int32_t> parse_draft_vocab(const Json& config, int64_t vocab_size, const std::string& where) {
  const std::string text = json_string(config, kDraftVocabKey, "", where, ErrorKind::kModel);
  std::vector<int32_t> out;
  if (text.empty()) return out;
  const char *at = text.data(), *end = at + text.size();
  const auto fail = [&](const std::string& what) {
    throw Error(ErrorKind::kModel, where + ": " + kDraftVocabKey +
                                       ": expected rising ids and ranges such as 0-255,300 below vocab_size " +
                                       std::to_string(vocab_size) + ", found " + what + " at character " +
                                       std::to_string(at - text.data()));
  };
  const auto number = [&] {
    int64_t value = -1;
    const auto [next, error] = std::from_chars(at, end, value);
    if (error != std::errc() || value < 0 || value >= vocab_size || (!out.empty() && value <= out.back()))
      fail("something else");
    at = next;
    return value;
  };
  while (true) {
    const int64_t first = number();
    out.push_back(static_cast<int32_t>(first));
    if (at != end && *at == '-') {
      ++at;
      for (int64_t id = first + 1, last = number(); id <= last; ++id) out.push_back(static_cast<int32_t>(id));
    }
    if (at == end) return out;
    if (*at != ',') fail("'" + std::string(1, *at) + "'");
    ++at;
  }
}

void write_draft_vocab(const std::vector<int32_t>& draft_vocab, Json& out) {
  std::string text;
  for (size_t i = 0, next; i < draft_vocab.size(); i = next) {
    next = i + 1;
    while (next < draft_vocab.size() && draft_vocab[next] == draft_vocab[next - 1] + 1) ++next;
    text += (text.empty() ? "" : ",") + std::to_string(draft_vocab[i]);
    if (next > i + 1) text += "-" + std::to_string(draft_vocab[next - 1]);
  }
  if (!text.empty()) out[kDraftVocabKey] = text;
}

}  // namespace specdec::model
