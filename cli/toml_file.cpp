#include "cli/toml_file.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <string_view>

#include "base/file.h"
#include "base/json.h"

namespace specdec::cli {

namespace {

constexpr int kMaxParts = 32;

// The line of a key with more parts than kMaxParts, along which the parser recurses; 0: there is none. Strings and comments are passed
// over.
int line_of_deep_key(std::string_view text) {
  int line = 1, parts = 1;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '#') {
      i = std::min(text.find('\n', i), text.size()) - 1;
    } else if (c == '"' || c == '\'') {
      const bool lines = text.substr(i, 3) == std::string(3, c);
      const std::string_view quote = lines ? text.substr(i, 3) : text.substr(i, 1);
      for (i += quote.size(); i < text.size() && text.substr(i, quote.size()) != quote && (lines || text[i] != '\n'); ++i) {
        line += text[i] == '\n';
        if (c == '"' && text[i] == '\\') ++i;
      }
      i += quote.size() - 1;
    } else if (c == '.') {
      if (++parts > kMaxParts) return line;
    } else if (c == '\n' || c == '=' || c == '[' || c == ',' || c == '{') {
      line += c == '\n';
      parts = 1;
    }
  }
  return 0;
}

// Writes letters outside of ASCII in ASCII and back: each of their bytes as a mark that occurs nowhere in the text, and two digits. toml++
// 3.3 reaches code that it takes for unreachable when it meets such letters in many places, so it is given none.
class AsciiSpelling {
 public:
  explicit AsciiSpelling(std::string_view text) {
    std::random_device random;  // so that no escape sequence of the text can spell the mark
    do {
      char digits[24];
      std::snprintf(digits, sizeof digits, "Z%08x", static_cast<unsigned>(random()));
      mark_ = digits;
    } while (text.find(mark_) != std::string_view::npos);
  }
  std::string spelt(std::string_view text) const {
    std::string out;
    for (const char c : text) {
      if (static_cast<unsigned char>(c) < 0x80) {
        out += c;
        continue;
      }
      char digits[8];
      std::snprintf(digits, sizeof digits, "%02x", static_cast<unsigned>(static_cast<unsigned char>(c)));
      out.append(mark_).append(digits);
    }
    return out;
  }
  bool in(std::string_view text) const { return text.find(mark_) != std::string_view::npos; }
  std::string read(std::string_view text) const {
    std::string out;
    size_t at = 0;
    for (size_t found = 0; (found = text.find(mark_, at)) != std::string_view::npos; at = found + mark_.size() + 2) {
      out += text.substr(at, found - at);
      out += static_cast<char>(std::strtol(std::string(text.substr(std::min(found + mark_.size(), text.size()), 2)).c_str(), nullptr, 16));
    }
    return at < text.size() ? out.append(text.substr(at)) : out;
  }

 private:
  std::string mark_;
};

class Reader {
 public:
  Reader(const std::string& where, std::string_view text) : where_(where), spelling_(text) {}

  toml::table parse(std::string_view text) const {
    try {
      toml::table table = toml::parse(spelling_.spelt(text), where_);
      restore(table);
      return table;
    } catch (const toml::parse_error& e) {
      throw refused(e.source().begin.line, spelling_.read(e.description()));
    } catch (const TomlAssertion&) {
      throw Error(ErrorKind::kConfig, where_ + ": malformed TOML: expected numbers, dates and times as TOML 1.0 spells them");
    }
  }
  Error refused(int64_t line, const std::string& why) const { return Error(ErrorKind::kConfig, where_ + ":" + std::to_string(line) + ": " + why); }

 private:
  void restore(toml::node& node) const {
    if (toml::value<std::string>* const text = node.as_string()) text->get() = spelling_.read(text->get());
    if (toml::array* const list = node.as_array())
      for (toml::node& item : *list) restore(item);
    if (toml::table* const table = node.as_table())
      for (auto&& [key, value] : *table) {
        if (spelling_.in(key.str())) throw refused(key.source().begin.line, "a key with letters outside of ASCII");
        restore(value);
      }
  }

  const std::string& where_;
  const AsciiSpelling spelling_;
};

}  // namespace

toml::table read_toml(const std::filesystem::path& file) {
  constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
  const std::string where = file.string(), all = read_file(file, 1u << 20, ErrorKind::kConfig);
  const std::string_view text = std::string_view(all).substr(all.starts_with(kByteOrderMark) ? kByteOrderMark.size() : 0);
  const Reader reader(where, text);
  if (const int line = line_of_deep_key(text); line > 0) throw reader.refused(line, "a key of more than " + std::to_string(kMaxParts) + " parts");
  try {
    (void)Json(text).dump();
  } catch (const Json::exception&) {
    throw Error(ErrorKind::kConfig, where + ": not UTF-8, as TOML has to be");
  }
  return reader.parse(text);
}

}  // namespace specdec::cli
