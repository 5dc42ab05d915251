#include "base/schema/acceptance_record.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/schema/acceptance_range.h"

namespace specdec {

namespace {

constexpr size_t kMaxPositions = 8, kMaxLineBytes = 300, kMaxReadBytes = 4096;
constexpr int64_t kLatest = range_of(AcceptanceFigure::kTime).high,
                  kMostTokens = range_of(AcceptanceFigure::kTokens).high;
static_assert(range_of(AcceptanceFigure::kThousandths).high == kMostTokens * 1000);
const std::string kSchema = "specdec.acceptance/" + std::to_string(AcceptanceRecord::kVersion);

// Keeps the first `positions` values and adds the later ones to the last value that is kept.
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
  Json json = {{"schema", kSchema},
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

std::vector<int64_t> counts_of(const Json& object, const char* key, AcceptanceFigure figure, const std::string& where) {
  std::vector<int64_t> out;
  const auto found = object.find(key);
  if (found == object.end() || found->is_null()) throw Error(ErrorKind::kData, where + ": " + key + ": missing");
  if (!found->is_array() || found->size() > kMaxPositions)
    throw Error(ErrorKind::kData,
                where + ": " + key + ": expected at most " + std::to_string(kMaxPositions) + " numbers");
  for (const Json& item : *found) out.push_back(whole_figure(Json{{key, item}}, key, figure, where));
  return out;
}

// Errors do not repeat the value of a key, because anybody may have written the line.
std::string text_of(const Json& object, const char* key, const std::string& where) {
  const auto found = object.find(key);
  if (found == object.end() || found->is_null()) return "";
  if (!found->is_string()) throw Error(ErrorKind::kData, where + ": " + key + ": expected text");
  return found->get<std::string>();
}

bool flag_of(const Json& object, const char* key, const std::string& where) {
  const auto found = object.find(key);
  if (found == object.end() || found->is_null()) return false;
  if (!found->is_boolean()) throw Error(ErrorKind::kData, where + ": " + key + ": expected true or false");
  return found->get<bool>();
}

// FastReader names each key by one character, and keeps the set of keys that it has seen as bits.
constexpr char kPlainSteps = 1, kSchemaKey = 2;  // stand for "n0" and "schema"; no one-letter key equals them
constexpr uint64_t bit(char key) { return uint64_t{1} << (key & 63); }
constexpr uint64_t kEveryKey = [] {
  uint64_t all = bit(kPlainSteps) | bit(kSchemaKey);
  for (const char key : std::string_view("tsTqpDeraog")) all |= bit(key);
  return all;
}();

// Reads in one pass what to_line() writes, with its keys in any order. Returns false for anything unusual (escapes,
// exponents, unknown keys); read_slowly() then parses the line and reports any error.
class FastReader {
 public:
  explicit FastReader(std::string_view line) : at_(line.data()), end_(line.data() + line.size()) {}

  bool read(AcceptanceRecord& r) {
    r.constrained = r.efficiency = false;
    r.counts.drafted_at.clear();
    uint64_t seen = 0;
    if (!skip('{')) return false;
    do {
      std::string_view key;
      if (!text(key) || !skip(':')) return false;
      const char short_key = key.size() == 1 ? key[0] : key == "n0" ? kPlainSteps : key == "schema" ? kSchemaKey : '\0';
      if ((seen & bit(short_key)) || !value(short_key, r)) return false;
      seen |= bit(short_key);
    } while (skip(','));
    if (!skip('}')) return false;
    skip_space();
    return at_ == end_ && (seen | bit('g')) == kEveryKey;
  }

 private:
  bool value(char key, AcceptanceRecord& r) {
    AcceptanceCounts& c = r.counts;
    std::string_view schema;
    switch (key) {
      case kSchemaKey:
        return text(schema) && schema == kSchema;
      case 't':
        return whole(r.time, kLatest);
      case 's':
        return text(r.segment);
      case 'T':
        return decimal(r.temperature);
      case 'q':
        return text(r.draft);
      case 'p':
        return text(r.target);
      case kPlainSteps:
        return whole(c.plain_steps, kMostTokens);
      case 'D':
        return whole(c.drafted, kMostTokens);
      case 'e':
        return whole(c.emitted, kMostTokens);
      case 'r':
        return list(c.reached_at, 1);
      case 'a':
        return list(c.accepted_at, 1);
      case 'o':
        return list(c.overlap_sum_at, 1000);
      case 'g':
        return (r.constrained = word("true")) || word("false");
      default:
        return false;
    }
  }

  void skip_space() {
    while (at_ != end_ && (*at_ == ' ' || *at_ == '\t' || *at_ == '\r' || *at_ == '\n')) ++at_;
  }
  bool skip(char c) {
    skip_space();
    const bool found = at_ != end_ && *at_ == c;
    at_ += found;
    return found;
  }
  bool word(std::string_view expected) {
    skip_space();
    const bool found = std::string_view(at_, static_cast<size_t>(end_ - at_)).starts_with(expected);
    at_ += found ? expected.size() : 0;
    return found;
  }

  template <class Text>
  bool text(Text& to) {
    if (!skip('"')) return false;
    const char* begin = at_;
    while (at_ != end_ && *at_ >= ' ' && *at_ <= '~' && *at_ != '"' && *at_ != '\\') ++at_;
    to = std::string_view(begin, static_cast<size_t>(at_ - begin));
    return at_ != end_ && *at_++ == '"';
  }

  // Reads decimal digits, appends them to the digits of `n`, and returns the number of digits read. `n` may overflow if
  // that number is above 18.
  size_t digits(int64_t& n) {
    const char* begin = at_;
    auto value = static_cast<uint64_t>(n);
    for (; at_ != end_ && *at_ >= '0' && *at_ <= '9'; ++at_) value = value * 10 + static_cast<uint64_t>(*at_ - '0');
    n = static_cast<int64_t>(value);
    return static_cast<size_t>(at_ - begin);
  }
  bool whole(int64_t& n, int64_t most) {
    skip_space();
    const char* begin = at_;
    n = 0;
    const size_t count = digits(n);
    return count > 0 && count <= 18 && (count == 1 || *begin != '0') && n <= most;
  }
  // Reads one or two digits before the point and at most 12 after it. Dividing two integers that a double holds exactly
  // gives the same rounding as strtod.
  bool decimal(double& x) {
    int64_t n = 0, unit = 1;
    if (!whole(n, 10)) return false;
    if (at_ != end_ && *at_ == '.') {
      ++at_;
      const size_t places = digits(n);
      if (places == 0 || places > 12) return false;
      for (size_t i = 0; i < places; ++i) unit *= 10;
    }
    x = static_cast<double>(n) / static_cast<double>(unit);
    return true;
  }
  template <class T>
  bool list(std::vector<T>& to, int64_t unit) {
    to.clear();
    if (!skip('[')) return false;
    if (skip(']')) return true;
    do {
      int64_t n = 0;
      if (to.size() == kMaxPositions || !whole(n, kMostTokens * unit)) return false;
      to.push_back(static_cast<T>(n) / static_cast<T>(unit));
    } while (skip(','));
    return skip(']');
  }

  const char* at_;
  const char* end_;
};

AcceptanceRecord read_slowly(std::string_view line, const std::string& where) {
  using enum AcceptanceFigure;
  const Json root = parse_foreign_json(line, where, {.max_bytes = kMaxReadBytes, .max_depth = 4});
  if (!root.is_object()) throw Error(ErrorKind::kData, where + ": expected a JSON object");
  if (text_of(root, "schema", where) != kSchema)
    throw Error(ErrorKind::kData, where + ": schema: expected " + kSchema + ", found none or another version");
  AcceptanceRecord r;
  r.time = whole_figure(root, "t", kTime, where);
  r.segment = text_of(root, "s", where);
  r.temperature = figure_of(root, "T", kTemperature, where);
  r.draft = text_of(root, "q", where);
  r.target = text_of(root, "p", where);
  r.constrained = flag_of(root, "g", where);
  AcceptanceCounts& c = r.counts;
  c.plain_steps = whole_figure(root, "n0", kTokens, where);
  c.drafted = whole_figure(root, "D", kTokens, where);
  c.emitted = whole_figure(root, "e", kTokens, where);
  c.reached_at = counts_of(root, "r", kTokens, where);
  c.accepted_at = counts_of(root, "a", kTokens, where);
  for (int64_t thousandths : counts_of(root, "o", kThousandths, where))
    c.overlap_sum_at.push_back(static_cast<double>(thousandths) / 1000);
  return r;
}

bool is_digit(char c) { return c >= '0' && c <= '9'; }

bool is_short_digest(const std::string& text) {
  return text.empty() || (text.size() == 12 && std::all_of(text.begin(), text.end(), [](char c) {
                            return is_digit(c) || (c >= 'a' && c <= 'f');
                          }));
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
  check(in_range(AcceptanceFigure::kTime, static_cast<double>(time)),
        "t: expected unix seconds of the years 1970 to 9999");
  check(is_segment(segment), "s: expected at most 32 bytes of [A-Za-z0-9._-]");
  check(in_range(AcceptanceFigure::kTemperature, temperature), "T: expected a temperature in [0, 10]");
  check(is_short_digest(draft) && is_short_digest(target), "q, p: expected 12 hexadecimal digits or nothing");
  const AcceptanceCounts& c = counts;
  check(c.reached_at.size() == c.accepted_at.size() && c.reached_at.size() == c.overlap_sum_at.size(),
        "r, a, o: expected equally many positions");
  check(c.steps >= 0 && c.plain_steps >= 0 && c.emitted >= 0 && c.accepted >= 0 && c.accepted <= c.drafted,
        "counts: expected 0 <= accepted <= drafted");
  check(c.steps == (c.reached_at.empty() ? 0 : c.reached_at[0]), "r: the first number must be the number of steps");
  check(c.accepted == std::accumulate(c.accepted_at.begin(), c.accepted_at.end(), int64_t{0}),
        "a: must sum to the accepted tokens");
  for (const int64_t n : {c.drafted, c.emitted, c.plain_steps})
    check(in_range(AcceptanceFigure::kTokens, static_cast<double>(n)), "D, e, n0: more than a request can have");
  check(c.drafted >= c.reached(), "r: more reached than drafted");
  for (size_t i = 0; i < c.reached_at.size(); ++i) {
    check(c.accepted_at[i] >= 0 && c.accepted_at[i] <= c.reached_at[i], "a: more accepted than reached");
    check(c.overlap_sum_at[i] >= 0 && c.overlap_sum_at[i] <= static_cast<double>(c.reached_at[i]) + 1e-3,
          "o: overlap above 1 a step");
    check(i == 0 || i + 1 == c.reached_at.size() || c.reached_at[i] <= c.accepted_at[i - 1],
          "r: more reached than accepted before");
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

void read_acceptance_record(std::string_view line, const std::string& where, AcceptanceRecord& record) {
  if (line.size() > kMaxReadBytes || !FastReader(line).read(record)) record = read_slowly(line, where);
  AcceptanceCounts& c = record.counts;
  c.steps = c.reached_at.empty() ? 0 : c.reached_at[0];
  c.accepted = std::accumulate(c.accepted_at.begin(), c.accepted_at.end(), int64_t{0});
  record.validate(where);
}

AcceptanceRecord acceptance_record_from_line(std::string_view line, const std::string& where) {
  AcceptanceRecord record;
  read_acceptance_record(line, where, record);
  return record;
}

}  // namespace specdec
