// Make results with a different value in every field, for round trips.
#pragma once

#include "base/schema/distill_comparison.h"
#include "base/schema/distill_forecast.h"
#include "base/schema/distill_report.h"
#include "base/schema/gpu_check.h"
#include "base/schema/loop_state.h"

namespace specdec::testing {

inline GpuChecks sample_gpus() {
  return {{{.index = 1,
            .name = "NVIDIA H100 80GB HBM3",
            .compute_capability = "9.0",
            .free_bytes = int64_t{79} << 30,
            .total_bytes = int64_t{80} << 30,
            .copy_bytes_per_second = 3.6e11,
            .cases = 200,
            .seconds = 1.25,
            .faults = {{"rope", "fp16 5 x 3 x 64", "element 7 of 960 is 0.5, expected 0.25"}}}},
          ""};
}

inline LoopState sample_loop() {
  LoopState s;
  s.head = {"validate failed", "2026-11-21T12:00:00Z", 12.5};
  s.inputs = {"org/target", std::string(64, 'a'), "c0ffee", std::string(64, 's'), {{"day-1", std::string(64, 'd')}}};
  s.key = s.inputs.key();
  s.started_unix = 1795262400, s.ended_unix = 1795262500;
  s.stages = {{"data", {2.5, "runs/k/data/index.json", {{"verdict", "done"}}}}, {"distill", {9, "draft", nullptr}}};
  s.begun = {{"data", "d"}, {"distill", "t"}, {"validate", "v"}};
  s.stopped = LoopStop{"validate", 3, 1, {{"verdict", "fail"}}, "acceptance 0.5", "[distill] epochs = 4", false};
  return s;
}

inline DistillReport sample_distill(bool by_acceptance = true) {
  DistillReport r;
  r.verdict = Verdict::kImproved;
  r.started = "2026-11-21T12:00:00Z";
  r.seconds = 12.5;
  r.tool_version = "0.1.0";
  r.reason = "acceptance 0.5 -> 0.7";
  r.inputs = {{"target", {{"path", "t"}}}};
  r.options = {{"draft", "prune:2"}};
  r.data = {{"train_rows", 100}};
  DistillScores& s = r.scores.emplace();
  s.by_acceptance = by_acceptance;
  s.before = {{0.5, 0.4, 0.6}, 0.51, 0.52, 2.5};
  s.after = {{0.7, 0.65, 0.75}, 0.71, 0.72, 1.5};
  s.difference = {0.2, 0.15, {}};
  s.requests = 40, s.conversations = 20, s.tokens = 5000;
  if (by_acceptance) {
    s.rest = 0.01;
    s.certain = {0.19, 0.14, 0.24};
    s.by_position = {{"1-16", DistillFigure{0.5, 0.4, 0.6}, {0.8, 0.7, 0.9}, 40, 20, 640}};
    s.by_domain = {{"code", {}, {0.6, 0.5, 0.7}, 10, 5, 1000}};
  } else {
    for (DistillSide* side : {&s.before, &s.after}) side->tokens = side->greedy_agreement = {};
  }
  r.training = {.steps = 80,
                .tokens = 16000,
                .seconds = 10,
                .tokens_per_second = 1600,
                .last_loss = 1.25,
                .skipped_steps = 1,
                .roll_backs = 2,
                .kept_step = 60,
                .selected_by = by_acceptance ? "acceptance" : "cross_entropy",
                .selection_requests = 38,
                .selection_conversations = 19,
                .measured = {{0, 0.5, {}, {0.4, nullptr}}, {60, 0.7, 1.5}},
                .deeper_acceptance = {0.6, 0.5},
                .chosen = {{"accumulate", 2}},
                .layers = {{"kept", {0, 3}}}};
  r.cost = {12.5, 10, 16000, 1600, "cpu", 2, "fp32", "no GPU", 0.4};
  r.next = "specdec validate", r.next_reason = "the gate";
  r.draft_vocab = {{"tokens", 32000}};
  r.draft = DraftOutput{"draft", std::string(64, 'e')};
  return r;
}

inline ForecastReport sample_forecast() {
  ForecastReport r;
  r.verdict = Verdict::kImproved;
  r.started = "2026-11-21T12:00:00Z";
  r.seconds = 12.5;
  r.tool_version = "0.1.0";
  r.reason = "the whole run will bring acceptance 0.8";
  r.inputs = {{"data", {{"path", "d"}}}};
  r.options = {{"draft", "prune:2"}};
  r.samples = {{15, {0.5, 0.4, 0.6}, "forecast/15", 10, 2000, 1.5, 1333.5}, {60, {}, "forecast/60", 40, 8000, 6, 1334}};
  r.before = 0.3;
  r.conversations = 40;
  r.run = {240, 32000, 24, {0.8, 0.75, 0.85}, {0.5, 0.45, {}}, 4, true};
  r.curve = {0.9, 0.6, 0.5};
  r.speed = {0.1,
             {{1, 1.0}, {2, 1.1}},
             0.01,
             40,
             {2, 2.5, 1.4},
             3,
             2.75,
             1.5,
             Interval{1.4, 1.6},
             DistillFigure{1e6, 9e5, {}}};
  r.next = "specdec distill", r.next_reason = "the run that was forecast";
  return r;
}

inline ComparisonReport sample_comparison() {
  ComparisonReport r;
  r.verdict = Verdict::kFaster;
  r.started = "2026-11-21T12:00:00Z";
  r.seconds = 12.5;
  r.tool_version = "0.1.0";
  r.reason = "fastest: prune:1";
  r.inputs = {{"data", {{"path", "d"}}}};
  r.options = {{"draft", {"prune:1", "eagle3"}}};
  r.drafts = {{.draft = "prune:1",
               .path = "comparison/1-prune-1",
               .parameters = 5000,
               .acceptance = {0.7, 0.65, {}},
               .steps = 20,
               .tokens = 4000,
               .seconds = 3.5,
               .k = 2,
               .length = 2.25,
               .draft_cost = 0.1,
               .verify_cost = {{1, 1.0}, {2, 1.05}},
               .overlap = {0.8, 0.75},
               .speedup = 1.5,
               .ci = {1.4, 1.6},
               .conversations = 8,
               .ties_with_first = true}};
  r.engine = "other";
  r.next = "specdec distill", r.next_reason = "the fastest kind";
  return r;
}

}  // namespace specdec::testing
