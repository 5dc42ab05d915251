#include "base/schema/acceptance_record.h"

#include <simdjson.h>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace specdec {

namespace {

constexpr size_t kMaxPositions = 8, kMaxLineBytes = 300, kMaxReadBytes = 4096;
constexpr int64_t kMaxOfRecord = int64_t{1} << 40;

// Sums of the positions from `last` on go into `last`.
template <class T>
std::vector<T> folded(const std::vector<T>& x, size_t positions) {
  std::vector<T> out(x.begin(), x.begin() + static_cast<std::ptrdiff_t>(std::min(x.size(), positions)));
  for (size_t i = positions; i < x.size(); ++i) out.back() += x[i];
  return out;
}

Json to_json(const AcceptanceRecord& r, size_t positions) {
  const AcceptanceCounts& c = r.counts;
  Json overlaps = Json::array();
  for (double sum : folded(c.overlap_sum_at, positions)) overlaps.push_back(std::llround(sum * 1000));
  Json json = {{"schema", "specdec.acceptance/" + std::to_string(AcceptanceRecord::kVersion)},
          {"t", r.time},
          {"s", r.segment},
          {"T", std::round(r.temperature * 1000) / 1000},
          {"q", r.draft},
          {"p", r.target},
          {"n0", c.plain_steps},
          {"D", c.drafted},
          {"e", c.emitted},
          {"r", folded(c.reached_at, positions)},
          {"a", folded(c.accepted_at, positions)},
          {"o", overlaps}};
  if (r.constrained) json["g"] = true;
  return json;
}

std::vector<int64_t> counts_of(const Json& object, const char* key, int64_t high, const std::string& where) {
  std::vector<int64_t> out;
  for (const Json& item : json_array(object, key, kMaxPositions, where, ErrorKind::kData))
    out.push_back(json_int(Json{{key, item}}, key, 0, high, where, ErrorKind::kData));
  return out;
}

using Element = simdjson::dom::element;

bool copy(const Element& from, std::string& to) {
  std::string_view text;
  if (from.get(text) != simdjson::SUCCESS) return false;
  to = text;
  return true;
}

bool copy(const Element& from, int64_t& to) { return from.get(to) == simdjson::SUCCESS && to >= 0; }

template <class T>
bool copy(const Element& from, std::vector<T>& to, int64_t unit) {
  simdjson::dom::array items;
  if (from.get(items) != simdjson::SUCCESS || items.size() > kMaxPositions) return false;
  to.reserve(items.size());
  for (const Element item : items) {
    int64_t n = 0;
    if (!copy(item, n) || n > kMaxOfRecord * unit) return false;
    to.push_back(static_cast<T>(n) / static_cast<T>(unit));
  }
  return true;
}

// False for whatever is not plainly right: the slow reader words the error.
bool read_fast(std::string_view line, AcceptanceRecord& r) {
  static const std::string schema = "specdec.acceptance/" + std::to_string(AcceptanceRecord::kVersion);
  thread_local simdjson::dom::parser parser;
  simdjson::dom::object root;
  if (line.size() > kMaxReadBytes || parser.parse(line.data(), line.size()).get(root) != simdjson::SUCCESS) return false;
  AcceptanceCounts& c = r.counts;
  std::string name;
  unsigned seen = 0;
  for (const auto& [key, value] : root) {
    if (key == "schema") {
      if (!copy(value, name) || name != schema || (seen & 1)) return false;
      seen |= 1;
      continue;
    }
    if (key.size() != 2 && key.size() != 1) return false;
    const size_t at = std::string_view("tsTqpDerao").find(key[0]);
    const bool plain = key == "n0", constrained = key == "g";
    if (!plain && !constrained && (key.size() != 1 || at == std::string_view::npos)) return false;
    const unsigned bit = plain ? 2u : constrained ? 4u : 8u << at;
    if (seen & bit) return false;
    seen |= bit;
    bool ok = false;
    switch (key[0]) {
      case 't': ok = copy(value, r.time); break;
      case 's': ok = copy(value, r.segment); break;
      case 'T': ok = value.get(r.temperature) == simdjson::SUCCESS; break;
      case 'q': ok = copy(value, r.draft); break;
      case 'p': ok = copy(value, r.target); break;
      case 'n': ok = copy(value, c.plain_steps) && c.plain_steps <= kMaxOfRecord; break;
      case 'D': ok = copy(value, c.drafted) && c.drafted <= kMaxOfRecord; break;
      case 'e': ok = copy(value, c.emitted) && c.emitted <= kMaxOfRecord; break;
      case 'r': ok = copy(value, c.reached_at, 1); break;
      case 'a': ok = copy(value, c.accepted_at, 1); break;
      case 'o': ok = copy(value, c.overlap_sum_at, 1000); break;
      case 'g': ok = value.get(r.constrained) == simdjson::SUCCESS; break;
    }
    if (!ok) return false;
  }
  return (seen | 4u) == (8u << 10) - 1;   // every key but "g"
}

AcceptanceRecord read_slowly(std::string_view line, const std::string& where) {
  const Json root = parse_json(line, where, ErrorKind::kData, {.max_bytes = kMaxReadBytes, .max_depth = 4});
  require_schema(root, "acceptance", AcceptanceRecord::kVersion, where);
  AcceptanceRecord r;
  r.time = json_int(root, "t", 0, INT64_MAX, where, ErrorKind::kData);
  r.segment = json_string(root, "s", "", where, ErrorKind::kData);
  r.temperature = json_double(root, "T", 0, 10, where, ErrorKind::kData);
  r.draft = json_string(root, "q", "", where, ErrorKind::kData);
  r.target = json_string(root, "p", "", where, ErrorKind::kData);
  r.constrained = json_bool(root, "g", false, where, ErrorKind::kData);
  AcceptanceCounts& c = r.counts;
  c.plain_steps = json_int(root, "n0", 0, kMaxOfRecord, where, ErrorKind::kData);
  c.drafted = json_int(root, "D", 0, kMaxOfRecord, where, ErrorKind::kData);
  c.emitted = json_int(root, "e", 0, kMaxOfRecord, where, ErrorKind::kData);
  c.reached_at = counts_of(root, "r", kMaxOfRecord, where);
  c.accepted_at = counts_of(root, "a", kMaxOfRecord, where);
  for (int64_t thousandths : counts_of(root, "o", kMaxOfRecord * 1000, where)) c.overlap_sum_at.push_back(static_cast<double>(thousandths) / 1000);
  return r;
}

bool is_digit(char c) { return c >= '0' && c <= '9'; }

bool is_short_digest(const std::string& text) {
  return text.empty() || (text.size() == 12 && std::all_of(text.begin(), text.end(), [](char c) { return is_digit(c) || (c >= 'a' && c <= 'f'); }));
}

bool is_segment(const std::string& text) {
  return text.size() <= 32 && std::all_of(text.begin(), text.end(), [](char c) {
           return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '.' || c == '_' || c == '-';
         });
}

}  // namespace

