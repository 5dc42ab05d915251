// The allowed numbers in acceptance records and acceptance counters: one table of ranges and one check for all of them.
// An error names the place, the key and the expected range, but never the value found, because anybody may have written
// it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/json.h"

namespace specdec {

enum class AcceptanceFigure {
  kTime,  // unix seconds of a record
  kTemperature,
  kTokens,       // tokens, steps or positions of one request
  kThousandths,  // an overlap sum of one request, in thousandths
  kCounter,      // a server's counter since its start
};

struct AcceptanceRange {
  int64_t low, high;
  bool whole;
  std::string expected() const;  // "a whole number in [0, 16777216]"
};
constexpr AcceptanceRange range_of(AcceptanceFigure figure) {
  constexpr int64_t kMostTokens = int64_t{1} << 24;  // the longest contexts have 10 million tokens
  switch (figure) {
    case AcceptanceFigure::kTime:
      return {0, 253402300799, true};  // the end of year 9999
    case AcceptanceFigure::kTemperature:
      return {0, 10, false};
    case AcceptanceFigure::kTokens:
      return {0, kMostTokens, true};
    case AcceptanceFigure::kThousandths:
      return {0, kMostTokens * 1000, true};
    case AcceptanceFigure::kCounter:
      return {0, int64_t{1} << 53, false};  // doubles represent every integer up to here
  }
  return {0, 0, true};
}
// Also returns false for NaN and infinities.
constexpr bool in_range(AcceptanceFigure figure, double value) {
  return value >= static_cast<double>(range_of(figure).low) && value <= static_cast<double>(range_of(figure).high);
}

// Returns the number under `key` of a record. Throws Error(kData) if it is missing, not a number or out of its range.
int64_t whole_figure(const Json& record, const char* key, AcceptanceFigure figure, const std::string& where);
double figure_of(const Json& record, const char* key, AcceptanceFigure figure, const std::string& where);
// Parses untrusted JSON: a line of a file, or a server's reply. Throws Error(kData) naming the byte at which it is no
// longer JSON.
Json parse_foreign_json(std::string_view text, const std::string& where, const JsonLimits& limits);

}  // namespace specdec
