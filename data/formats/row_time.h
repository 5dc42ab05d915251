// Reads the times of traffic logs.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/json.h"

namespace specdec::data {

// Returns Unix seconds. Reads a number or its text in seconds, milli-, micro- or nanoseconds, or ISO 8601; returns 0 if
// it is not a time.
int64_t read_time(const Json* value);

// Returns Unix seconds of an ISO 8601 time, or -1 if the text is not one. Accepts:
// * a date alone, which means midnight;
// * "T", "t" or a space before the time of day;
// * hours and minutes, with or without seconds, and with a fraction of the seconds after a dot or a comma;
// * the forms without hyphens and colons;
// * a zone "Z", "z", "+05:30", "+0530" or "+05"; without a zone the time is UTC.
int64_t parse_time(std::string_view iso8601);

}  // namespace specdec::data
