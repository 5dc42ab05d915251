#include "data/redact/text_facts.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "base/cpu_clones.h"

namespace specdec::data {

namespace {

constexpr size_t kLongRun = 14, kWindow = 256, kCountBlock = 64;

// Returns true if the window of kWindow bytes has 14 characters [A-Za-z0-9_+,./-] in a row (is_run_character). The
// loops mark the beginnings of runs of one, two, four, eight and at last fourteen characters. They have a fixed length,
// so that the compiler vectorises them.
SPECDEC_CLONES("avx2", "default")
bool window_has_run(const char* text) {
  uint8_t together[kWindow + 32] = {};
  // Computes is_run_character in four loops, because a single loop would become a table look-up per byte.
  for (size_t i = 0; i < kWindow; ++i) together[i] = static_cast<uint8_t>((text[i] | 0x20) - 'a') < 26;
  for (size_t i = 0; i < kWindow; ++i) together[i] |= static_cast<uint8_t>(text[i] - '0') < 10;
  for (size_t i = 0; i < kWindow; ++i) together[i] |= static_cast<uint8_t>(text[i] - '+') < 5;
  for (size_t i = 0; i < kWindow; ++i) together[i] |= text[i] == '_';
  for (size_t i = 0; i < kWindow; ++i) together[i] &= together[i + 1];
  for (size_t i = 0; i < kWindow; ++i) together[i] &= together[i + 2];
  for (size_t i = 0; i < kWindow; ++i) together[i] &= together[i + 4];
  uint8_t any = 0;
  for (size_t i = 0; i < kWindow; ++i) any |= together[i] & together[i + 6];
  return any != 0;
}

// Adds the numbers of digits, colons and at signs in the blocks to counts[0], counts[1] and counts[2], and makes
// counts[3] nonzero if a byte is a '%' or beyond ASCII. Blocks have a fixed length, so the compiler turns the inner
// loop into vector instructions.
SPECDEC_CLONES("avx2", "default")
void count_blocks(const char* text, size_t blocks, uint32_t* counts) {
  for (size_t b = 0; b < blocks; ++b) {
    uint8_t digits = 0, colons = 0, at_signs = 0, foreign = 0;
    for (size_t i = 0; i < kCountBlock; ++i) {
      const auto c = static_cast<uint8_t>(text[kCountBlock * b + i]);
      digits = static_cast<uint8_t>(digits + (static_cast<uint8_t>(c - '0') < 10));
      colons = static_cast<uint8_t>(colons + (c == ':'));
      at_signs = static_cast<uint8_t>(at_signs + (c == '@'));
      foreign = static_cast<uint8_t>(foreign | (c & 0x80) | (c == '%'));
    }
    counts[0] += digits;
    counts[1] += colons;
    counts[2] += at_signs;
    counts[3] |= foreign;
  }
}

SPECDEC_CLONES("avx2", "default")
bool block_has_digit(const char* text) {
  uint8_t any = 0;
  for (size_t i = 0; i < kCountBlock; ++i) any |= static_cast<uint8_t>(text[i] - '0') < 10;
  return any != 0;
}

}  // namespace

bool is_run_character(char ch) {
  const auto c = static_cast<uint8_t>(ch);
  return (static_cast<uint8_t>((c | 0x20) - 'a') < 26) | (static_cast<uint8_t>(c - '0') < 10) |
         (static_cast<uint8_t>(c - '+') < 5) | (c == '_');
}

bool is_word(char ch) {
  const auto c = static_cast<uint8_t>(ch);
  return (static_cast<uint8_t>((c | 0x20) - 'a') < 26) | (static_cast<uint8_t>(c - '0') < 10) | (c == '_');
}

size_t next_run_window(std::string_view text, size_t i) {
  for (; i + kWindow < text.size(); i += kWindow - kLongRun + 1)
    if (window_has_run(text.data() + i)) return i;
  char padded[kWindow] = {};
  if (i >= text.size()) return text.size();
  std::memcpy(padded, text.data() + i, text.size() - i);
  return text.size() - i >= kLongRun && window_has_run(padded) ? i : text.size();
}

TextFacts count_facts(std::string_view text) {
  const size_t blocks = text.size() / kCountBlock;
  uint32_t counts[4] = {};
  count_blocks(text.data(), blocks, counts);
  for (const char c : text.substr(kCountBlock * blocks)) {
    counts[0] += is_digit(c);
    counts[1] += c == ':';
    counts[2] += c == '@';
    counts[3] |= (c & 0x80) != 0 || c == '%';
  }
  return {counts[0], counts[1], counts[2] > 0, next_run_window(text, 0) < text.size(), counts[3] != 0};
}

size_t first_digit(std::string_view text, size_t i) {
  while (i + kCountBlock <= text.size() && !block_has_digit(text.data() + i)) i += kCountBlock;
  while (i < text.size() && !is_digit(text[i])) ++i;
  return i;
}

}  // namespace specdec::data
