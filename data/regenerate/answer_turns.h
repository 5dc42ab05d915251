// Divides a tokenised row into its answers and what lies between them, so that `data regenerate` can replace the
// answers one after the other.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "base/schema/shard_index.h"

namespace specdec::data {

// An answer is the learnt tokens [begin, end) of a row, with the marker that ends the turn.
struct AnswerTurn {
  int64_t begin = 0, end = 0;
  std::vector<std::string> calls;  // names of the functions that it calls
};

// Returns the answers of a row in their order. A chat has one for each learnt turn of the assistant. A row of another
// kind has one, which begins after prompt_tokens and may be empty.
std::vector<AnswerTurn> answer_turns(const TokenRow& row);

// Returns the texts that stand directly before the names of functions in a recorded answer that calls them, such as
// {"name":" or function=. White space is left out.
std::set<std::string> call_openings(const std::string& answer, const std::vector<std::string>& names);

// Returns whether the answer `written` calls the functions `names` in the order in which the answer `recorded` calls
// them, and no others. A call is recognised by the bytes around its name, as the recorded answer has them, because the
// way to write a call differs from model to model. In doubt the calls differ.
bool makes_same_calls(const std::set<std::string>& openings, const std::vector<std::string>& names,
                      const std::string& recorded, const std::string& written);

}  // namespace specdec::data
