// Writes the results of a run: the draft directory bound to its target, and the result object.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "base/fingerprint.h"
#include "base/json.h"
#include "base/schema/distill_report.h"
#include "base/verdict.h"
#include "distill/run/compute_dtype.h"
#include "distill/run/draft_init.h"
#include "distill/settings/options.h"
#include "distill/train/evaluate.h"
#include "distill/train/trainer.h"

namespace specdec::distill {

// Returns as JSON the options that influence the trained draft, for run.json and for the provenance in specdec.json.
Json describe(const DistillOptions& options);
// Returns the paths of leaf values that differ ("options.learning_rate", …), comma-separated; "" if there are none.
std::string differing_keys(const Json& a, const Json& b);

// Convert the scores of an evaluation to JSON and back, for checkpoints; NaN becomes null.
Json to_json(const Evaluation& evaluation);
Evaluation evaluation_from_json(const Json& object);  // throws Error(kData)

// Returns the content of scores.json: the acceptance of each held-out request before and after training; null without a
// target. Only requests that judge the finished draft are included, not those that chose the checkpoint. --forecast and
// --compare use these scores to compare runs on the same data.
Json scores_json(const std::vector<TokenRow>& rows, const Evaluation& before, const Evaluation& after);

// The acceptance of the held-out rows before and after training by position in the answer and by domain.
struct PartFigures {
  std::vector<DistillPart> by_position;  // without `before` if the initial draft was not measured
  std::vector<DistillPart> by_domain;    // empty if no row has a domain
};
PartFigures part_figures(const std::vector<TokenRow>& rows, const Evaluation& before, const Evaluation& after);

struct Outcome {
  Judgement judgement;
  Evaluation before, after;
  bool by_acceptance = true;
  // The number of held-out conversations on which the finished draft was judged, and of all that were held out for
  // judging. A time limit may be too short to measure all of them.
  int64_t verdict_conversations = 0, held_out_conversations = 0;
  int64_t selection_conversations = 0, selection_requests = 0;
  bool taught_little = false;  // the run had fewer than kTeachingSteps steps and measured no gain
  DistillOptions asked;        // the options as the user gave them, for the suggested next command
  int64_t kept_step = 0;
  TrainingSummary training;
  Json search;      // record of the layer search for --draft prune:N, or null
  Json vocabulary;  // share of the data's tokens that a reduced vocabulary covers, or null
  Json chosen;      // settings that the options left open (choose_settings)
  Json inputs, data_counts;
  PartFigures parts;   // acceptance by position and by domain; empty without a target
  std::string device;  // "cpu", "cuda:0"
  int processes = 1;
  ComputeDtype compute = {"auto", ""};
  std::optional<double> teacher_share;  // the teacher's share of the training time, in [0, 1]; empty = unknown
  std::string started;
  double seconds = 0;
};
// The facts about a finished run on which next_step() bases its suggestion.
struct RunEnd {
  bool rising = false;  // the last measured checkpoint is the best one
  // True if the verdict is inconclusive because the teacher knows only part of each distribution (top-k labels).
  bool partial = false;
  // The factor by which a run must be longer to reach a verdict; 0 = a longer run would not help.
  double longer = 0;
};
struct NextStep {
  std::string reason, command;
};
NextStep next_step(Verdict verdict, const DistillOptions& asked, const RunEnd& end);

DistillReport report_of(const Outcome& outcome, const DistillOptions& options, const std::optional<Fingerprint>& draft);

// Publishes the weights in `dtype` in OUT/draft with byte-for-byte copies of the target's tokenizer files, and
// specdec.json unless `target` is empty.
void publish_draft(const TrainedDraft& draft, at::ScalarType dtype, const DistillOptions& options,
                   const std::optional<Fingerprint>& target, const Json& result);

}  // namespace specdec::distill
