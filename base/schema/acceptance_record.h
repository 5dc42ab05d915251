// One finished request's acceptance, without text, at most 300 bytes as JSON: what the server logs and the monitor watches.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/acceptance.h"
#include "base/json.h"

namespace specdec {

struct AcceptanceRecord {
  static constexpr int kVersion = 1;  // "schema":"specdec.acceptance/1"
  int64_t time = 0;
  std::string segment;                  // domain, "" = default
  double temperature = 1;
  std::string draft, target;            // first 12 hex digits of the fingerprints
  AcceptanceCounts counts;              // reached, accepted, overlap per position; positions after 8 are folded into the 8th

  void validate(const std::string& where) const;
};
std::string to_line(const AcceptanceRecord& record);   // short keys, no newline
AcceptanceRecord acceptance_record_from_line(const std::string& line, const std::string& where);

}  // namespace specdec
