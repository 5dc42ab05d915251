// The acceptance of one finished request, without text, in at most 300 bytes of JSON. The server logs it and the
// monitor reads it.
// {"schema", "t": unix seconds, "s": segment, "T": temperature, "q": draft, "p": target, "n0": plain steps,
//  "D": drafted, "e": emitted, "r": reached, "a": accepted, "o": overlap sums in thousandths,
//  "g": true under a grammar, else absent}
// steps = r[0] and accepted = Σ a; drafted_at is not kept.
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
  bool constrained = false;  // true: the answer was sampled under a grammar
  // True for records of other engines that state only drafted and accepted; `reached` is then set to `drafted`. This
  // field is never written.
  bool efficiency = false;
  std::string draft, target;  // first 12 hex digits of the fingerprints
  // Reached, accepted and overlap by position. to_line() adds the positions after the 8th to the 8th. If its line would
  // then exceed 300 bytes, to_line() keeps fewer than 8 positions and adds the others to the last one kept.
  AcceptanceCounts counts;

  void validate(const std::string& where) const;
};
std::string to_line(const AcceptanceRecord& record);  // uses short keys; no newline at the end
// Parse one line of JSON. Throw Error(kData). read_acceptance_record() is for millions of lines: it reuses the memory
// of `record`, whose content is undefined after an error.
AcceptanceRecord acceptance_record_from_line(std::string_view line, const std::string& where);
void read_acceptance_record(std::string_view line, const std::string& where, AcceptanceRecord& record);

}  // namespace specdec
