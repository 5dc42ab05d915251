#include "cli/toml_file.h"

#include <algorithm>
#include <charconv>
#include <random>
#include <string>
#include <string_view>

#include "base/file.h"
#include "base/sha256.h"
#include "base/utf8.h"

namespace specdec::cli {

namespace {

constexpr int kMaxParts = 32;

// Returns the line of the first key that has more than kMaxParts parts, or 0 if there is none. toml++ recurses once per
// part, so the number is limited. Dots in strings and comments do not count.
int line_of_deep_key(std::string_view text) {
  int line = 1, parts = 1;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '#') {
      i = std::min(text.find('\n', i), text.size()) - 1;
    } else if (c == '"' || c == '\'') {
      const bool lines = text.substr(i, 3) == std::string(3, c);
      const std::string_view quote = lines ? text.substr(i, 3) : text.substr(i, 1);
      for (i += quote.size(); i < text.size() && text.substr(i, quote.size()) != quote && (lines || text[i] != '\n');
           ++i) {
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

// Encodes non-ASCII bytes in ASCII and decodes them: each byte becomes a mark that the text does not contain, followed
// by two hexadecimal digits. toml++ 3.3 has undefined behaviour for such bytes in many places, so it only gets ASCII.
class AsciiSpelling {
 public:
  explicit AsciiSpelling(std::string_view text) {
    std::random_device random;  // the mark is random, so that no escape sequence in the text can produce it
    do {
      const std::random_device::result_type drawn = random();
      mark_ = "Z" + to_hex({reinterpret_cast<const char*>(&drawn), sizeof drawn});
    } while (in(text));
  }
  std::string spelt(std::string_view text) const {
    std::string out;
    for (size_t i = 0; i < text.size(); ++i) {
      if (static_cast<unsigned char>(text[i]) < 0x80)
        out += text[i];
      else
        out.append(mark_).append(to_hex(text.substr(i, 1)));
    }
    return out;
  }
  bool in(std::string_view text) const { return text.find(mark_) != std::string_view::npos; }
  std::string read(std::string_view text) const {
    std::string out;
    for (size_t found = 0; (found = text.find(mark_)) != std::string_view::npos;) {
      const std::string_view digits = text.substr(found + mark_.size(), 2);
      unsigned char byte = 0;
      std::from_chars(digits.data(), digits.data() + digits.size(), byte, 16);
      out.append(text.substr(0, found)).push_back(static_cast<char>(byte));
      text.remove_prefix(found + mark_.size() + digits.size());
    }
    return out.append(text);
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
      throw Error(ErrorKind::kConfig,
                  where_ + ": malformed TOML: expected numbers, dates and times as TOML 1.0 spells them");
    }
  }
  Error refused(int64_t line, const std::string& why) const {
    return Error(ErrorKind::kConfig, where_ + ":" + std::to_string(line) + ": " + why);
  }

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
  const std::string_view text =
      std::string_view(all).substr(all.starts_with(kByteOrderMark) ? kByteOrderMark.size() : 0);
  const Reader reader(where, text);
  if (const int line = line_of_deep_key(text); line > 0)
    throw reader.refused(line, "a key of more than " + std::to_string(kMaxParts) + " parts");
  if (!is_valid_utf8(text)) throw Error(ErrorKind::kConfig, where + ": not UTF-8, as TOML has to be");
  return reader.parse(text);
}

}  // namespace specdec::cli
