// Time as an argument: controllers, schedulers and detectors take a Clock, so that no test reads real time.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "base/error.h"

namespace specdec {

class Clock {
 public:
  virtual ~Clock() = default;
  virtual double seconds() const = 0;        // monotonic
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

// "2026-11-21T12:00:00Z".
std::string format_utc(int64_t unix_seconds);

struct DurationRules {
  bool months = false;  // m is a month of 30.4 days, and there are neither seconds nor numbers without a unit
  bool zero = false;    // is taken, too
};
// Seconds of "90s", "1h30m", "7d", "8w" or "1y" (365 days); a number without a unit is of seconds. Throws Error(kind)
// naming `where`.
double parse_duration(const std::string& text, const std::string& where, ErrorKind kind,
                      const DurationRules& rules = {});

}  // namespace specdec
