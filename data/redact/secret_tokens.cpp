// Checks for two kinds of secrets: tokens, which are recognised by how random they look and by the text before them,
// and blocks of private keys.
#include <algorithm>
#include <array>
#include <string>

#include "data/redact/detectors.h"
#include "data/redact/token_surprise.h"

namespace specdec::data {

namespace {

// Limits for random-looking tokens. They are lower for a token that follows a label such as "secret".
constexpr size_t kShortestToken = 20, kShortestLabelled = 16, kShortestHex = 32;
constexpr double kTokenBits = 27, kLabelledBits = 23, kEntropy = 3.0, kLabelledEntropy = 2.8;
constexpr size_t kContext = 40;

bool is_token_character(char c) { return is_run_character(c) && c != '.' && c != ','; }
bool is_letter(char c) { return is_word(c) && !is_digit(c) && c != '_'; }
bool is_hex(char c) { return is_digit(c) || (is_letter(c) && (c | 0x20) <= 'f'); }

// Returns the last kContext characters before `begin` on the same line, in lower case.
std::string context_before(std::string_view text, size_t begin) {
  std::string_view before = text.substr(begin - std::min(begin, kContext), std::min(begin, kContext));
  if (const size_t line = before.rfind('\n'); line != before.npos) before.remove_prefix(line + 1);
  std::string lower(before);
  for (char& c : lower) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c | 0x20) : c;
  return lower;
}

// Returns true if one of the words occurs in the context at the end of a word: "api_key" and "keys" mention "key",
// "keyboard" does not.
template <size_t n>
bool mentions(const std::string& context, const std::array<std::string_view, n>& words) {
  for (const std::string_view word : words)
    for (size_t at = context.find(word); at != context.npos; at = context.find(word, at + 1)) {
      size_t end = at + word.size();
      if (end < context.size() && context[end] == 's') ++end;
      if (end >= context.size() || !is_letter(context[end])) return true;
    }
  return false;
}

bool is_labelled(const std::string& context) {
  static constexpr std::array<std::string_view, 19> kLabels = {
      "key",           "token",      "secret",    "password", "passwd",  "passphrase", "pwd", "bearer", "basic", "auth",
      "authorization", "credential", "signature", "sig",      "session", "cookie",     "jwt", "apikey", "sas"};
  return mentions(context, kLabels);
}

// Returns true if the text before the token says that it is a digest, which is public.
bool is_digest(const std::string& context) {
  static constexpr std::array<std::string_view, 13> kDigests = {"sha",    "sha1",   "sha256",   "sha512", "md5",
                                                                "commit", "digest", "checksum", "hash",   "integrity",
                                                                "blob",   "etag",   "revision"};
  return mentions(context, kDigests);
}

// Returns true for a subresource integrity digest: "sha384-oqVuAf…".
bool is_integrity(std::string_view run) {
  for (const std::string_view name : {"sha256-", "sha384-", "sha512-"})
    if (run.substr(0, name.size()) == name) return true;
  return false;
}

bool is_uuid(std::string_view run) {
  if (run.size() != 36) return false;
  for (size_t i = 0; i < run.size(); ++i)
    if (i == 8 || i == 13 || i == 18 || i == 23 ? run[i] != '-' : !is_hex(run[i])) return false;
  return true;
}

// Strips the prefix and suffix of a C++ integer literal, so that looks_random sees that it is a number of at most 64
// bits: 0xBF58476D1CE4E5B9ull → BF58476D1CE4E5B9.
std::string_view without_affixes(std::string_view run) {
  if (run.size() < 3 || run[0] != '0' || (run[1] | 0x20) != 'x') return run;
  while (run.size() > 2 && ((run.back() | 0x20) == 'u' || (run.back() | 0x20) == 'l')) run.remove_suffix(1);
  return run.substr(2);
}

bool looks_random(std::string_view run, const std::string& context) {
  if (const std::string_view number = without_affixes(run);
      number.size() <= 16 && std::all_of(number.begin(), number.end(), is_hex))
    return false;
  const bool labelled = is_labelled(context);
  if (run.size() < (labelled ? kShortestLabelled : kShortestToken)) return false;
  bool lower = false, upper = false, digit = false, all_hex = true;
  for (const char c : run) {
    digit |= is_digit(c);
    lower |= c >= 'a' && c <= 'z';
    upper |= c >= 'A' && c <= 'Z';
    all_hex &= is_hex(c);
  }
  if (lower + upper + digit < 2) return false;  // has only one kind of character, as words and numbers do
  if (labelled && is_uuid(run)) return true;
  if (!labelled &&
      (is_uuid(run) || is_integrity(run) || (all_hex && (run.size() < kShortestHex || is_digest(context)))))
    return false;
  return character_entropy(run) >= (labelled ? kLabelledEntropy : kEntropy) &&
         surprise_bits(run) >= (labelled ? kLabelledBits : kTokenBits);
}

// Returns the first position from `i` on that is neither white space nor a quote. Also skips line ends that are written
// as escape sequences, as in JSON and source code.
size_t skip_blanks(std::string_view text, size_t i) {
  for (; i < text.size(); ++i) {
    if (text[i] == '\\' && i + 1 < text.size() && (text[i + 1] == 'n' || text[i + 1] == 'r'))
      ++i;
    else if (std::string_view(" \t\r\n\"'").find(text[i]) == std::string_view::npos)
      break;
  }
  return i;
}

bool is_base64(char c) { return is_word(c) || c == '+' || c == '/' || c == '='; }

// Returns the end of the base64 lines that begin at `i`, or 0 if there are none. Headers may precede them ("Proc-Type:
// …").
size_t end_of_body(std::string_view text, size_t i) {
  constexpr size_t kLine = 16, kHeader = 120;
  size_t end = 0;
  for (int headers = 0;;) {
    const size_t begin = skip_blanks(text, end ? end : i);
    size_t stop = begin;
    while (stop < text.size() && is_base64(text[stop])) ++stop;
    if (stop - begin >= kLine) {
      end = stop;
      continue;
    }
    // Searches no further than a header may be long. Otherwise the time would be quadratic in a text with a marker
    // every few bytes and no line end.
    const std::string_view rest = text.substr(stop, kHeader);
    const size_t line = std::min(rest.find('\n'), rest.size());
    if (!end && headers < 4 && stop - begin + line < kHeader &&
        rest.substr(0, line).find(':') != std::string_view::npos) {
      ++headers;
      i = stop + line;
      continue;
    }
    // The last base64 line may be short. But a short word that is followed by a space belongs to the next sentence and
    // not to the key.
    const bool alone = stop == text.size() || skip_blanks(text, stop) > stop;
    const bool whole = stop < text.size() && text[stop] == ' ' ? false : alone;
    return end && stop > begin && whole ? stop : end;
  }
}

// Returns where the base64 lines that end at `end` begin; this is `end` itself if there are none.
size_t begin_of_body(std::string_view text, size_t end) {
  size_t begin = end;
  for (bool last = true;; last = false) {
    size_t stop = begin;
    while (stop > 0 && std::string_view(" \t\r\n\"'").find(text[stop - 1]) != std::string_view::npos) --stop;
    if (stop >= 2 && text[stop - 2] == '\\' && (text[stop - 1] == 'n' || text[stop - 1] == 'r')) stop -= 2;
    size_t start = stop;
    while (start > 0 && is_base64(text[start - 1])) --start;
    if (start > 0 && text[start - 1] == '\\' && start < stop && (text[start] == 'n' || text[start] == 'r')) ++start;
    if (start == stop || (!last && stop - start < 16)) return begin;
    begin = start;
  }
}

}  // namespace

