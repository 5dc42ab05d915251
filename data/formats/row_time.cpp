#include "data/formats/row_time.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <optional>
#include <string>

#include "data/formats/blank.h"

namespace specdec::data {

namespace {

// Timestamps from these values on are taken as milliseconds, microseconds and nanoseconds. As seconds, 1e11 would
// already be the year 5138.
constexpr double kMillisecondsFrom = 1e11, kMicrosecondsFrom = 1e14, kNanosecondsFrom = 1e17;
constexpr size_t kMaxTimeBytes = 64;
constexpr size_t kBasicDateBytes = 8;  // the length of 20260101

bool is_number(char c) { return c >= '0' && c <= '9'; }

// Reads a time from left to right; each function consumes what it recognises.
class TimeText {
 public:
  explicit TimeText(std::string_view text) : text_(text) {}

  bool ended() const { return at_ == text_.size(); }
  // Consumes the next character if it is one of `any` and returns it, else returns NUL.
  char take(std::string_view any) {
    return !ended() && any.find(text_[at_]) != std::string_view::npos ? text_[at_++] : '\0';
  }
  // Consumes exactly `count` digits and returns their value; otherwise consumes nothing and returns nothing.
  std::optional<int> digits(size_t count) {
    if (text_.size() - at_ < count) return {};
    const std::string_view part = text_.substr(at_, count);
    int value = 0;
    if (!std::all_of(part.begin(), part.end(), is_number)) return {};
    std::from_chars(part.data(), part.data() + count, value);
    at_ += count;
    return value;
  }
  // Returns whether `c` is the character at `distance` from the current position.
  bool has_at(size_t distance, char c) const { return distance < text_.size() - at_ && text_[at_ + distance] == c; }
  // Consumes the names in brackets that may follow a zone (RFC 9557): [Europe/Paris]. Returns false if a bracket is not
  // closed.
  bool names() {
    while (take("[")) {
      const size_t end = text_.find(']', at_);
      if (end == std::string_view::npos) return false;
      at_ = end + 1;
    }
    return true;
  }
  // Consumes the digits of a fraction of a second and returns whether there is at least one.
  bool fraction() {
    const size_t begin = at_;
    while (!ended() && is_number(text_[at_])) ++at_;
    return at_ > begin;
  }

 private:
  std::string_view text_;
  size_t at_ = 0;
};

// Consumes a date and returns its distance from 1970-01-01 in days.
std::optional<int64_t> take_date(TimeText& text) {
  const auto year = text.digits(4);
  const bool hyphens = text.take("-") != '\0';
  const auto month = text.digits(2);
  if (hyphens && !text.take("-")) return {};
  const auto day = text.digits(2);
  if (!year || !month || !day) return {};
  const std::chrono::year_month_day date{std::chrono::year(*year), std::chrono::month(static_cast<unsigned>(*month)),
                                         std::chrono::day(static_cast<unsigned>(*day))};
  if (!date.ok()) return {};
  return std::chrono::sys_days(date).time_since_epoch().count();
}

// Consumes hh[:mm[:ss[.fraction]]] or hh[mm[ss[.fraction]]] and returns the seconds since midnight. If a colon follows,
// the hour may have one digit.
std::optional<int64_t> take_clock(TimeText& text) {
  const auto hour = text.digits(text.has_at(1, ':') ? 1 : 2);
  if (!hour || *hour > 23) return {};
  const bool colons = text.take(":") != '\0';
  const auto minute = text.digits(2);
  if (!minute) return colons ? std::nullopt : std::optional<int64_t>(*hour * 3600);
  if (*minute > 59) return {};
  int second = 0;
  if (!colons || text.take(":")) {
    const auto found = text.digits(2);
    if (colons && !found) return {};
    second = found.value_or(0);
    if (second > 60) return {};
    if (found && text.take(".,") && !text.fraction()) return {};
  }
  return *hour * 3600 + *minute * 60 + second;
}

// Consumes the zone at the end of the text and returns its offset east of UTC in seconds.
std::optional<int64_t> take_zone(TimeText& text) {
  if (text.ended()) return 0;
  int64_t east = 0;
  if (!text.take("Zz")) {
    const char sign = text.take("+-");
    const auto seconds = sign ? take_clock(text) : std::nullopt;
    if (!seconds) return {};
    east = sign == '+' ? *seconds : -*seconds;
  }
  return text.names() ? std::optional(east) : std::nullopt;
}

std::optional<double> as_number(const std::string& text) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number, std::chars_format::fixed);
  if (error != std::errc() || end != text.data() + text.size()) return {};
  return number;
}

}  // namespace

int64_t read_time(const Json* value) {
  if (!value) return 0;
  double number = 0;
  if (value->is_number()) {
    number = value->get<double>();
  } else if (value->is_string()) {
    const std::string& text = value->get_ref<const std::string&>();
    // Eight digits are read as a date (YYYYMMDD): as seconds they would be times in 1970 to 1973.
    const auto as_text = text.size() == kBasicDateBytes ? parse_time(text) : -1;
    const auto as_seconds = text.size() <= kMaxTimeBytes ? as_number(text) : std::nullopt;
    if (as_text >= 0 || !as_seconds) return std::max<int64_t>(0, as_text >= 0 ? as_text : parse_time(text));
    number = *as_seconds;
  }
  const double unit = number >= kNanosecondsFrom    ? 1e9
                      : number >= kMicrosecondsFrom ? 1e6
                      : number >= kMillisecondsFrom ? 1e3
                                                    : 1;
  number /= unit;
  return number > 0 && number < kMillisecondsFrom ? static_cast<int64_t>(number) : 0;
}

int64_t parse_time(std::string_view iso8601) {
  if (iso8601.size() > kMaxTimeBytes) return -1;
  TimeText text(trimmed(iso8601));
  const auto days = take_date(text);
  if (!days) return -1;
  if (text.ended()) return *days * 86400;
  if (!text.take("Tt ")) return -1;
  const auto seconds = take_clock(text);
  if (!seconds) return -1;
  const auto zone = take_zone(text);
  if (!zone || !text.ended()) return -1;
  return *days * 86400 + *seconds - *zone;
}

}  // namespace specdec::data
