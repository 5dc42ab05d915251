#include "cli/toml_file.h"

#include <algorithm>
#include <string>
#include <string_view>

#include "base/file.h"

namespace specdec::cli {

namespace {

constexpr int kMaxParts = 32;

struct Fault {
  int line = 0;  // 0: none
  std::string why;
};

// What the parser cannot be given: keys with more parts, along which it recurses, and other letters than ASCII's outside of strings and comments,
// which TOML has not and with which toml++ 3.3 reaches code that it takes for unreachable. It does so as well where such a letter follows a backslash
// in a string, white space between them or not. The rest of strings, and comments, are passed over; so that these are the parser's strings, a quote where
// no string may begin is refused.
Fault first_fault(std::string_view text) {
  constexpr std::string_view kMark = "\xEF\xBB\xBF";  // of UTF-8, at the beginning
  int line = 1, parts = 1;
  char before = '\n';  // the last one that is no blank
  for (size_t i = text.starts_with(kMark) ? kMark.size() : 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '#') {
      i = std::min(text.find('\n', i), text.size()) - 1;
    } else if (c == '"' || c == '\'') {
      if (std::string_view("\n=[,{.").find(before) == std::string_view::npos) return {line, "a quote in the middle of a key or value"};
      const bool lines = text.substr(i, 3) == std::string(3, c);
      const std::string_view quote = lines ? text.substr(i, 3) : text.substr(i, 1);
      for (i += quote.size(); i < text.size() && text.substr(i, quote.size()) != quote && (lines || text[i] != '\n'); ++i) {
        line += text[i] == '\n';
        if (c != '"' || text[i] != '\\') continue;
        const size_t next = text.find_first_not_of(" \t\r\n", i + 1);
        if (next < text.size() && static_cast<unsigned char>(text[next]) >= 0x80) return {line, "a backslash before a letter outside of ASCII: write the text without it"};
        if (i + 1 < text.size() && text[i + 1] != '\n') ++i;
      }
      i += quote.size() - 1;
      for (int more = 0; lines && more < 2 && i + 1 < text.size() && text[i + 1] == c; ++more) ++i;  // they are the string's last letters
    } else if (c == '.') {
      if (++parts > kMaxParts) return {line, "a key of more than " + std::to_string(kMaxParts) + " parts"};
    } else if (static_cast<unsigned char>(c) >= 0x80) {
      return {line, "a letter outside of ASCII: put keys and values that have some into quotes"};
    } else if (c == '\n' || c == '=' || c == '[' || c == ',' || c == '{') {
      line += c == '\n';
      parts = 1;
    }
    if (c != ' ' && c != '\t' && c != '\r') before = c;
  }
  return {};
}

}  // namespace

toml::table read_toml(const std::filesystem::path& file) {
  const std::string where = file.string(), text = read_file(file, 1u << 20, ErrorKind::kConfig);
  const auto refuse = [&](int64_t line, const std::string& why) { return Error(ErrorKind::kConfig, where + ":" + std::to_string(line) + ": " + why); };
  if (const Fault fault = first_fault(text); fault.line > 0) throw refuse(fault.line, fault.why);
  try {
    return toml::parse(text, where);
  } catch (const toml::parse_error& e) {
    throw refuse(e.source().begin.line, std::string(e.description()));
  } catch (const TomlAssertion&) {
    throw Error(ErrorKind::kConfig, where + ": malformed TOML: expected numbers, dates and times as TOML 1.0 spells them");
  }
}

}  // namespace specdec::cli
