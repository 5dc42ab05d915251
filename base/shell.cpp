#include "base/shell.h"

namespace specdec {

std::string shell_words(const std::vector<std::string>& words) {
  std::string line;
  for (const std::string& word : words) {
    const bool plain =
        !word.empty() &&
        word.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./:=,@%+") ==
            std::string::npos;
    std::string text = word;
    for (size_t at = 0; !plain && (at = text.find('\'', at)) != std::string::npos; at += 4)
      text.replace(at, 1, "'\\''");
    line += (line.empty() ? "" : " ") + (plain ? text : "'" + text + "'");
  }
  return line;
}

std::string one_line(std::string text) {
  const auto byte = [&text](size_t at) { return at < text.size() ? static_cast<unsigned char>(text[at]) : 0u; };
  std::string shown;
  shown.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    const unsigned first = byte(i), second = byte(i + 1), third = byte(i + 2);
    const bool c1 = first == 0xC2 && second >= 0x80 && second <= 0x9F, arabic_mark = first == 0xD8 && second == 0x9C;
    // The three bytes of U+200E, U+200F, U+2028 to U+202E and U+2066 to U+2069, which change the direction of text or
    // break lines.
    const bool direction =
        first == 0xE2 && ((second == 0x80 && (third == 0x8E || third == 0x8F || (third >= 0xA8 && third <= 0xAE))) ||
                          (second == 0x81 && third >= 0xA6 && third <= 0xA9));
    const bool hidden = first < 0x20 || first == 0x7F || c1 || arabic_mark || direction;
    shown += hidden ? ' ' : text[i];
    i += c1 || arabic_mark ? 1 : direction ? 2 : 0;
  }
  return shown;
}

}  // namespace specdec
