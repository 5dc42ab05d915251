#include "data/duplicates.h"

#include <array>

namespace specdec::data {

namespace {

constexpr std::array<bool, 256> kWhiteSpace = [] {
  std::array<bool, 256> is{};
  is[' '] = true;
  for (int c = '\t'; c <= '\r'; ++c) is[static_cast<size_t>(c)] = true;
  return is;
}();

// No branch a character: texts are gigabytes of them.
void append_collapsed(std::string_view text, std::string& out) {
  const size_t begin = out.size();
  out.resize(begin + text.size());
  char* to = out.data() + begin;
  bool blank_before = true;
  for (const char c : text) {
    const bool blank = kWhiteSpace[static_cast<unsigned char>(c)];
    *to = blank ? ' ' : c;
    to += !(blank && blank_before);
    blank_before = blank;
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
  for (const ChatMessage& m : record.messages) append_part('m', m.role, m.content, out);
  if (!record.prompt.empty() || !record.response.empty()) {
    append_part('p', "", record.prompt, out);
    append_part('r', "", record.response, out);
  }
  if (!record.text.empty()) append_part('t', "", record.text, out);
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
