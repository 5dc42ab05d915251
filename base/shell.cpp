#include "base/shell.h"

namespace specdec {

std::string shell_words(const std::vector<std::string>& words) {
  std::string line;
  for (const std::string& word : words) {
    const bool plain = !word.empty() && word.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./:=,@%+") == std::string::npos;
    std::string text = word;
    for (size_t at = 0; !plain && (at = text.find('\'', at)) != std::string::npos; at += 4) text.replace(at, 1, "'\\''");
    line += (line.empty() ? "" : " ") + (plain ? text : "'" + text + "'");
  }
  return line;
}

std::string one_line(std::string text) {
  for (char& c : text)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = ' ';
  return text;
}

}  // namespace specdec
