// Divides a tokenised row into its answers and what lies between them, so that `data regenerate` can replace the
// answers one after the other.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "base/schema/shard_index.h"

namespace specdec::data {

// An answer: the learnt tokens [begin, end) of a row, including the marker that ends the turn.
struct AnswerTurn {
  int64_t begin = 0, end = 0;
  std::vector<std::string> calls;  // names of the functions that the answer calls
};

// Returns the answers of a row in order. A chat has one for each learnt turn of the assistant. Any other row has one
// answer, which begins after prompt_tokens and may be empty.
std::vector<AnswerTurn> answer_turns(const TokenRow& row);

// Returns the characters directly before each function name in a recorded answer with calls, such as {"name":" or
// function=. White space is left out.
std::set<std::string> call_openings(const std::string& answer, const std::vector<std::string>& names);

// Returns whether the answer `written` calls the functions `names` in the same order as the answer `recorded`, and no
// others. The syntax of a call differs from model to model, so a call is recognised by the bytes that surround its name
// in the recorded answer. Returns false in doubt.
bool makes_same_calls(const std::set<std::string>& openings, const std::vector<std::string>& names,
                      const std::string& recorded, const std::string& written);

}  // namespace specdec::data
