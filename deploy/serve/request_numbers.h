// Every number that a request to /v1/chat/completions or /v1/completions may hold: the one table that parse_request()
// checks by. docs/openapi.json says the same, and a test compares the two.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <variant>

#include "base/sampling_ranges.h"

namespace specdec::deploy {

enum class Endpoint { kChat, kCompletions };

inline constexpr int64_t kMostAnswers = 8;  // n, unless ServeLimits has another

struct IntegerRange {
  int64_t low = 0, high = 0;
  bool contains(int64_t x) const { return x >= low && x <= high; }
  std::string text() const;  // "an integer from 1 to 8"
};

struct RequestNumber {
  const char* name;              // of the field; "logit_bias{}" of each value in it, "prompt[]" of each item
  std::optional<Endpoint> only;  // none: both endpoints know it
  std::variant<NumberRange, IntegerRange> range;
  std::optional<double> fallback = {};  // where it is absent or null; none: what follows from the rest of the request
};

std::span<const RequestNumber> request_numbers();

// The row of a field that the table has. Throws Error(kInternal) for any other.
const RequestNumber& request_number(Endpoint endpoint, const std::string& name);

}  // namespace specdec::deploy
