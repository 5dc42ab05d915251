// Implements StepRunner over real models: a decode::Stepper, with a K controller and a random stream for each sequence.
#pragma once

#include <array>
#include <exception>
#include <map>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "deploy/serve/engine/draft_swap.h"
#include "deploy/serve/queue/step_runner.h"
#include "engine/decode/control/controller.h"
#include "engine/decode/runners/causal_model.h"
#include "engine/decode/step.h"

namespace specdec::deploy {

struct StepperRunnerOptions {
  SpeculationOptions speculation;
  // The overlap that new sequences assume for the draft until the server has measured one. Taken from the gate's
  // report.
  double prior_overlap = 0.7;
  std::vector<std::array<int, 3>> schedule = {};  // validated [batch_lo, batch_hi, k], as in ControllerOptions
  int text_max_k = 0;                             // maximum of K for suffix drafts; 0: as in `speculation`
  bool coupled_seeds = true;                      // seeded sequences use the coupled rule, not that of `speculation`
};

class StepperRunner final : public StepRunner {
 public:
  // The models must outlive the runner, except the model of a NamedDraft, which the runner owns. If the draft is null,
  // decoding is plain. Throws Error(kModel) if the vocabularies differ.
  StepperRunner(decode::CausalModel& target, decode::CausalModel* draft, StepperRunnerOptions options,
                const Clock& clock);
  StepperRunner(decode::CausalModel& target, NamedDraft draft, StepperRunnerOptions options, const Clock& clock);
  ~StepperRunner() override;

  DraftSwap& drafts() { return drafts_; }

  SequenceKey start(const SequenceSpec& spec) override;
  PrefillResult prefill(SequenceKey key, int64_t most) override;
  void preempt(SequenceKey key) override;
  bool ready(SequenceKey key) override;
  // Steps the batch. If a pass for the whole batch throws, each sequence is stepped alone, so that only sequences that
  // cause the failure fail.
  void step(std::span<const SequenceKey> batch, std::span<StepResult> results) override;
  void finish(SequenceKey key) override;
  StageSeconds stage_seconds() const override;
  CacheUse cache_use() const override;
  std::vector<DepthEvidence> depth_evidence() const override;

 private:
  struct Running;
  bool run(std::span<decode::Sequence* const> batch);
  void end_trials();
  void collect(Running& running, StepResult& result);
  void explain(std::span<const SequenceKey> batch);

  StepperRunnerOptions options_;
  const Clock& clock_;
  double target_seconds_ = 0, draft_seconds_ = 0;  // total time of the target's and of the drafts' passes
  TimedModel target_;
  decode::CostModel costs_;  // costs of the target; each draft has its own costs
  DraftSwap drafts_;
  decode::Stepper stepper_;
  std::map<SequenceKey, std::unique_ptr<Running>> running_;
  std::vector<decode::Sequence*> batch_;
  SequenceKey next_key_ = 0;
  double prompt_seconds_ = 0, step_seconds_ = 0;
  double prompt_target_seconds_ = 0;    // seconds of the target's prefill passes
  decode::OverlapMean suffix_overlap_;  // mean overlap of suffix drafts
  double mean_answer_ = 0;              // moving mean of answer lengths, in tokens
  int64_t draft_failures_ = 0;
  std::exception_ptr pass_failure_;  // exception that the last pass threw; null: it threw none
};

}  // namespace specdec::deploy
