// Formats numbers into sentences.
#pragma once

#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <string>

#include "base/statistics.h"

namespace specdec {

// Formats like std::printf; the compiler checks the arguments. The text is never cut off, however long it is.
__attribute__((format(printf, 1, 2))) inline std::string format(const char* pattern, ...) {
  va_list arguments, again;
  va_start(arguments, pattern);
  va_copy(again, arguments);
  const int size = std::vsnprintf(nullptr, 0, pattern, arguments);
  va_end(arguments);
  std::string text(size > 0 ? static_cast<size_t>(size) : 0, '\0');
  std::vsnprintf(text.data(), text.size() + 1, pattern, again);
  va_end(again);
  return text;
}

// Formats a number in the usual short form: 86400, 0.01, 1e-38.
inline std::string number_text(double value) {
  const std::string text = format("%.15g", value);
  return text.find('e') == std::string::npos ? text : format("%g", value);
}

// Formats a number with `digits` decimals, or as "–" if it is not finite. signed_decimals() also writes the sign +.
inline std::string decimals(double value, int digits = 3) {
  return std::isfinite(value) ? format("%.*f", digits, value) : "–";
}
inline std::string signed_decimals(double value, int digits = 3) {
  return std::isfinite(value) ? format("%+.*f", digits, value) : "–";
}

// Formats an interval as "[0.512, 0.534]".
inline std::string interval_text(const Interval& i, int digits = 3) {
  return "[" + decimals(i.low, digits) + ", " + decimals(i.high, digits) + "]";
}
inline std::string signed_interval_text(const Interval& i, int digits = 3) {
  return "[" + signed_decimals(i.low, digits) + ", " + signed_decimals(i.high, digits) + "]";
}

}  // namespace specdec
