// What redaction looks for: a pattern or a scan that proposes candidates, and a check that decides about each one.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "data/text_facts.h"

namespace specdec::data {

// [begin, end) of a text; end = 0: nothing.
struct Span {
  size_t begin = 0, end = 0;
  bool found() const { return end != 0; }
};

struct Detector {
  // What every find holds: the rest of a text is not searched.
  enum class Holds { kAnything, kDigit, kAtSign };

  const char *name, *tag;
  Holds holds;
  // Cheap, and true wherever there may be a find.
  bool (*possible)(const TextFacts& facts, std::string_view text);
  // The first candidate in [begin, end) of `text`, which is looked at beyond these for what stands around it.
  std::function<Span(std::string_view text, size_t begin, size_t end)> propose;
  // The find that the candidate leads to. It may begin before the candidate or end behind it.
  Span (*check)(std::string_view text, Span candidate);
  // Whether it fits ids too. Tokens that look random do not: the ids of a log look so.
  bool in_ids = true;
  // Whether a candidate that is no find holds none; else the search goes on one character after where it began.
  bool candidates_are_whole = false;
};

// In the order in which they are applied: what an earlier one found is not seen by later ones.
const std::vector<Detector>& detectors();

// A random-looking token (data/token_surprise.h) in the run of token characters that holds `candidate`, or nothing.
Span propose_token(std::string_view text, size_t begin, size_t end);
Span check_token(std::string_view text, Span candidate);
// A PEM block of a private key, also one whose begin or end is cut off.
Span check_private_key(std::string_view text, Span marker);

}  // namespace specdec::data
