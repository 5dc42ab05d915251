// The table of every number that a request to /v1/chat/completions or /v1/completions may contain, with its range.
// parse_request() checks against it. docs/openapi.json has the same ranges, and a test compares the two.
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
  std::string text() const;  // "an integer from 1 to 8"
};

struct RequestNumber {
  const char* name;              // of the field; "logit_bias{}" is each value in it, "prompt[]" each item
  std::optional<Endpoint> only;  // none: both endpoints have it
  std::variant<NumberRange, IntegerRange> range;
  // The value if the field is absent or null. None: there is no fixed value.
  std::optional<double> fallback = {};
};

std::span<const RequestNumber> request_numbers();

// Returns the row of a field of the table. Throws Error(kInternal) for any other field.
const RequestNumber& request_number(Endpoint endpoint, const std::string& name);

}  // namespace specdec::deploy
