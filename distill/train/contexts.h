// The text on which a draft is judged. Drafts speculate in answers that the target itself writes, so the gate measures
// them there (validate --contexts target), and so does distill: held-out rows that somebody else has answered are
// answered anew by the target before anything is measured on them.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/progress.h"
#include "distill/train/evaluate.h"
#include "engine/decode/runners/causal_model.h"

namespace specdec::distill {

// Most tokens of an answer, as in the gate's own measurement, and the fewest where time is short.
inline constexpr int64_t kAnswerTokens = 64, kLeastAnswerTokens = 16;
// What answering may take where there is a time limit.
struct AnswerLimits {
  int64_t tokens = kAnswerTokens;  // of an answer
  // Returns whether the time is over: answers that are not finished then stay short, and later rows have none.
  std::function<bool()> is_late = {};
};
inline constexpr int kAnswersTogether = 16;
struct ContextOptions {
  double temperature = 1;
  uint64_t seed = 0;
  std::vector<int32_t> eos_ids = {};  // of the target: they end an answer
  AnswerLimits limits = {};
  int together = kAnswersTogether;  // rows that answer at the same time
};

// The target's answers to the prompts of both halves, in the order of their rows. An answer is empty if the prompt
// leaves no room for it, or if there was no time.
struct HeldOutAnswers {
  std::vector<std::vector<int32_t>> selection, verdict;
};

// Returns how many rows should answer at the same time. Without a time limit this is kAnswersTogether. With one it is
// up to four times as many, as far as their caches fit into `spare_bytes`, so that when the time is over there are many
// short answers and not a few long ones.
int answers_together(const model::Decoder& target, const HeldOut& held_out, const AnswerLimits& limits,
                     int64_t spare_bytes);

// Lets the target answer. An answer depends on its row's id and prompt and on the seed. Throws Error(kNetwork) if a
// stop is requested.
HeldOutAnswers answer_held_out(decode::CausalModel& target, const HeldOut& held_out, const ContextOptions& options,
                               const ProgressFn& progress = {});
struct RowLimits {
  int64_t longest = 0;       // tokens of a row, 0 = no limit
  int64_t first_learnt = 1;  // the first token that the draft can predict: an EAGLE-3 head needs two before it
};
// Puts the answers in the place of the rows' own. Rows are cut, and dropped if nothing of their answer is left. Throws
// Error(kData) naming `where` if the answers are not those of these rows.
void put_answers(const HeldOutAnswers& answers, const RowLimits& limits, const std::string& where, HeldOut& held_out);

// Convert the answers to JSON and back, because a run that goes on must measure on the same text.
// answers_from_json() throws Error(kData) naming `where` for another schema, or for a token outside of the vocabulary.
Json to_json(const HeldOutAnswers& answers);
HeldOutAnswers answers_from_json(const Json& json, int64_t vocab, const std::string& where);

}  // namespace specdec::distill
