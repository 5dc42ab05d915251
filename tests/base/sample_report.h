// Makes a validation report with a different value in every field, for round trips and for packaging.
#pragma once

#include "base/schema/validation_report.h"

namespace specdec::testing {

inline ValidationReport sample_report(const Fingerprint& target, const Fingerprint& draft,
                                      Verdict verdict = Verdict::kPass) {
  ValidationReport r;
  r.verdict = verdict;
  r.reason = "acceptance 0.70 above the floor";
  r.judged_by = {{"acceptance", "", 0.7, {0.65, 0.75}, 0.5}, {"acceptance", "chat", 0.8, {0.7, 0.9}, 0.65}};
  r.next = "specdec package --target models/target";
  r.started = "2026-11-21T12:00:00Z";
  r.tool_version = "0.1.0";
  r.seconds = 12.5;
  r.target = target;
  r.draft = draft;
  r.target_path = "models/target";
  r.draft_path = "run/draft";
  r.data_path = "traffic";
  r.data_digest = std::string(64, 'd');
  r.contexts = "target";
  r.split = "holdout";
  r.device = "cpu";
  r.dtype = "fp32";
  r.temperature = 0.75;
  r.floor = 0.5;
  r.goal = 0.8;
  r.alpha = {0.7, {0.65, 0.75}, 40};
  r.alpha_tokens = 0.71;
  r.greedy_agreement = 0.8;
  r.tokens = 2560;
  r.rollout.k = 3;
  r.rollout.verify = "block";
  r.rollout.alpha = {0.68, {0.6, 0.72}, 38};
  r.rollout.counts.add_step(3, 1, {0.875, 0.5});
  r.rollout.counts.add_step(3, 3, {0.625, 0.75, 0.25});
  r.rollout.counts.add_step(0, 0, {});
  r.rollout.counts.emitted = 6;
  r.segments.push_back({"code", {0.6, {0.5, 0.7}, 20}, r.rollout});
  r.segments.push_back({"chat", {0.8, {0.7, 0.9}, 20}, r.rollout});
  r.segments[1].floor = 0.65;
  r.sequence = {{1, 0.6, 0, 1}, {40, 0.7, 0.65, 0.75}};
  r.requests_available = 50;
  r.requests_needed = 31;
  r.baseline = ValidationReport::Baseline{
      {-0.01, {-0.03, 0.01}, 39}, "serving", std::string(64, 'e'), -0.02, {{"code", {0.01, {-0.02, 0.04}, 19}, true}}};
  r.predictions = {{1, 0.05, 1.1, 4, 2.1, 0.2}, {8, 0.3, 3.5, 1, 0.6, std::nullopt}};
  r.has_speed = true;
  r.draft_cost = 0.4;
  r.verify_cost = {{1, 1.1}, {4, 1.5}};
  r.verify_cost_table = {{1, {{2, 1.05}, {4, 1.2}}}};
  r.speedup = {1.4, {1.3, 1.5}, 8};
  r.predicted_speedup = 1.45;
  r.best_k = 4;
  r.break_even = {{1, 0.45}, {4, 0.6}};
  r.table = {{1, 2, 1.3}, {4, 2, 1.1}};
  r.schedule = {{1, 1, 4, true, 4, 1.4, {1.3, 1.5}},
                {2, 4, 4, false, 4, 1.35},
                {5, 16, 3, false, 3, 1.1},
                {17, 64, 0, false, 2, 0.9}};
  r.machine = MachineUse{2, 2, 0.25, 0.125, 0.0625, 30, 4, 2, false};
  r.has_lossless = true;
  r.greedy_prompts = 8;
  r.greedy_identical = 7;
  r.near_ties = 1;
  r.differences = 0;
  r.sampled_p_value = 0.42;
  r.request_alphas = {0.5, 0.9};
  r.request_ids = {"a", "b"};
  return r;
}

}  // namespace specdec::testing
