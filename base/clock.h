// Makes time an argument: controllers, schedulers and detectors take a Clock, so that no test reads real time.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "base/error.h"

namespace specdec {

class Clock {
 public:
  virtual ~Clock() = default;
  virtual double seconds() const = 0;        // time of a monotonic clock
  virtual int64_t unix_seconds() const = 0;  // wall clock
};

class SystemClock final : public Clock {
 public:
  double seconds() const override {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  }
  int64_t unix_seconds() const override {
    return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch())
        .count();
  }
};

// Returns the time as "2026-11-21T12:00:00Z", or as "unix <seconds>" if it is too far away for a calendar date.
std::string format_utc(int64_t unix_seconds);

struct DurationRules {
  // If true, "m" means a month of 30.4 days, and seconds and numbers without a unit are rejected.
  bool months = false;
  bool zero = false;  // if true, a duration of 0 is allowed
};
// Returns the seconds of "90s", "1h30m", "7d", "8w" or "1y" (365 days). A number without a unit means seconds. Throws
// Error(kind) naming `where` if the text is not a duration that `rules` allow, or is longer than 1e11 seconds.
double parse_duration(const std::string& text, const std::string& where, ErrorKind kind,
                      const DurationRules& rules = {});

}  // namespace specdec