void AcceptanceRecord::validate(const std::string& where) const {
  const auto check = [&](bool ok, const char* text) {
    if (!ok) throw Error(ErrorKind::kData, where + ": " + text);
  };
  check(time >= 0, "t: expected unix seconds >= 0");
  check(is_segment(segment), "s: expected at most 32 bytes of [A-Za-z0-9._-]");
  check(temperature >= 0 && temperature <= 10, "T: expected a temperature in [0, 10]");
  check(is_short_digest(draft) && is_short_digest(target), "q, p: expected 12 hexadecimal digits or nothing");
  const AcceptanceCounts& c = counts;
  check(c.reached_at.size() == c.accepted_at.size() && c.reached_at.size() == c.overlap_sum_at.size(), "r, a, o: expected equally many positions");
  check(c.steps >= 0 && c.plain_steps >= 0 && c.emitted >= 0 && c.accepted >= 0 && c.accepted <= c.drafted, "counts: expected 0 <= accepted <= drafted");
  check(c.steps == (c.reached_at.empty() ? 0 : c.reached_at[0]), "r: the first number must be the number of steps");
  check(c.accepted == std::accumulate(c.accepted_at.begin(), c.accepted_at.end(), int64_t{0}), "a: must sum to the accepted tokens");
  check(c.drafted >= std::accumulate(c.reached_at.begin(), c.reached_at.end(), int64_t{0}), "r: more reached than drafted");
  for (size_t i = 0; i < c.reached_at.size(); ++i) {
    check(c.accepted_at[i] >= 0 && c.accepted_at[i] <= c.reached_at[i], "a: more accepted than reached");
    check(c.overlap_sum_at[i] >= 0 && c.overlap_sum_at[i] <= static_cast<double>(c.reached_at[i]) + 1e-3, "o: overlap above 1 a step");
    check(i == 0 || i + 1 == c.reached_at.size() || c.reached_at[i] <= c.accepted_at[i - 1], "r: more reached than accepted before");
  }
}

std::string to_line(const AcceptanceRecord& record) {
  record.validate("acceptance record");
  std::string line;
  for (size_t positions = kMaxPositions; positions > 0; --positions) {
    line = canonical_json(to_json(record, positions));
    if (line.size() <= kMaxLineBytes) return line;
  }
  throw Error(ErrorKind::kInternal, "acceptance record longer than 300 bytes: " + line);
}

AcceptanceRecord acceptance_record_from_line(std::string_view line, const std::string& where) {
  AcceptanceRecord r;
  if (!read_fast(line, r)) r = read_slowly(line, where);
  AcceptanceCounts& c = r.counts;
  c.steps = c.reached_at.empty() ? 0 : c.reached_at[0];
  c.accepted = std::accumulate(c.accepted_at.begin(), c.accepted_at.end(), int64_t{0});
  r.validate(where);
  return r;
}

}  // namespace specdec
