// What a run leaves: the draft directory bound to its target, and the result object.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "base/fingerprint.h"
#include "base/json.h"
#include "base/verdict.h"
#include "distill/draft_init.h"
#include "distill/evaluate.h"
#include "distill/options.h"
#include "distill/trainer.h"

namespace specdec::distill {

// Everything that decides the outcome, as JSON: run.json, and the provenance inside specdec.json.
Json describe(const DistillOptions& options);
// Paths of leaf values that differ ("options.learning_rate", …), comma-separated; "" when equal.
std::string differing_keys(const Json& a, const Json& b);

// Scores of an evaluation, kept in checkpoints: NaN is null.
Json to_json(const Evaluation& evaluation);
Evaluation evaluation_from_json(const Json& object);  // throws Error(kData)

struct Outcome {
  Judgement judgement;
  Evaluation before, after;
  bool by_acceptance = true;
  int64_t verdict_conversations = 0, selection_conversations = 0, selection_requests = 0;
  int64_t kept_step = 0;
  TrainingSummary training;
  Json search;      // of prune:, or null
  Json vocabulary;  // of a reduced one, or null
  Json chosen;      // settings that the options left open (distill/preparation.h)
  Json inputs, data_counts;
  std::string started;
  double seconds = 0;
};
// What to do after a verdict. `rising`: the best measured checkpoint is the last one.
struct NextStep {
  std::string reason, command;
};
NextStep next_step(Verdict verdict, const DistillOptions& options, bool rising);

// The object of the contract: schema, verdict, reason, acceptance or cross_entropy, training, draft, inputs.
Json result_json(const Outcome& outcome, const DistillOptions& options, const std::optional<Fingerprint>& draft);

// Publishes the weights with the tokenizer files of `tokenizer_directory` byte for byte, and specdec.json unless
// `target` is empty.
void publish_draft(const std::filesystem::path& destination, const model::Decoder& draft,
                   const std::filesystem::path& tokenizer_directory, const std::optional<Fingerprint>& target,
                   const DistillOptions& options, const Json& result);

}  // namespace specdec::distill
