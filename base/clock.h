// Time as an argument: controllers, schedulers and detectors take a Clock, so that no test reads real time.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

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
    return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
  }
};

// "2026-11-21T12:00:00Z".
std::string format_utc(int64_t unix_seconds);

}  // namespace specdec
