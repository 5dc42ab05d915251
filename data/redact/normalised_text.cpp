#include "data/redact/normalised_text.h"

#include <algorithm>
#include <iterator>

namespace specdec::data {

namespace {

constexpr int kUnchanged = -1, kRemoved = -2;

// Code points of the digit zero in scripts other than ASCII, ascending (Unicode 15, general category Nd; only digits
// that are in use today).
constexpr char32_t kZeros[] = {0x0660, 0x06F0, 0x07C0, 0x0966,  0x09E6,  0x0A66,  0x0AE6,  0x0B66,
                               0x0BE6, 0x0C66, 0x0CE6, 0x0D66,  0x0DE6,  0x0E50,  0x0ED0,  0x0F20,
                               0x1040, 0x17E0, 0x1810, 0x1D7CE, 0x1D7D8, 0x1D7E2, 0x1D7EC, 0x1D7F6};

// Returns the ASCII character that replaces the non-ASCII character `c`, or kRemoved, or kUnchanged.
int folded(char32_t c) {
  if (c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F ||
      c == 0x205F || c == 0x3000)
    return ' ';
  if (c == 0xAD || c == 0x180E || (c >= 0x200B && c <= 0x200F) || (c >= 0x202A && c <= 0x202E) ||
      (c >= 0x2060 && c <= 0x2064) || c == 0xFEFF)
    return kRemoved;
  if ((c >= 0x2010 && c <= 0x2015) || c == 0x2043 || c == 0x2212 || c == 0xFE58 || c == 0xFE63) return '-';
  if (c >= 0xFF01 && c <= 0xFF5E) return static_cast<int>(c - 0xFF01 + '!');
  const auto* zero = std::upper_bound(std::begin(kZeros), std::end(kZeros), c);
  if (zero != std::begin(kZeros) && c - zero[-1] < 10) return static_cast<int>('0' + (c - zero[-1]));
  return kUnchanged;
}

int hex_value(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  const char lower = static_cast<char>(c | 0x20);
  return lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
}

int hex_byte(std::string_view text, size_t i) {
  if (i + 1 >= text.size()) return -1;
  const int high = hex_value(text[i]), low = hex_value(text[i + 1]);
  return high < 0 || low < 0 ? -1 : 16 * high + low;
}

struct Character {
  size_t bytes = 1;
  int becomes = kUnchanged;
};

// Returns the length in bytes of the character at `i`, which is a '%' or not ASCII, and its replacement.
Character character_at(std::string_view text, size_t i) {
  if (text[i] == '%') {
    size_t at = i + 1;
    int value = hex_byte(text, at);
    for (; value == '%'; value = hex_byte(text, at)) at += 2;
    if (value < 0 && at > i + 1) return {at - i, '%'};
    return value >= ' ' && value < 0x7F ? Character{at + 2 - i, value} : Character{};
  }
  const auto byte = [&](size_t k) { return k < text.size() ? static_cast<unsigned char>(text[k]) : 0u; };
  const unsigned char lead = static_cast<unsigned char>(text[i]);
  const size_t bytes = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  char32_t c = lead & (bytes == 4 ? 0x07 : bytes == 3 ? 0x0F : 0x1F);
  for (size_t k = 1; k < bytes; ++k) c = c << 6 | (byte(i + k) & 0x3F);
  return {std::min(bytes, text.size() - i), folded(c)};
}

// Returns the position of the first character from `i` on that changes, or text.size().
size_t next_change(std::string_view text, size_t i) {
  while (i < text.size()) {
    if (!(text[i] & 0x80) && text[i] != '%') {
      ++i;
      continue;
    }
    const Character c = character_at(text, i);
    if (c.becomes != kUnchanged) return i;
    i += c.bytes;
  }
  return i;
}

}  // namespace

std::optional<NormalisedText> normalise(std::string_view text) {
  size_t change = next_change(text, 0);
  if (change >= text.size() || text.size() >= UINT32_MAX) return std::nullopt;
  NormalisedText out;
  out.text.reserve(text.size());
  out.origin.reserve(text.size() + 1);
  for (size_t i = 0;;) {
    for (const size_t stop = std::min(change, text.size()); i < stop; ++i) {
      out.text += text[i];
      out.origin.push_back(static_cast<uint32_t>(i));
    }
    if (i >= text.size()) break;
    const Character c = character_at(text, i);
    if (c.becomes != kRemoved) {
      out.text += static_cast<char>(c.becomes);
      out.origin.push_back(static_cast<uint32_t>(i));
    }
    i += c.bytes;
    change = next_change(text, i);
  }
  out.origin.push_back(static_cast<uint32_t>(text.size()));
  return out;
}

}  // namespace specdec::data
