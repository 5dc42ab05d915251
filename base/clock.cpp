#include "base/clock.h"

#include <cstdlib>
#include <ctime>

#include "base/format.h"

namespace specdec {

std::string format_utc(int64_t unix_seconds) {
  const time_t t = unix_seconds;
  tm utc{};
  // A time too far away for a calendar date is shown as a number, because showing a time must not fail.
  if (gmtime_r(&t, &utc) == nullptr) return "unix " + std::to_string(unix_seconds);
  return format("%04lld-%02d-%02dT%02d:%02d:%02dZ", static_cast<long long>(utc.tm_year) + 1900, utc.tm_mon + 1,
                utc.tm_mday, utc.tm_hour, utc.tm_min, utc.tm_sec);
}

double parse_duration(const std::string& text, const std::string& where, ErrorKind kind, const DurationRules& rules) {
  constexpr double kDay = 86400, kMost = 1e11;
  const auto seconds_in = [&](char unit) {
    switch (unit) {
      case '\0':
      case 's':
        return rules.months ? 0 : 1.0;
      case 'm':
        return rules.months ? 30.4 * kDay : 60;
      case 'h':
        return 3600.0;
      case 'd':
        return kDay;
      case 'w':
        return 7 * kDay;
      case 'y':
        return 365 * kDay;
      default:
        return 0.0;
    }
  };
  const char* at = text.c_str();
  bool good = *at;
  double total = 0;
  while (good && *at) {
    char* end = nullptr;
    const double n = std::strtod(at, &end), unit = seconds_in(*end);
    good = end != at && unit > 0 && ((*at >= '0' && *at <= '9') || *at == '.');
    total += n * unit;
    at = *end ? end + 1 : end;
  }
  if (!good || total > kMost || (total == 0 && !rules.zero))
    throw Error(kind, where + ": expected a time such as " +
                          (rules.months ? "12h, 30d, 6m (months) or 1y" : "90s, 1h30m or 7d") + ", found '" + text +
                          "'");
  return total;
}

}  // namespace specdec
