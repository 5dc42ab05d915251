#include "distill/train/contexts.h"

#include <algorithm>
#include <set>
#include <string>

#include "base/error.h"
#include "distill/rows/batcher.h"
#include "engine/decode/rollout.h"
#include "engine/forward/memory_plan.h"

namespace specdec::distill {

namespace {

using Answers = std::vector<std::vector<int32_t>>;

Answers half_from_json(const Json& json, const char* half, int64_t vocab, const std::string& where) {
  Answers out;
  try {
    out = json.at(half).get<Answers>();
  } catch (const Json::exception& e) {
    throw Error(ErrorKind::kData, where + ": " + half + ": expected lists of token ids: " + e.what());
  }
  for (const std::vector<int32_t>& answer : out)
    for (const int32_t token : answer)
      if (token < 0 || token >= vocab)
        throw Error(ErrorKind::kData, where + ": " + half + ": token id " + std::to_string(token) +
                                          " is outside the vocabulary of " + std::to_string(vocab));
  return out;
}

// Replaces the answers in one half (selection or verdict) of the held-out rows. Returns the number of conversations
// that still have rows.
int64_t put_half(const Answers& answers, const RowLimits& limits, std::vector<TokenRow>& rows) {
  for (size_t i = 0; i < rows.size(); ++i) {
    rows[i] = decode::answered_row(rows[i], {answers[i], {}});
    std::vector<uint8_t>& mask = rows[i].loss_mask;
    std::fill_n(mask.begin(), std::min(mask.size(), static_cast<size_t>(limits.first_learnt)), uint8_t{0});
  }
  rows = prepare_rows(std::move(rows), limits.longest).rows;
  std::set<std::string> conversations;
  for (const TokenRow& row : rows) conversations.insert(row.conversation);
  return static_cast<int64_t>(conversations.size());
}

// Identifies a held-out row by its half (selection or verdict) and its index in this half.
struct Place {
  bool selects = false;
  size_t row = 0;
};

// Returns the order of generating answers: three rows that judge the draft (verdict half), then one that chooses the
// checkpoint (selection half), and so on. When the time is over, both halves have answers, and the verdict half, which
// needs more, has three times as many.
std::vector<Place> in_turn(const HeldOut& held_out) {
  std::vector<Place> order;
  size_t selects = 0, judges = 0;
  while (selects < held_out.selection.size() || judges < held_out.verdict.size()) {
    for (int i = 0; i < 3 && judges < held_out.verdict.size(); ++i) order.push_back({false, judges++});
    if (selects < held_out.selection.size()) order.push_back({true, selects++});
  }
  return order;
}

}  // namespace

int answers_together(const model::Decoder& target, const HeldOut& held_out, const AnswerLimits& limits,
                     int64_t spare_bytes) {
  if (!limits.is_late) return kAnswersTogether;
  int64_t longest = 0;
  for (const auto* half : {&held_out.selection, &held_out.verdict})
    for (const TokenRow& row : *half) longest = std::max(longest, row.prompt_tokens);
  const int64_t one = model::cache_bytes(target.config, target.weights.norm.scalar_type(), 1, longest + limits.tokens);
  return static_cast<int>(std::clamp<int64_t>(spare_bytes / one, kAnswersTogether, 4 * kAnswersTogether));
}

HeldOutAnswers answer_held_out(decode::CausalModel& target, const HeldOut& held_out, const ContextOptions& options,
                               const ProgressFn& progress) {
  decode::RolloutOptions wanted;
  wanted.k = 0;
  wanted.request.max_tokens = options.limits.tokens;
  wanted.request.eos_ids = options.eos_ids;
  wanted.request.sampling.temperature = options.temperature;
  wanted.seed = options.seed;
  wanted.is_late = options.limits.is_late;
  wanted.batch = options.together;
  const std::vector<Place> order = in_turn(held_out);
  std::vector<TokenRow> all;
  for (const auto& [selects, row] : order) all.push_back((selects ? held_out.selection : held_out.verdict)[row]);
  std::vector<decode::Rollout> answers = decode::roll_out(target, nullptr, all, wanted, progress);
  HeldOutAnswers out;
  out.selection.resize(held_out.selection.size());
  out.verdict.resize(held_out.verdict.size());
  for (size_t i = 0; i < answers.size(); ++i)
    (order[i].selects ? out.selection : out.verdict)[order[i].row] = std::move(answers[i].tokens);
  return out;
}

void put_answers(const HeldOutAnswers& answers, const RowLimits& limits, const std::string& where, HeldOut& held_out) {
  if (answers.selection.size() != held_out.selection.size() || answers.verdict.size() != held_out.verdict.size())
    throw Error(ErrorKind::kData, where + ": answers of " + std::to_string(answers.selection.size()) + " and " +
                                      std::to_string(answers.verdict.size()) + " rows, expected " +
                                      std::to_string(held_out.selection.size()) + " and " +
                                      std::to_string(held_out.verdict.size()) + ": start again with another --out");
  held_out.selection_conversations = put_half(answers.selection, limits, held_out.selection);
  held_out.verdict_conversations = put_half(answers.verdict, limits, held_out.verdict);
}

Json to_json(const HeldOutAnswers& answers) {
  return {{"schema", "specdec.distill_contexts/1"}, {"selection", answers.selection}, {"verdict", answers.verdict}};
}

HeldOutAnswers answers_from_json(const Json& json, int64_t vocab, const std::string& where) {
  require_schema(json, "distill_contexts", 1, where);
  return {half_from_json(json, "selection", vocab, where), half_from_json(json, "verdict", vocab, where)};
}

}  // namespace specdec::distill
