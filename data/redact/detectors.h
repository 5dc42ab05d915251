// The patterns that redaction searches for. A detector proposes candidates by a pattern or a scan, and then checks each
// candidate.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "data/redact/text_facts.h"

namespace specdec::data {

// The bytes [begin, end) of a text; end = 0 means that nothing was found.
struct Span {
  size_t begin = 0, end = 0;
  bool found() const { return end != 0; }
};

struct Detector {
  // The kind of character that everything this detector redacts contains; text without such a character need not be
  // searched.
  enum class Holds { kAnything, kDigit, kAtSign };

  const char *name, *tag;
  Holds holds;
  // A cheap test that is true whenever the text may contain something to redact.
  bool (*possible)(const TextFacts& facts, std::string_view text);
  // Returns the first candidate that begins in [begin, end) of `text`. May read the characters next to that range.
  std::function<Span(std::string_view text, size_t begin, size_t end)> propose;
  // Returns the part of the text to redact for a candidate, or an empty Span if the candidate is harmless. The part may
  // begin before the candidate or end after it.
  Span (*check)(std::string_view text, Span candidate);
  // True if the detector also searches ids. The detector of random-looking tokens does not, because most ids in a log
  // look random.
  bool in_ids = true;
  // If true, a candidate that fails the check contains nothing to redact; if false, the search continues one character
  // after the candidate's begin.
  bool candidates_are_whole = false;
};

// Returns the detectors in the order in which they are applied. Later detectors do not see the text that a detector has
// redacted.
const std::vector<Detector>& detectors();

// propose_token returns the next run of token characters; check_token returns the random-looking token
// (data/redact/token_surprise.h) in this run, or nothing.
Span propose_token(std::string_view text, size_t begin, size_t end);
Span check_token(std::string_view text, Span candidate);
// Returns the PEM block of a private key to which `marker`, a BEGIN or END line, belongs, even if the other marker is
// cut off.
Span check_private_key(std::string_view text, Span marker);

}  // namespace specdec::data
