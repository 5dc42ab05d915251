// Formats numbers into sentences.
#pragma once

#include <cstdarg>
#include <cstdio>
#include <string>

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

// Writes a number as people do: 86400, 0.01, 1e-38.
inline std::string number_text(double value) {
  const std::string text = format("%.15g", value);
  return text.find('e') == std::string::npos ? text : format("%g", value);
}

}  // namespace specdec
