// Generates the text on which a draft is measured. In serving, drafts speculate inside answers that the target itself
// generates, so `validate --contexts target` measures drafts on such answers. For the same reason, distill has the
// target generate new answers to the held-out prompts. If the target wrote the answers in the data, distill uses those.
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

// The largest number of tokens of an answer: kAnswerTokens, as in `validate`. A short time limit lowers this number,
// but not below kLeastAnswerTokens.
inline constexpr int64_t kAnswerTokens = 64, kLeastAnswerTokens = 16;
// The limits of generating answers.
struct AnswerLimits {
  int64_t tokens = kAnswerTokens;  // largest number of tokens of an answer
  // Returns whether the time is over. Then unfinished answers are kept as they are, and rows that were not begun get no
  // answer.
  std::function<bool()> is_late = {};
};
inline constexpr int kAnswersTogether = 16;
struct ContextOptions {
  double temperature = 1;
  uint64_t seed = 0;
  std::vector<int32_t> eos_ids = {};  // EOS ids of the target, which end an answer
  AnswerLimits limits = {};
  int together = kAnswersTogether;  // number of rows decoded in one batch
};

// The target's answers to the held-out prompts of both halves (selection and verdict), in the order of the rows. An
// answer is empty if its prompt fills the context, or if the time was over before the row was begun.
struct HeldOutAnswers {
  std::vector<std::vector<int32_t>> selection, verdict;
};

// Returns how many rows to decode in one batch: kAnswersTogether without a time limit; under a time limit up to four
// times as many, if their KV caches fit into `spare_bytes`. When the time is over, many short answers give a better
// measurement than a few long ones.
int answers_together(const model::Decoder& target, const HeldOut& held_out, const AnswerLimits& limits,
                     int64_t spare_bytes);

// Generates the target's answers. An answer depends only on the row's id and prompt and on the seed. Throws
// Error(kNetwork), which means "run it again", if a stop is requested.
HeldOutAnswers answer_held_out(decode::CausalModel& target, const HeldOut& held_out, const ContextOptions& options,
                               const ProgressFn& progress = {});
struct RowLimits {
  int64_t longest = 0;  // largest number of tokens of a row, 0 = no limit
  // Index of the first token of a row that the draft can predict: 2 for an EAGLE-3 head, which needs two tokens of
  // context.
  int64_t first_learnt = 1;
};
// Replaces the answers of the rows by `answers`. Rows are cut to the limits; a row is dropped if nothing is left of its
// answer. Throws Error(kData) naming `where` if the answers do not belong to these rows.
void put_answers(const HeldOutAnswers& answers, const RowLimits& limits, const std::string& where, HeldOut& held_out);

// Convert the answers to JSON and back, so that a resumed run measures on the same text. answers_from_json() throws
// Error(kData) naming `where` for another schema, or for a token outside of the vocabulary.
Json to_json(const HeldOutAnswers& answers);
HeldOutAnswers answers_from_json(const Json& json, int64_t vocab, const std::string& where);

}  // namespace specdec::distill
