#include "data/redact.h"

#include <arpa/inet.h>
#include <re2/re2.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "base/sha256.h"
#include "data/row_json.h"

namespace specdec::data {

namespace {

// Cheap facts about a text: most texts can be passed by most detectors without running their patterns.
struct Profile {
  size_t digits = 0, colons = 0;
  bool at_sign = false;
  bool run = false;  // of 14 or more characters [A-Za-z0-9_.-], what keys and tokens are made of
};

constexpr size_t kLongRun = 14, kWindow = 256;
constexpr bool in_run(char ch) {
  const auto c = static_cast<uint8_t>(ch);
  return (static_cast<uint8_t>((c | 0x20) - 'a') < 26) | (static_cast<uint8_t>(c - '0') < 10) | (c == '_') | (c == '-') | (c == '.');
}

// Whether 14 characters of a run stand together, by doubling: one, two, four, eight, fourteen. Loops of one length over a window, which
// the compiler turns into vector instructions for the machine at hand.
__attribute__((target_clones("avx2", "default"))) bool window_has_run(const char* text) {
  uint8_t together[kWindow + 32] = {};
  // in_run in four loops: all of it in one becomes a table look-up a byte.
  for (size_t i = 0; i < kWindow; ++i) together[i] = static_cast<uint8_t>((text[i] | 0x20) - 'a') < 26;
  for (size_t i = 0; i < kWindow; ++i) together[i] |= static_cast<uint8_t>(text[i] - '0') < 10;
  for (size_t i = 0; i < kWindow; ++i) together[i] |= static_cast<uint8_t>(text[i] - '-') < 2;
  for (size_t i = 0; i < kWindow; ++i) together[i] |= text[i] == '_';
  for (size_t i = 0; i < kWindow; ++i) together[i] &= together[i + 1];
  for (size_t i = 0; i < kWindow; ++i) together[i] &= together[i + 2];
  for (size_t i = 0; i < kWindow; ++i) together[i] &= together[i + 4];
  uint8_t any = 0;
  for (size_t i = 0; i < kWindow; ++i) any |= together[i] & together[i + 6];
  return any != 0;
}

bool has_long_run(std::string_view text) {
  if (text.size() < kWindow) {
    char padded[kWindow] = {};
    std::memcpy(padded, text.data(), text.size());
    return text.size() >= kLongRun && window_has_run(padded);
  }
  for (size_t begin = 0; begin + kWindow < text.size(); begin += kWindow - kLongRun + 1)
    if (window_has_run(text.data() + begin)) return true;
  return window_has_run(text.data() + text.size() - kWindow);
}

// Adds the digits, colons and at signs of the blocks to `counts`, in this order; blocks of one size, as above.
constexpr size_t kCountBlock = 64;
__attribute__((target_clones("avx2", "default"))) void count_blocks(const char* text, size_t blocks, uint32_t* counts) {
  for (size_t b = 0; b < blocks; ++b) {
    uint8_t digits = 0, colons = 0, at_signs = 0;
    for (size_t i = 0; i < kCountBlock; ++i) {
      const auto c = static_cast<uint8_t>(text[kCountBlock * b + i]);
      digits = static_cast<uint8_t>(digits + (static_cast<uint8_t>(c - '0') < 10));
      colons = static_cast<uint8_t>(colons + (c == ':'));
      at_signs = static_cast<uint8_t>(at_signs + (c == '@'));
    }
    counts[0] += digits;
    counts[1] += colons;
    counts[2] += at_signs;
  }
}

__attribute__((target_clones("avx2", "default"))) bool block_has_digit(const char* text) {
  uint8_t any = 0;
  for (size_t i = 0; i < kCountBlock; ++i) any |= static_cast<uint8_t>(text[i] - '0') < 10;
  return any != 0;
}

Profile profile(std::string_view text) {
  const size_t blocks = text.size() / kCountBlock;
  uint32_t counts[3] = {};
  count_blocks(text.data(), blocks, counts);
  for (const char c : text.substr(kCountBlock * blocks)) {
    counts[0] += c >= '0' && c <= '9';
    counts[1] += c == ':';
    counts[2] += c == '@';
  }
  return {counts[0], counts[1], counts[2] > 0, has_long_run(text)};
}

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_word(char c) { return in_run(c) && c != '.' && c != '-'; }
char at(std::string_view text, size_t i) { return i < text.size() ? text[i] : '\0'; }
// The character before `begin`, NUL at the start of the text.
char before(std::string_view text, size_t begin) { return begin == 0 ? '\0' : text[begin - 1]; }

// ISO 13616 registry: country and length.
constexpr std::string_view kIbanLengths =
    "AD24AE23AL28AT20AZ28BA20BE16BG22BH22BI27BR29BY28CH21CR22CY28CZ24DE22DJ27DK18DO28EE20EG29ES24FI18FK18FO18FR27GB22GE22GI23GL18"
    "GR27GT28HN28HR21HU28IE22IL23IQ23IS26IT27JO30KW30KZ20LB28LC32LI21LT20LU20LV21LY25MC27MD24ME22MK19MN20MR27MT31MU30NI28NL18NO15"
    "OM23PK24PL28PS29PT25QA29RO24RS22RU33SA24SC31SD18SE24SI19SK24SM27SO23ST25SV28TL23TN24TR26UA29VA22VG24XK20YE30";

// Each check looks at the candidate [begin, end) of `text` and returns where the find ends, or 0 if it is none.
using Check = size_t (*)(std::string_view text, size_t begin, size_t end);

size_t check_any(std::string_view, size_t, size_t end) { return end; }

size_t check_iban(std::string_view text, size_t begin, size_t end) {
  if (is_word(before(text, begin))) return 0;
  size_t length = 0;
  for (size_t i = 0; i + 4 <= kIbanLengths.size(); i += 4)
    if (kIbanLengths.substr(i, 2) == text.substr(begin, 2)) length = static_cast<size_t>((kIbanLengths[i + 2] - '0') * 10 + kIbanLengths[i + 3] - '0');
  std::string digits;
  size_t i = begin;
  for (; i < end && digits.size() < length; ++i)
    if (text[i] != ' ') digits += text[i];
  if (length == 0 || digits.size() != length || is_word(at(text, i))) return 0;
  std::rotate(digits.begin(), digits.begin() + 4, digits.end());
  int rest = 0;
  for (const char c : digits) rest = is_digit(c) ? (rest * 10 + (c - '0')) % 97 : (rest * 100 + (c - 'A' + 10)) % 97;
  return rest == 1 ? i : 0;
}

// Issuer ranges by length (ISO/IEC 7812 as used by the large networks).
bool is_card_prefix(const std::string& d) {
  const int two = std::stoi(d.substr(0, 2)), four = std::stoi(d.substr(0, 4));
  switch (d.size()) {
    case 13: return d[0] == '4';
    case 14: return two == 30 || two == 36 || two == 38 || two == 39;
    case 15: return two == 34 || two == 37;
    case 16: return d[0] == '4' || d[0] == '6' || (two >= 50 && two <= 58) || two == 35 || (four >= 2221 && four <= 2720);
    default: return d[0] == '4' || d[0] == '6' || two == 50 || (two >= 56 && two <= 58);
  }
}

bool luhn(const std::string& digits) {
  int sum = 0;
  for (size_t i = 0; i < digits.size(); ++i) {
    int d = digits[digits.size() - 1 - i] - '0';
    if (i % 2 == 1) d = d > 4 ? 2 * d - 9 : 2 * d;
    sum += d;
  }
  return sum % 10 == 0;
}

size_t check_card(std::string_view text, size_t begin, size_t end) {
  const char previous = before(text, begin);
  if (is_word(previous) || previous == '.') return 0;
  std::string digits;
  size_t found = 0, group = 0;
  // The longest run of groups that is a card: "4111 1111 1111 1111 12/29" has more digits after it. Groups are of three digits or
  // more: "5-1-12-9-20" is a list.
  for (size_t i = begin; i < end; ++i) {
    if (!is_digit(text[i])) {
      if (group < 3) return 0;
      group = 0;
      continue;
    }
    digits += text[i];
    ++group;
    if (digits.size() >= 13 && group >= 3 && !is_word(at(text, i + 1)) && is_card_prefix(digits) && luhn(digits)) found = i + 1;
  }
  return found;
}

size_t check_ipv4(std::string_view text, size_t begin, size_t end) {
  const char previous = before(text, begin);
  if (is_word(previous) || previous == '.' || is_word(at(text, end)) || (at(text, end) == '.' && is_digit(at(text, end + 1)))) return 0;
  const std::string address(text.substr(begin, end - begin));
  in_addr parsed;
  if (inet_pton(AF_INET, address.c_str(), &parsed) != 1) return 0;
  return address == "127.0.0.1" || address == "0.0.0.0" || address == "255.255.255.255" ? 0 : end;
}

size_t check_ipv6(std::string_view text, size_t begin, size_t end) {
  const char previous = before(text, begin);
  if (is_word(previous) || previous == ':' || is_word(at(text, end)) || at(text, end) == ':') return 0;
  std::string address(text.substr(begin, end - begin));
  in6_addr parsed;
  if (inet_pton(AF_INET6, address.c_str(), &parsed) != 1) return 0;
  // "ab::cd" is an address and a C++ name: ask for a full first group with a digit in the address, or four groups.
  int groups = 0;
  for (size_t i = 0; i < address.size(); ++i) groups += address[i] != ':' && (i == 0 || address[i - 1] == ':');
  const bool digit = std::any_of(address.begin(), address.end(), is_digit);
  return groups >= 4 || (digit && groups >= 2 && address.find(':') == 4) ? end : 0;
}

size_t check_phone(std::string_view text, size_t begin, size_t end) {
  const char previous = before(text, begin), next = at(text, end);
  if (is_word(previous) || (previous != '\0' && std::string_view(".-+/$#").find(previous) != std::string_view::npos)) return 0;
  if (is_word(next) || ((next == '-' || next == '.' || next == '/' || next == ':') && is_digit(at(text, end + 1)))) return 0;
  const auto digits = std::count_if(text.begin() + begin, text.begin() + end, is_digit);
  const bool national = text[begin] == '0';
  // A group in the middle of a longer number ("DE89 3704 0044 0532 …") is no number of its own.
  if (national && previous == ' ' && begin >= 2 && is_digit(text[begin - 2])) return 0;
  return digits >= (national ? 8 : 9) && digits <= (national ? 13 : 15) ? end : 0;
}

// What every find of a detector holds: the rest of the text is not searched.
enum class Holds { kAnything, kDigit, kAtSign };

// No find of a detector that needs digits begins or ends further than this from one (IBAN with spaces: 41, IPv6: 51 with digits inside).
constexpr size_t kDigitReach = 56;

struct Detector {
  const char *name, *tag;
  Holds holds;
  bool (*possible)(const Profile&, std::string_view text);
  Check check;
  RE2 pattern;
};

const std::vector<std::unique_ptr<Detector>>& detectors() {
  static const auto* const all = [] {
    auto* list = new std::vector<std::unique_ptr<Detector>>;
    const auto add = [list](const char* name, const char* tag, Holds holds, bool (*possible)(const Profile&, std::string_view), Check check, const char* pattern) {
      list->push_back(std::unique_ptr<Detector>(new Detector{name, tag, holds, possible, check, RE2(pattern, RE2::Quiet)}));
      if (!list->back()->pattern.ok()) throw Error(ErrorKind::kInternal, std::string("redaction pattern ") + name + ": " + list->back()->pattern.error());
    };
    add("key", "[KEY]", Holds::kAnything, [](const Profile&, std::string_view t) { return t.find("PRIVATE KEY") != t.npos; }, check_any,
        R"(-----BEGIN [A-Z ]*PRIVATE KEY-----(?s:.*?)-----END [A-Z ]*PRIVATE KEY-----)");
    // Prefixes as published by the issuers: OpenAI and alike, AWS, GitHub, GitLab, Slack, Google, Hugging Face, npm, PyPI, Stripe,
    // SendGrid, DigitalOcean.
    add("key", "[KEY]", Holds::kAnything, [](const Profile& p, std::string_view) { return p.run; }, check_any,
        R"(\b(?:sk-[A-Za-z0-9_\-]{20,}|(?:AKIA|ASIA)[0-9A-Z]{16}\b|gh[pousr]_[A-Za-z0-9]{30,}|github_pat_[A-Za-z0-9_]{22,}|glpat-[A-Za-z0-9_\-]{20,})"
        R"(|xox[abeprs]-[A-Za-z0-9\-]{10,}|AIza[0-9A-Za-z_\-]{35}|ya29\.[A-Za-z0-9_\-]{20,}|hf_[A-Za-z0-9]{30,}|npm_[A-Za-z0-9]{36})"
        R"(|pypi-[A-Za-z0-9_\-]{32,}|(?:sk|rk|pk)_(?:live|test)_[0-9A-Za-z]{16,}|SG\.[A-Za-z0-9_\-]{16,}\.[A-Za-z0-9_\-]{16,}|dop_v1_[a-f0-9]{64}))");
    add("jwt", "[JWT]", Holds::kAnything, [](const Profile& p, std::string_view t) { return p.run && t.find("eyJ") != t.npos; }, check_any,
        R"(\beyJ[A-Za-z0-9_\-]{8,}\.eyJ[A-Za-z0-9_\-]{8,}\.[A-Za-z0-9_\-]{8,})");
    add("email", "[EMAIL]", Holds::kAtSign, [](const Profile& p, std::string_view) { return p.at_sign; }, check_any,
        R"([\pL\pN._%+\-]+@(?:[\pL\pN\-]+\.)+\pL{2,24})");
    add("iban", "[IBAN]", Holds::kDigit, [](const Profile& p, std::string_view) { return p.digits >= 5; }, check_iban,
        R"([A-Z]{2}\d{2}(?: ?[A-Z0-9]){11,30})");
    add("card", "[CARD]", Holds::kDigit, [](const Profile& p, std::string_view) { return p.digits >= 13; }, check_card, R"(\d(?:[ \-]?\d){12,18})");
    add("ip", "[IP]", Holds::kAnything, [](const Profile& p, std::string_view) { return p.colons >= 2 && p.digits >= 1; }, check_ipv6,
        R"([0-9A-Fa-f]{0,4}(?::[0-9A-Fa-f]{0,4}){2,7}(?:(?:\.\d{1,3}){3})?)");
    add("ip", "[IP]", Holds::kDigit, [](const Profile& p, std::string_view) { return p.digits >= 4; }, check_ipv4, R"((?:\d{1,3}\.){3}\d{1,3})");
    add("phone", "[PHONE]", Holds::kDigit, [](const Profile& p, std::string_view) { return p.digits >= 8; }, check_phone,
        R"(\+\d{1,3}[ .\-/]?(?:\(\d{1,4}\)[ .\-/]?)?\d{1,5}(?:[ .\-/]?\d{1,5}){1,5}|(?:1[ .\-])?(?:\([2-9]\d\d\) ?|[2-9]\d\d[.\-])\d{3}[ .\-]\d{4})"
        R"(|0[1-9](?:[ .]\d{2}){4}|0\d{1,5}[ /\-]\d{3,}(?:[ \-]?\d{2,}){0,3})");
    return list;
  }();
  return *all;
}

size_t first_digit(std::string_view text, size_t i) {
  while (i + kCountBlock <= text.size() && !block_has_digit(text.data() + i)) i += kCountBlock;
  while (i < text.size() && !is_digit(text[i])) ++i;
  return i;
}

// What the pattern of addresses is made of; all of a character beyond ASCII counts.
bool in_address(char c) { return is_word(c) || c == '.' || c == '-' || c == '%' || c == '+' || c == '@' || (c & 0x80); }

// The next stretch of text that the detector has to search, from `position` on: all of it, what lies around the next digits, or the
// run of an address's characters around the next at sign.
std::pair<size_t, size_t> next_stretch(const Detector& detector, std::string_view text, size_t position) {
  if (detector.holds == Holds::kAnything) return {position, text.size()};
  size_t begin, end;
  if (detector.holds == Holds::kAtSign) {
    begin = end = std::min(text.find('@', position), text.size());
    while (begin > position && in_address(text[begin - 1])) --begin;
    while (end < text.size() && in_address(text[end])) ++end;
    return {begin, end};
  }
  const size_t first = first_digit(text, position);
  if (first == text.size()) return {first, first};
  end = first;
  for (size_t i = first; i < std::min(text.size(), end + 2 * kDigitReach); ++i)
    if (is_digit(text[i])) end = i;
  begin = std::max(position, first - std::min(first, kDigitReach));
  return {begin, std::min(text.size(), end + kDigitReach)};
}

// Past the character, not into the middle of a UTF-8 sequence.
size_t after_character(std::string_view text, size_t i) {
  for (++i; i < text.size() && (static_cast<unsigned char>(text[i]) & 0xC0) == 0x80;) ++i;
  return i;
}

// Replaces every find of one detector; the text is copied only when there is one.
int64_t replace_finds(const Detector& detector, std::string& text) {
  const std::string_view view = text;
  std::string out;
  size_t copied = 0, position = 0;
  int64_t finds = 0;
  re2::StringPiece match;
  while (position < view.size()) {
    const auto [begin, end] = next_stretch(detector, view, position);
    position = begin;
    while (position < end && detector.pattern.Match(re2::StringPiece(view.data(), view.size()), position, end, RE2::UNANCHORED, &match, 1)) {
      const auto at = static_cast<size_t>(match.data() - view.data());
      const size_t stop = match.empty() ? 0 : detector.check(view, at, at + match.size());
      if (stop == 0) {
        position = after_character(view, at);
        continue;
      }
      out.append(view.substr(copied, at - copied)).append(detector.tag);
      copied = position = stop;
      ++finds;
    }
    position = std::max(position, end);
  }
  if (finds) {
    out.append(view.substr(copied));
    text = std::move(out);
  }
  return finds;
}

// Names stay different where they were: what holds a find becomes a digest, the same in every row.
void redact_name(std::string& name) {
  RedactionCounts finds;
  redact(name, finds);
  if (!finds.empty()) name = "redacted-" + sha256_hex(name).substr(0, 16);
}

// Every value of JSON that is kept as text, a number with a find as text then. Keys are the program's, but below "arguments" the
// model wrote them; two that become the same are numbered.
void redact_values(nlohmann::ordered_json& value, bool with_keys, RedactionCounts& counts) {
  if (value.is_string()) {
    value = redact(value.get_ref<const std::string&>(), counts);
  } else if (value.is_number()) {
    const std::string digits = value.dump();
    if (std::string text = redact(digits, counts); text != digits) value = std::move(text);
  } else if (value.is_array()) {
    for (auto& item : value) redact_values(item, with_keys, counts);
  } else if (value.is_object()) {
    auto made = nlohmann::ordered_json::object();
    std::map<std::string, int> last_number;
    for (auto& [name, item] : value.get_ref<nlohmann::ordered_json::object_t&>()) {
      redact_values(item, with_keys || name == "arguments", counts);
      const std::string key = with_keys ? redact(name, counts) : name;
      std::string unique = key;
      if (key != name)
        while (made.contains(unique) || value.contains(unique)) unique = key + "_" + std::to_string(++last_number.try_emplace(key, 1).first->second);
      made[unique] = std::move(item);
    }
    value = std::move(made);
  }
}

void redact_json(std::string& json, const char* what, RedactionCounts& counts) {
  if (json.empty()) return;
  auto list = parse_ordered_json(json, what);
  for (auto& item : list) {
    std::string* id = item.is_object() && item.contains("id") && item["id"].is_string() ? &item["id"].get_ref<std::string&>() : nullptr;
    std::string named = id ? std::exchange(*id, "") : "";
    redact_values(item, false, counts);
    redact_name(named);
    if (id) item["id"] = std::move(named);
  }
  json = list.dump();
  if (json.size() > kMaxOrderedBytes)
    throw Error(ErrorKind::kData, std::string(what) + ": " + std::to_string(json.size()) + " bytes after redaction, the limit is " + std::to_string(kMaxOrderedBytes));
}

}  // namespace

std::string redact(std::string_view input, RedactionCounts& counts) {
  std::string text(input);
  const Profile facts = profile(input);
  for (const auto& detector : detectors()) {
    if (!detector->possible(facts, text)) continue;
    if (const int64_t n = replace_finds(*detector, text)) counts[detector->name] += n;
  }
  return text;
}

void redact_record(TrafficRecord& record, RedactionCounts& counts) {
  for (ChatMessage& m : record.messages) {
    m.content = redact(m.content, counts);
    m.name = redact(m.name, counts);
    redact_name(m.tool_call_id);
    redact_json(m.tool_calls, "tool_calls", counts);
  }
  redact_json(record.tools, "tools", counts);
  for (std::string* field : {&record.prompt, &record.response, &record.text})
    if (!field->empty()) *field = redact(*field, counts);
  redact_name(record.id);
  redact_name(record.conversation);
}

}  // namespace specdec::data