Span propose_token(std::string_view text, size_t begin, size_t end) {
  for (size_t window = next_run_window(text, begin); window < end; window = next_run_window(text, window)) {
    const size_t window_end = std::min({text.size(), end, window + 256});
    for (size_t i = std::max(begin, window); i < window_end;) {
      if (!is_token_character(text[i])) {
        ++i;
        continue;
      }
      size_t stop = i;
      while (stop < text.size() && is_token_character(text[stop])) ++stop;
      size_t start = i;  // the run may begin before position i
      while (start > begin && is_token_character(text[start - 1])) --start;
      if (stop - start >= kShortestLabelled) return {start, stop};
      i = stop;
    }
    begin = window = window_end;
  }
  return {};
}

Span check_token(std::string_view text, Span run) {
  // If the search started inside the run, an earlier call has already checked the run.
  if (run.begin > 0 && is_token_character(text[run.begin - 1])) return {};
  if (!looks_random(text.substr(run.begin, run.end - run.begin), context_before(text, run.begin))) return {};
  for (int padding = 0; padding < 2 && run.end < text.size() && text[run.end] == '='; ++padding) ++run.end;
  return run;
}

Span check_private_key(std::string_view text, Span marker) {
  constexpr size_t kLongestKey = 32768;
  constexpr std::string_view kEnd = "-----END ";
  if (text.substr(marker.begin, kEnd.size()) == kEnd) {
    const size_t begin = begin_of_body(text, marker.begin);
    return begin == marker.begin ? Span{} : Span{begin, marker.end};
  }
  const std::string_view near = text.substr(marker.end, kLongestKey);
  // The next dashes belong to the END marker, unless the END marker is missing or cut off.
  const size_t dashes = near.find("-----");
  if (dashes != near.npos && near.substr(dashes, kEnd.size()) == kEnd) {
    const size_t close = near.find("-----", dashes + kEnd.size());
    if (close != near.npos && close - dashes < 80 &&
        near.substr(dashes, close - dashes).find("PRIVATE KEY") != near.npos)
      return {marker.begin, marker.end + close + 5};
  }
  const size_t end = end_of_body(text, marker.end);
  return end == 0 ? Span{} : Span{marker.begin, end};
}

}  // namespace specdec::data
