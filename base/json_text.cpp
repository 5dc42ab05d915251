#include "base/json_text.h"

#include <algorithm>
#include <string>

namespace specdec {

namespace {

constexpr std::string_view kDigits = "0123456789", kHexDigits = "0123456789abcdefABCDEF";

class Scanner {
 public:
  explicit Scanner(std::string_view text) : text_(text) {}

  bool is_value() {
    std::string open;  // the closing brackets of the containers that are open
    for (;;) {
      skip_blanks();
      if (take("{")) {
        if (!take_after_blanks('}')) {
          open += '}';
          if (!is_key()) return false;
          continue;
        }
      } else if (take("[")) {
        if (!take_after_blanks(']')) {
          open += ']';
          continue;
        }
      } else if (!is_scalar()) {
        return false;
      }
      while (!open.empty() && take_after_blanks(open.back())) open.pop_back();
      if (open.empty()) {
        skip_blanks();
        return at_ == text_.size();
      }
      if (!take_after_blanks(',') || (open.back() == '}' && !is_key())) return false;
    }
  }

 private:
  void skip_blanks() { skip(" \t\r\n"); }
  size_t skip(std::string_view characters) {
    const size_t begin = at_;
    at_ = std::min(text_.find_first_not_of(characters, at_), text_.size());
    return at_ - begin;
  }
  bool take(std::string_view token) {
    const bool found = text_.substr(at_).starts_with(token);
    if (found) at_ += token.size();
    return found;
  }
  bool take_after_blanks(char c) {
    skip_blanks();
    return take({&c, 1});
  }

  bool is_key() {
    skip_blanks();
    return is_string() && take_after_blanks(':');
  }
  bool is_scalar() { return is_string() || is_number() || take("true") || take("false") || take("null"); }

  bool is_string() {
    if (!take("\"")) return false;
    while (at_ < text_.size()) {
      const char c = text_[at_++];
      if (c == '"') return true;
      if (static_cast<unsigned char>(c) < 0x20 || (c == '\\' && !is_escape())) return false;
    }
    return false;
  }
  bool is_escape() {
    if (at_ == text_.size()) return false;
    const char c = text_[at_++];
    if (c != 'u') return std::string_view("\"\\/bfnrt").find(c) != std::string_view::npos;
    const std::string_view digits = text_.substr(at_, 4);
    at_ += digits.size();
    return digits.size() == 4 && digits.find_first_not_of(kHexDigits) == std::string_view::npos;
  }

  bool is_number() {
    take("-");
    if (!take("0") && skip(kDigits) == 0) return false;
    if (take(".") && skip(kDigits) == 0) return false;
    if (!take("e") && !take("E")) return true;
    if (!take("+")) take("-");
    return skip(kDigits) > 0;
  }

  std::string_view text_;
  size_t at_ = 0;
};

}  // namespace

bool is_json_text(std::string_view text) { return Scanner(text).is_value(); }

}  // namespace specdec
