#include "base/clock.h"

#include <cstdio>
#include <ctime>

#include "base/error.h"

namespace specdec {

std::string format_utc(int64_t unix_seconds) {
  const time_t t = unix_seconds;
  tm utc{};
  if (gmtime_r(&t, &utc) == nullptr) throw Error(ErrorKind::kInternal, "time " + std::to_string(unix_seconds) + " has no calendar date");
  char text[64];
  std::snprintf(text, sizeof text, "%04lld-%02d-%02dT%02d:%02d:%02dZ", static_cast<long long>(utc.tm_year) + 1900, utc.tm_mon + 1,
                utc.tm_mday, utc.tm_hour, utc.tm_min, utc.tm_sec);
  return text;
}

}  // namespace specdec
