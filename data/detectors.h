// The patterns that redaction searches for. A detector proposes candidates by a pattern or a scan, and a check decides
// about each candidate.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "data/text_facts.h"

namespace specdec::data {

// The bytes [begin, end) of a text; end = 0 means that nothing was found.
struct Span {
  size_t begin = 0, end = 0;
  bool found() const { return end != 0; }
};

struct Detector {
  // What every find contains, so that text without it need not be searched.
  enum class Holds { kAnything, kDigit, kAtSign };

  const char *name, *tag;
  Holds holds;
  // A cheap test that is true whenever the text may contain a find.
  bool (*possible)(const TextFacts& facts, std::string_view text);
  // Returns the first candidate in [begin, end) of `text`. It may look beyond these at the neighbouring characters.
  std::function<Span(std::string_view text, size_t begin, size_t end)> propose;
  // Returns the find for a candidate. It may begin before the candidate or end after it.
  Span (*check)(std::string_view text, Span candidate);
  // Whether the detector also applies to ids. Random-looking tokens do not: most ids in a log look random.
  bool in_ids = true;
  // If true, a candidate that fails the check contains no find; if false, the search continues one character after the
  // candidate's begin.
  bool candidates_are_whole = false;
};

// Returns the detectors in the order in which they are applied; later ones do not see the text that earlier ones found.
const std::vector<Detector>& detectors();

// propose_token returns the next run of token characters; check_token returns the random-looking token
// (data/token_surprise.h) in it, or nothing.
Span propose_token(std::string_view text, size_t begin, size_t end);
Span check_token(std::string_view text, Span candidate);
// Returns a PEM block of a private key, also if its begin or end is cut off.
Span check_private_key(std::string_view text, Span marker);

}  // namespace specdec::data
