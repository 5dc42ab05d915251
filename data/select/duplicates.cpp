#include "data/select/duplicates.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/cpu_clones.h"

namespace specdec::data {

namespace {

constexpr std::array<bool, 256> kWhiteSpace = [] {
  std::array<bool, 256> is{};
  is[' '] = true;
  for (int c = '\t'; c <= '\r'; ++c) is[static_cast<size_t>(c)] = true;
  return is;
}();

constexpr size_t kPlainWindow = 256;

// Returns true if the kPlainWindow bytes from `text` on have no white space other than single spaces, so that they can
// be copied unchanged. The loops have a fixed length, so that the compiler vectorises them.
SPECDEC_CLONES("avx2", "default")
bool is_plain(const char* text) {
  uint8_t odd = 0;
  for (size_t i = 0; i < kPlainWindow; ++i) {
    const auto c = static_cast<uint8_t>(text[i]);
    odd |= static_cast<uint8_t>(c - '\t') < 5;
  }
  for (size_t i = 0; i < kPlainWindow; ++i) odd |= (text[i] == ' ') & (text[i + 1] == ' ');
  return odd == 0;
}

void append_collapsed(std::string_view text, std::string& out) {
  const size_t begin = out.size();
  out.resize(begin + text.size());
  char* to = out.data() + begin;
  bool blank_before = true;
  for (size_t i = 0; i < text.size();) {
    if (i + kPlainWindow < text.size() && !(blank_before && text[i] == ' ') && is_plain(text.data() + i)) {
      std::memcpy(to, text.data() + i, kPlainWindow);
      to += kPlainWindow;
      i += kPlainWindow;
      blank_before = to[-1] == ' ';
      continue;
    }
    for (const size_t end = std::min(text.size(), i + kPlainWindow); i < end; ++i) {  // no branch per character
      const bool blank = kWhiteSpace[static_cast<unsigned char>(text[i])];
      *to = blank ? ' ' : text[i];
      to += !(blank && blank_before);
      blank_before = blank;
    }
  }
  if (to != out.data() + begin && to[-1] == ' ') --to;
  out.resize(static_cast<size_t>(to - out.data()));
}

void append_part(char kind, std::string_view name, std::string_view text, std::string& out) {
  out += kind;
  out.append(name).push_back('\1');
  append_collapsed(text, out);
  out += '\0';
}

}  // namespace

void collapse_content(const TrafficRecord& record, std::string& out) {
  out.clear();
  for (const ChatMessage& m : record.messages) {
    append_part('m', m.role, m.content, out);
    if (!m.tool_calls.empty()) append_part('c', "", m.tool_calls, out);
    if (!m.reasoning_content.empty()) append_part('n', "", m.reasoning_content, out);
    if (m.unlearnt) append_part('u', "", "", out);
  }
  if (!record.tools.empty()) append_part('o', "", record.tools, out);
  if (!record.template_kwargs.empty()) append_part('k', "", record.template_kwargs, out);
  if (!record.prompt.empty() || !record.response.empty()) {
    append_part('p', "", record.prompt, out);
    append_part('r', "", record.response, out);
  }
  if (!record.text.empty()) append_part('t', "", record.text, out);
  if (record.answer_was_cut()) append_part('f', "", "", out);
}

Duplicates::Duplicates(const std::filesystem::path& directory, bool equal, double near) : equal_(equal) {
  if (near > 0) near_.emplace(directory, near);
}

Duplicates::Verdict Duplicates::look_up(const TrafficRecord& record, const std::string& collapsed) {
  if (equal_ && !seen_.insert(hash_key(collapsed))) return Verdict::kEqual;
  if (near_ && near_->seen(newest_exchange(record))) return Verdict::kNear;
  return Verdict::kNew;
}

}  // namespace specdec::data
