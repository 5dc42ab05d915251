#include "data/redact/token_surprise.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace specdec::data {

namespace {

// Costs of a letter after another letter, in half bits, encoded as letters with 'A' = 0. The row is the preceding
// letter ('^' = none), the column is the letter itself.
constexpr char kLetterCosts[27][27] = {
    "IJHIJJKKJNLJJKKIPIGIMMKOPQ",  // ^
    "QKIJRLKQJUMGJGVKWGIGNMONKR",  // a
    "GKMQFPVTHNWGRSGSXIJOHXTXIX",  // b
    "GSLMGVWGJZHJQUFQUJNHJWWZNY",  // c
    "HOOJDONRFRTLOOIPVIINKOPSLU",  // d
    "IPIHKMNRNUQIKGOLNFGJQLNKNT",  // e
    "HSQQHHRVEYXITRGPYIMHIWSZMW",  // f
    "IQQRERKHHYVJOKJMVGILJUTWNT",  // g
    "FPRQDQWRGVVOONGRVKMIJWSYMY",  // h
    "KNIJJLJWUVPIKEHLRKHHRKYOXM",  // i
    "FRTRERURKQNPTRFQRRGQFUQURS",  // j
    "INNMDNMOGSQKLKMMRMHMNOOYLU",  // k
    "GQOKENTVFZPGORGOZSKKKOUYIY",  // l
    "EJRQERUWGYUNJOGHXSKRKWUWMV",  // m
    "IRIHGMFQISNORLJOURHFKNSVOU",  // n
    "MMKJOLLRMTKIIFJJXGJJHLJQOS",  // o
    "GSRQFSUKIYSGQUGJTGKIJUTRNZ",  // p
    "NRQVPRVRSSOLSPTSRMQRASKRVR",  // q
    "GPLKEPLSGXNMLLHOWKHIKNRZKZ",  // r
    "JRKPFPSHHYMMNNIIORIEIQMZNY",  // s
    "HRLQEPVHFYVMPQHPWHIKKTOUKV",  // t
    "JJKLINLWKYSHGFQJWGHHUSXTSQ",  // u
    "FVTTCSQVFYXPTTIQZQRTSWRRQX",  // v
    "FPQOEPVIFYQMRIGQTJIOTWPRQY",  // w
    "HOINHMSNHUQNPPMFSNMEQRRKLT",  // x
    "ILKLGNORIRQJJJIHWLFGNOMRON",  // y
    "GPTQCSRQGVULQQISVRNQMRQPKH",  // z
};
constexpr char kKindCosts[4][5] = {"AMQJ", "BENK", "JNBF", "CJDJ"};

constexpr size_t kShortest = 12;
// Maximum cost in bits of a letter that repeats the letter before it, or follows it in the alphabet: "xxxx", "abcdef"
constexpr double kStepBits = 3.8;

enum Kind { kLower, kUpper, kDigit, kSign };

Kind kind_of(char c) {
  if (c >= 'a' && c <= 'z') return kLower;
  if (c >= 'A' && c <= 'Z') return kUpper;
  return c >= '0' && c <= '9' ? kDigit : kSign;
}

size_t letter(char c) { return static_cast<size_t>((c | 0x20) - 'a'); }

// Models random strings over an alphabet: bits per character of each Kind, and whether A to F are the only letters.
struct Alphabet {
  std::array<double, 4> bits;
  bool hexadecimal;
};
constexpr double kNever = 18;
constexpr Alphabet kAlphabets[] = {
    {{6.0, 6.0, 6.0, 7.0}, false},       // base64: two of its 64 characters are signs, out of four possible signs
    {{4.0, kNever, 4.0, kNever}, true},  // hexadecimal
    {{kNever, 4.0, 4.0, kNever}, true},
    {{5.17, kNever, 5.17, 9.6}, false},  // 36 characters and sometimes a sign
    {{kNever, 5.17, 5.17, 9.6}, false}};

// Returns the cost in bits of `c` after `before` in an identifier; `before` is NUL at the start.
double identifier_bits(char before, char c) {
  const Kind kind = kind_of(c), kind_before = before ? kind_of(before) : kind;
  double change = before ? 0.5 * (kKindCosts[kind_before][kind] - 'A') : 1.0;
  const bool letters = kind <= kUpper && kind_before <= kUpper;
  const int step = !before ? 9 : letters ? (c | 0x20) - (before | 0x20) : c - before;
  if (letters && step == 0) change = std::min(change, 2.0);  // the same letter in the other case: "aAbBcC"
  if (kind == kDigit) return change + (kind_before == kDigit && step >= -1 && step <= 1 ? 1.5 : 3.3);
  if (kind == kSign) return change + 2.0;
  const bool after_letter = before && kind_before <= kUpper;
  const double pair = 0.5 * (kLetterCosts[after_letter ? 1 + letter(before) : 0][letter(c)] - 'A');
  return change + (step == 0 || step == 1 ? std::min(pair, kStepBits) : pair);
}

}  // namespace

double surprise_bits(std::string_view run) {
  struct Stretch {
    double bits = 0;
    size_t length = 0;
  };
  std::array<Stretch, std::size(kAlphabets)> now{};
  double greatest = 0;
  for (size_t i = 0; i < run.size(); ++i) {
    const double identifier = identifier_bits(i == 0 ? '\0' : run[i - 1], run[i]);
    const Kind kind = kind_of(run[i]);
    for (size_t a = 0; a < now.size(); ++a) {
      const bool outside = kAlphabets[a].hexadecimal && kind <= kUpper && letter(run[i]) > 5;
      const double gain = identifier - (outside ? kNever : kAlphabets[a].bits[kind]);
      if (now[a].bits <= 0) now[a] = {};
      now[a].bits += gain;
      ++now[a].length;
      if (now[a].length >= kShortest) greatest = std::max(greatest, now[a].bits);
    }
  }
  return greatest;
}

double character_entropy(std::string_view run) {
  std::array<int, 256> count{};
  for (const char c : run) ++count[static_cast<unsigned char>(c)];
  double bits = 0;
  const auto n = static_cast<double>(run.size());
  for (const int times : count)
    if (times > 0) bits -= times / n * std::log2(times / n);
  return bits;
}

}  // namespace specdec::data
