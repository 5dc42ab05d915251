#include "monitor/read/exposition.h"

#include <cctype>
#include <charconv>
#include <cstdlib>

#include "base/utf8.h"

namespace specdec::monitor {

namespace {

bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\v' || c == '\f'; }
bool is_name_char(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == ':'; }
bool is_plain_name(std::string_view name) {
  if (name.empty() || std::isdigit(static_cast<unsigned char>(name[0]))) return false;
  for (const char c : name)
    if (!is_name_char(c)) return false;
  return true;
}

// Parses one line of a page from left to right.
class LineReader {
 public:
  explicit LineReader(std::string_view line) : line_(line) {}

  PageLine read() {
    skip_blanks();
    if (at_end() || peek() == '#') return {};
    if (peek() != '{' && !read_name()) return fail("no name");
    skip_blanks();
    if (!at_end() && peek() == '{' && !read_labels()) return std::move(result_);
    if (result_.sample.name.empty()) return fail("no name");
    result_.is_named = true;
    if (is_label_twice_) return fail("a label twice");
    skip_blanks();
    if (!read_number(&result_.sample.value)) return fail("no number");
    skip_blanks();
    double timestamp = 0;
    if (!at_end() && peek() != '#' && !read_number(&timestamp)) return fail("text after the number");
    skip_blanks();
    if (!at_end() && peek() != '#') return fail("text after the number");
    if (!is_valid_utf8(line_.substr(0, at_))) return fail("not UTF-8");
    result_.is_sample = true;
    return std::move(result_);
  }

 private:
  bool at_end() const { return at_ >= line_.size(); }
  char peek() const { return line_[at_]; }
  void skip_blanks() {
    while (!at_end() && is_blank(peek())) ++at_;
  }
  PageLine fail(const char* problem) {
    result_.problem = problem;
    return std::move(result_);
  }
  bool bad(const char* problem) {
    result_.problem = problem;
    return false;
  }

  std::string_view word() {
    const size_t begin = at_;
    while (!at_end() && is_name_char(peek())) ++at_;
    return line_.substr(begin, at_ - begin);
  }
  bool read_name() {
    const std::string_view name = word();
    if (!is_plain_name(name) || (!at_end() && !is_blank(peek()) && peek() != '{')) return false;
    result_.sample.name = name;
    return true;
  }

  // Reads a quoted text with the escapes \\, \" and \n. Before any other character, a backslash stands for itself.
  bool read_quoted(std::string* text) {
    for (++at_; !at_end() && peek() != '"'; ++at_) {
      const char next = at_ + 1 < line_.size() ? line_[at_ + 1] : '\0';
      if (peek() == '\\' && (next == '\\' || next == '"' || next == 'n')) {
        *text += next == 'n' ? '\n' : next;
        ++at_;
      } else {
        *text += peek();
      }
    }
    if (at_end()) return bad("an unclosed label");
    ++at_;
    return true;
  }

  bool read_labels() {
    ++at_;
    for (;;) {
      skip_blanks();
      if (at_end()) return bad("an unclosed brace");
      if (peek() == '}') {
        ++at_;
        return true;
      }
      if (!read_term()) return false;
      skip_blanks();
      if (at_end() || (peek() != ',' && peek() != '}')) return bad("an unclosed brace");
      if (peek() == ',') ++at_;
    }
  }

  // Reads one term between the braces: key="value", "key"="value" or "name of the series".
  bool read_term() {
    std::string key, value;
    const bool quoted = peek() == '"';
    if (quoted && !read_quoted(&key)) return false;
    if (!quoted) key = word();
    skip_blanks();
    if (quoted && (at_end() || peek() != '=')) return set_name(key);
    if (at_end() || peek() != '=' || (!quoted && !is_plain_name(key))) return bad("a label without a name or value");
    ++at_;
    skip_blanks();
    if (at_end() || peek() != '"') return bad("a label without a quoted value");
    if (!read_quoted(&value)) return false;
    if (key == "__name__") return set_name(value);
    if (!result_.sample.labels.emplace(key, value).second) is_label_twice_ = true;
    return true;
  }
  bool set_name(const std::string& name) {
    if (!result_.sample.name.empty() || name.empty()) return bad("two names");
    result_.sample.name = name;
    return true;
  }

  // Reads a decimal number, Inf or NaN. A number too large for a double becomes infinite, one too small becomes 0.
  bool read_number(double* value) {
    const size_t begin = at_;
    while (!at_end() && !is_blank(peek())) ++at_;
    std::string token(line_.substr(begin, at_ - begin));
    std::string_view digits = token;
    if (digits.starts_with('+')) digits.remove_prefix(1);
    if (digits.empty() || digits[0] == '+' || (digits[0] == '-' && token[0] == '+') ||
        digits.find('(') != std::string_view::npos)
      return false;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), *value);
    if (end != digits.data() + digits.size() || error == std::errc::invalid_argument) return false;
    if (error == std::errc::result_out_of_range) *value = std::strtod(token.c_str(), nullptr);
    return true;
  }

  std::string_view line_;
  size_t at_ = 0;
  bool is_label_twice_ = false;
  PageLine result_;
};

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '\\' || c == '"') out += '\\';
    out += c == '\n' ? std::string("\\n") : std::string(1, c);
  }
  return out + '"';
}

}  // namespace

PageLine parse_line(std::string_view line) { return LineReader(line).read(); }

std::string series_text(const std::string& name, const std::map<std::string, std::string>& labels) {
  std::string text;
  for (const auto& [key, value] : labels)
    text += (text.empty() ? "{" : ",") + (is_plain_name(key) ? key : quoted(key)) + "=" + quoted(value);
  return name + text + (text.empty() ? "" : "}");
}

void require_whole_page(const std::string& text, const PageEnd& end, const std::string& where) {
  const auto cut = [&](const std::string& expected) {
    throw PageError(where + ": the page is cut off: expected " + expected + " at its end");
  };
  if (end.is_openmetrics) {
    size_t size = text.size();
    while (size > 0 && (text[size - 1] == '\n' || is_blank(text[size - 1]))) --size;
    const std::string_view whole = std::string_view(text).substr(0, size);
    if (whole != "# EOF" && !whole.ends_with("\n# EOF")) cut("\"# EOF\", as OpenMetrics has it,");
  } else if (!end.has_length && !text.empty() && text.back() != '\n') {
    cut("a line feed");
  }
}

}  // namespace specdec::monitor
