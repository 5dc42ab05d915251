// The patterns of redaction and their checks: checksums, number ranges, and characters that must not stand directly
// before or after a match.
#include "data/redact/detectors.h"

#include <arpa/inet.h>
#include <re2/re2.h>

#include <algorithm>
#include <string>

#include "base/error.h"

namespace specdec::data {

namespace {

char at(std::string_view text, size_t i) { return i < text.size() ? text[i] : '\0'; }
// Returns the character before `begin`, NUL at the start of the text.
char before(std::string_view text, size_t begin) { return begin == 0 ? '\0' : text[begin - 1]; }
bool is_one_of(char c, std::string_view set) { return c != '\0' && set.find(c) != std::string_view::npos; }

// The country codes of IBANs, each followed by the length of an IBAN of that country (ISO 13616 registry).
constexpr std::string_view kIbanLengths =
    "AD24AE23AL28AT20AZ28BA20BE16BG22BH22BI27BR29BY28CH21CR22CY28CZ24DE22DJ27DK18DO28EE20EG29ES24FI18FK18FO18FR27GB22GE"
    "22GI23GL18"
    "GR27GT28HN28HR21HU28IE22IL23IQ23IS26IT27JO30KW30KZ20LB28LC32LI21LT20LU20LV21LY25MC27MD24ME22MK19MN20MR27MT31MU30NI"
    "28NL18NO15"
    "OM23PK24PL28PS29PT25QA29RO24RS22RU33SA24SC31SD18SE24SI19SK24SM27SO23ST25SV28TL23TN24TR26UA29VA22VG24XK20YE30";

Span check_any(std::string_view, Span found) { return found; }

Span check_iban(std::string_view text, Span found) {
  if (is_word(before(text, found.begin))) return {};
  const auto upper = [](char c) { return c >= 'a' && c <= 'z' ? static_cast<char>(c - 32) : c; };
  const char country[] = {upper(text[found.begin]), upper(text[found.begin + 1]), '\0'};
  size_t length = 0;
  for (size_t i = 0; i + 4 <= kIbanLengths.size(); i += 4)
    if (kIbanLengths.substr(i, 2) == country)
      length = static_cast<size_t>((kIbanLengths[i + 2] - '0') * 10 + kIbanLengths[i + 3] - '0');
  std::string digits;
  size_t i = found.begin, numerals = 0;
  for (; i < found.end && digits.size() < length; ++i) {
    if (text[i] == ' ' || text[i] == '-') continue;
    digits += upper(text[i]);
    numerals += is_digit(text[i]);
  }
  // In every country at least two fifths of an IBAN's characters are digits. This check rejects ordinary words after
  // "no12", which would otherwise look like a Norwegian IBAN.
  if (length == 0 || digits.size() != length || is_word(at(text, i)) || 5 * numerals < 2 * length) return {};
  std::rotate(digits.begin(), digits.begin() + 4, digits.end());
  int rest = 0;
  for (const char c : digits) rest = is_digit(c) ? (rest * 10 + (c - '0')) % 97 : (rest * 100 + (c - 'A' + 10)) % 97;
  return rest == 1 ? Span{found.begin, i} : Span{};
}

// Returns true if a card number of this length may begin with these digits (issuer ranges of ISO/IEC 7812, as used by
// the large networks).
bool is_card_prefix(const std::string& d) {
  const int two = std::stoi(d.substr(0, 2)), four = std::stoi(d.substr(0, 4));
  switch (d.size()) {
    case 13:
      return d[0] == '4';
    case 14:
      return two == 30 || two == 36 || two == 38 || two == 39;
    case 15:
      return two == 34 || two == 37;
    case 16:
      return d[0] == '4' || d[0] == '6' || (two >= 50 && two <= 58) || two == 35 || (four >= 2221 && four <= 2720);
    default:
      return d[0] == '4' || d[0] == '6' || two == 50 || (two >= 56 && two <= 58);
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

Span check_card(std::string_view text, Span found) {
  const char previous = before(text, found.begin);
  if (is_word(previous) || previous == '.') return {};
  std::string digits;
  size_t end = 0, group = 0, points = 0;
  // Returns the longest prefix of the digit groups that is a card number. The groups after it may be something else,
  // such as the date in "4111 1111 1111 1111 12/29". A list such as "5-1-12-9-20" is no card number, because every
  // group of a card number has at least three digits. Digits with exactly one full stop are a decimal number.
  for (size_t i = found.begin; i < found.end; ++i) {
    if (!is_digit(text[i])) {
      if (is_digit(text[i - 1]) && group < 3) break;
      points += text[i] == '.';
      group = 0;
      continue;
    }
    digits += text[i];
    ++group;
    // If a full stop and a digit follow, the digits so far are part of a decimal number.
    const bool goes_on = is_word(at(text, i + 1)) || (at(text, i + 1) == '.' && is_digit(at(text, i + 2)));
    if (digits.size() >= 13 && group >= 3 && points != 1 && !goes_on && is_card_prefix(digits) && luhn(digits))
      end = i + 1;
  }
  return {found.begin, end};
}

// Rejects a US social security number whose area, group or serial number is never issued.
Span check_ssn(std::string_view text, Span found) {
  const char previous = before(text, found.begin), next = at(text, found.end);
  if (is_word(previous) || is_one_of(previous, "-.+/$#") || is_word(next) || next == '-' ||
      (next == '.' && is_digit(at(text, found.end + 1))))
    return {};
  const std::string_view area = text.substr(found.begin, 3);
  if (area == "000" || area == "666" || area[0] == '9' || text.substr(found.begin + 4, 2) == "00" ||
      text.substr(found.begin + 7, 4) == "0000")
    return {};
  if (text[found.begin + 3] != text[found.begin + 6]) return {};
  return found;
}

Span check_ipv4(std::string_view text, Span found) {
  const char previous = before(text, found.begin), next = at(text, found.end);
  if (is_word(previous) || previous == '.' || is_word(next) || (next == '.' && is_digit(at(text, found.end + 1))))
    return {};
  const std::string address(text.substr(found.begin, found.end - found.begin));
  in_addr parsed;
  if (inet_pton(AF_INET, address.c_str(), &parsed) != 1) return {};
  return address == "127.0.0.1" || address == "0.0.0.0" || address == "255.255.255.255" ? Span{} : found;
}

Span check_ipv6(std::string_view text, Span found) {
  const char previous = before(text, found.begin), next = at(text, found.end);
  if (is_word(previous) || previous == ':' || is_word(next) || next == ':') return {};
  const std::string address(text.substr(found.begin, found.end - found.begin));
  in6_addr parsed;
  if (inet_pton(AF_INET6, address.c_str(), &parsed) != 1) return {};
  // "ab::cd" is an address and also a C++ name, so require a full first group and a digit somewhere, or four groups.
  int groups = 0;
  for (size_t i = 0; i < address.size(); ++i) groups += address[i] != ':' && (i == 0 || address[i - 1] == ':');
  const bool digit = std::any_of(address.begin(), address.end(), is_digit);
  return groups >= 4 || (digit && groups >= 2 && address.find(':') == 4) ? found : Span{};
}

Span check_phone(std::string_view text, Span found) {
  const char previous = before(text, found.begin), next = at(text, found.end);
  if (is_word(previous) || is_one_of(previous, ".-+/$#")) return {};
  if (is_word(next) || (is_one_of(next, "-./:") && is_digit(at(text, found.end + 1)))) return {};
  const auto digits = std::count_if(text.begin() + found.begin, text.begin() + found.end, is_digit);
  const bool national = text[first_digit(text, found.begin)] == '0';
  // Rejects a candidate that is a group of digits in the middle of a longer number ("DE89 3704 0044 0532 …").
  if (text[found.begin] == '0' && previous == ' ' && found.begin >= 2 && is_digit(text[found.begin - 2])) return {};
  return digits >= (national ? 8 : 9) && digits <= 15 ? found : Span{};
}

// Returns the password of scheme://user:password@host.
Span check_url_password(std::string_view text, Span found) {
  const size_t user = text.find("://", found.begin) + 3;
  return {text.find(':', user) + 1, found.end - 1};
}

std::function<Span(std::string_view, size_t, size_t)> pattern(const char* regex) {
  const auto compiled = std::make_shared<const RE2>(regex, RE2::Quiet);
  if (!compiled->ok())
    throw Error(ErrorKind::kInternal, std::string("redaction pattern ") + regex + ": " + compiled->error());
  return [compiled](std::string_view text, size_t begin, size_t end) -> Span {
    re2::StringPiece match;
    if (!compiled->Match(re2::StringPiece(text.data(), text.size()), begin, end, RE2::UNANCHORED, &match, 1) ||
        match.empty())
      return {};
    const auto found = static_cast<size_t>(match.data() - text.data());
    return {found, found + match.size()};
  };
}

bool has_run(const TextFacts& facts, std::string_view) { return facts.run; }

std::vector<Detector> make_detectors() {
  using Holds = Detector::Holds;
  std::vector<Detector> list;
  const auto add = [&list](const char* name, const char* tag, Holds holds,
                           bool (*possible)(const TextFacts&, std::string_view), Span (*check)(std::string_view, Span),
                           const char* regex) { list.push_back({name, tag, holds, possible, pattern(regex), check}); };
  add(
      "key", "[KEY]", Holds::kAnything,
      [](const TextFacts&, std::string_view t) { return t.find("PRIVATE KEY") != t.npos; }, check_private_key,
      R"(-----(?:BEGIN|END) [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----)");
  // Webhook addresses: anyone who knows one can write to the channel.
  add(
      "key", "[KEY]", Holds::kAnything,
      [](const TextFacts& f, std::string_view t) { return f.run && t.find("://") != t.npos; }, check_any,
      R"(https://(?:hooks\.slack\.com/(?:services|workflows|triggers)/[A-Za-z0-9/_\-]{8,}|)"
      R"((?:[a-z]+\.)?discord(?:app)?\.com/api/webhooks/\d+/[A-Za-z0-9_\-]{20,})"
      R"(|[a-z0-9\-]+\.webhook\.office\.com/[A-Za-z0-9/@_\-]{20,}|)"
      R"(chat\.googleapis\.com/v1/spaces/[A-Za-z0-9_\-]+/messages\?[A-Za-z0-9&=_%\-]{20,}))");
  // Prefixes of keys, as published by the issuers: OpenAI and compatible services, AWS, GitHub, GitLab, Slack, Google,
  // Hugging Face, npm, PyPI, Stripe, SendGrid, DigitalOcean, Telegram, Azure's client secrets, Shopify, Vault,
  // Databricks, Atlassian, NVIDIA, Groq, Docker, and the encryption tool age.
  add("key", "[KEY]", Holds::kAnything, has_run, check_any,
      R"(\b(?:sk-[A-Za-z0-9_\-]{20,}|(?:AKIA|ASIA)[0-9A-Z]{16}\b|gh[pousr]_[A-Za-z0-9]{30,}|)"
      R"(github_pat_[A-Za-z0-9_]{22,}|glpat-[A-Za-z0-9_\-]{20,})"
      R"(|(?:xox[abeprs]|xapp)-[A-Za-z0-9\-]{10,}|AIza[0-9A-Za-z_\-]{35}|ya29\.[A-Za-z0-9_\-]{20,}|)"
      R"(GOCSPX-[A-Za-z0-9_\-]{20,}|hf_[A-Za-z0-9]{30,}|npm_[A-Za-z0-9]{36})"
      R"(|pypi-[A-Za-z0-9_\-]{32,}|(?:sk|rk|pk)_(?:live|test)_[0-9A-Za-z]{16,}|SG\.[A-Za-z0-9_\-]{16,)"
      R"(}\.[A-Za-z0-9_\-]{16,}|dop_v1_[a-f0-9]{64})"
      R"(|\d{8,10}:[A-Za-z0-9_\-]{35}\b|[A-Za-z0-9_~.\-]{3}\dQ~[A-Za-z0-9_~.\-]{31,34}|shp(?:at|ca|pa|)"
      R"(ss)_[a-fA-F0-9]{32}|hvs\.[A-Za-z0-9_\-]{24,}|dapi[a-f0-9]{32})"
      R"(|ATATT3[A-Za-z0-9_\-=]{30,}|nvapi-[A-Za-z0-9_\-]{30,}|gsk_[A-Za-z0-9]{30,}|dckr_pat_[A-Za-z0-9_\-]{20,)"
      R"(}|AGE-SECRET-KEY-1[0-9A-Z]{30,}))");
  add(
      "jwt", "[JWT]", Holds::kAnything,
      [](const TextFacts& f, std::string_view t) { return f.run && t.find("eyJ") != t.npos; }, check_any,
      R"(\beyJ[A-Za-z0-9_\-]{8,}\.eyJ[A-Za-z0-9_\-]{8,}\.[A-Za-z0-9_\-]{8,})");
  add(
      "key", "[KEY]", Holds::kAnything,
      [](const TextFacts& f, std::string_view t) { return f.at_sign && t.find("://") != t.npos; }, check_url_password,
      R"([A-Za-z][A-Za-z0-9+.\-]{1,20}://[^\s/:@"'<>]{0,64}:[^\s/@"'<>]{3,128}@)");
  add(
      "email", "[EMAIL]", Holds::kAtSign, [](const TextFacts& f, std::string_view) { return f.at_sign; }, check_any,
      R"([\pL\pN._%+\-]+@(?:[\pL\pN\-]+\.)+\pL{2,24})");
  add(
      "iban", "[IBAN]", Holds::kDigit, [](const TextFacts& f, std::string_view) { return f.digits >= 5; }, check_iban,
      R"([A-Za-z]{2}\d{2}(?:[ \-]?[A-Za-z0-9]){11,30})");
  add(
      "card", "[CARD]", Holds::kDigit, [](const TextFacts& f, std::string_view) { return f.digits >= 13; }, check_card,
      R"(\d(?:(?: - |[ .\-])?\d){12,18})");
  add(
      "ssn", "[SSN]", Holds::kDigit, [](const TextFacts& f, std::string_view) { return f.digits >= 9; }, check_ssn,
      R"(\d{3}[ \-]\d{2}[ \-]\d{4})");
  add(
      "ip", "[IP]", Holds::kAnything,
      [](const TextFacts& f, std::string_view) { return f.colons >= 2 && f.digits >= 1; }, check_ipv6,
      R"([0-9A-Fa-f]{0,4}(?::[0-9A-Fa-f]{0,4}){2,7}(?:(?:\.\d{1,3}){3})?)");
  add(
      "ip", "[IP]", Holds::kDigit, [](const TextFacts& f, std::string_view) { return f.digits >= 4; }, check_ipv4,
      R"((?:\d{1,3}\.){3}\d{1,3})");
  add(
      "phone", "[PHONE]", Holds::kDigit, [](const TextFacts& f, std::string_view) { return f.digits >= 8; },
      check_phone,
      R"(\+\d{1,3}[ .\-/]?(?:\(\d{1,4}\)[ .\-/]?)?\d{1,5}(?:[ .\-/]?\d{1,5}){1,5}|)"
      R"((?:1[ .\-])?(?:\([2-9]\d\d\) ?|[2-9]\d\d[.\-])\d{3}[ .\-]\d{4})"
      R"(|\(0\d{1,5}\)[ /\-]?\d{2,}(?:[ /\-]?\d{2,}){0,3}|00[1-9]\d{0,2}[ .\-/](?:\(0\)[ ]?)?\d{1,)"
      R"(5}(?:[ .\-/]?\d{2,5}){1,4})"
      R"(|0[1-9](?:[ .]\d{2}){4}|0\d{1,5}[ /\-]\d{3,}(?:[ \-]?\d{2,}){0,3})");
  list.push_back({"key", "[KEY]", Holds::kAnything, has_run, propose_token, check_token, /*in_ids=*/false,
                  /*candidates_are_whole=*/true});
  return list;
}

}  // namespace

const std::vector<Detector>& detectors() {
  static const auto* const all = new std::vector<Detector>(make_detectors());
  return *all;
}

}  // namespace specdec::data
