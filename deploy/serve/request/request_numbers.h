// The table of all numbers that a request to /v1/chat/completions or /v1/completions may contain, with their ranges.
// parse_request() checks requests against it. A test checks that docs/openapi.json has the same ranges.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <variant>

#include "base/sampling_ranges.h"

namespace specdec::deploy {

enum class Endpoint { kChat, kCompletions };

inline constexpr int64_t kMostAnswers = 8;  // the default limit of n (ServeLimits)

struct IntegerRange {
  int64_t low = 0, high = 0;
  bool contains(int64_t x) const { return x >= low && x <= high; }
  std::string text() const;  // for example "an integer from 1 to 8"
};

struct RequestNumber {
  const char* name;              // field; "logit_bias{}": each value in logit_bias, "prompt[]": each item of prompt
  std::optional<Endpoint> only;  // the only endpoint with this field; none: both have it
  std::variant<NumberRange, IntegerRange> range;
  // The default if the field is absent or null; none: there is no fixed default.
  std::optional<double> fallback = {};
};

std::span<const RequestNumber> request_numbers();

// Returns the table's row for a field. Throws Error(kInternal) if there is no such row.
const RequestNumber& request_number(Endpoint endpoint, const std::string& name);

}  // namespace specdec::deploy
