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

// Returns "2026-11-21T12:00:00Z".
std::string format_utc(int64_t unix_seconds);

struct DurationRules {
  // "m" is a month of 30.4 days, and neither seconds nor numbers without a unit are allowed.
  bool months = false;
  bool zero = false;  // a time of zero is allowed
};
// Returns the seconds of "90s", "1h30m", "7d", "8w" or "1y" (365 days). A number without a unit means seconds. Throws
// Error(kind) naming `where`.
double parse_duration(const std::string& text, const std::string& where, ErrorKind kind,
                      const DurationRules& rules = {});

}  // namespace specdec
