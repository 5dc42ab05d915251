// One finished request's acceptance, without text, at most 300 bytes as JSON: what the server logs and the monitor
// watches.
// {"schema", "t": unix seconds, "s": segment, "T": temperature, "q": draft, "p": target, "n0": plain steps, "D":
// drafted,
//  "e": emitted, "r": reached, "a": accepted, "o": overlap sums in thousandths, "g": true under a grammar, else
//  absent};
// steps = r[0], accepted = Σ a; drafted_at is not kept.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/acceptance.h"
#include "base/json.h"

namespace specdec {

struct AcceptanceRecord {
  static constexpr int kVersion = 1;  // "schema":"specdec.acceptance/1"
  int64_t time = 0;
  std::string segment;  // domain, "" = default; at most 32 bytes of [A-Za-z0-9._-]
  double temperature = 1;
  bool constrained = false;  // by a grammar
  bool efficiency = false;  // of other engines, not written: reached = drafted, all that is known is accepted / drafted
  std::string draft, target;  // first 12 hex digits of the fingerprints
  AcceptanceCounts counts;    // reached, accepted, overlap per position; positions after 8 are folded into the 8th
                              // (fewer than 8 where the line would be longer than 300 bytes)

  void validate(const std::string& where) const;
};
std::string to_line(const AcceptanceRecord& record);  // short keys, no newline
// Throws Error(kData). For millions of lines into one `record` whose memory is used again; after an error it holds
// anything.
AcceptanceRecord acceptance_record_from_line(std::string_view line, const std::string& where);
void read_acceptance_record(std::string_view line, const std::string& where, AcceptanceRecord& record);

}  // namespace specdec
