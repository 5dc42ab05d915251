// Measures the costs and the gain of speculation: draft and verify cost by batch size and K, the speed-up predicted
// from them, and the measured speed-up.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/acceptance.h"
#include "base/clock.h"
#include "base/progress.h"
#include "base/run_options.h"
#include "base/schema/shard_index.h"
#include "base/schema/validation_report.h"
#include "deploy/report/gate_checks.h"
#include "deploy/validate/timed_pairs.h"
#include "engine/decode/runners/causal_model.h"

namespace specdec::deploy {

// Costs measured on whole steps of the Stepper that the server uses, including sampling and host time.
struct CostTable {
  std::map<int, double> plain_seconds;               // batch → seconds of one step of plain decoding
  std::map<int, double> draft_cost;                  // batch → c: time to draft one token / time of a plain step
  std::map<int, std::map<int, double>> verify_cost;  // batch → K → v: step without drafting / plain step
};

struct CostOptions {
  std::vector<int> batches = {1, 2, 4};
  int max_k = 8;
  SamplingOptions sampling;
  VerifyRule verify = VerifyRule::kToken;
  uint64_t seed = 0;
  int repetitions = 15;           // timed steps of each K, interleaved; their median is taken
  double seconds_per_batch = 20;  // time limit; at least three repetitions are made, even beyond it
};
// Measures the costs. `prompts` are used in turn, and cut so that the tokens of one repetition (one step for each K
// from 0 to max_k) fit the context. A batch size or K is left out if every step drafted fewer than K tokens. Throws
// Error(kData) if there are no prompts or the context is too small.
CostTable measure_costs(const decode::ModelPair& models, std::span<const std::vector<int32_t>> prompts,
                        const CostOptions& options, const Clock& clock, const ProgressFn& progress = {});

// Returns the predicted speed-up S(K, B) = tau(K) / (K·c + v) for every measured batch size B and K.
std::vector<ValidationReport::TableRow> speed_table(const CostTable& costs, const AcceptanceCounts& counts);
// The speed-up measured at batch 1 with one K, and whether the machine was too busy to measure it.
struct MeasuredSpeed {
  int k = 1;
  Estimate speedup;
  double predicted = 0;  // the predicted speed-up for the same K
  bool busy = false;
  bool gains() const { return !busy && speedup.n >= kLeastUnits && speedup.ci.low > 1; }
};
// Chooses a K for each range of batch sizes. Each batch size of the table gets the K with the largest predicted
// speed-up, or 0 if no predicted speed-up is above 1. A batch size between two batch sizes of the table gets the K of
// the smaller one. Neighbouring ranges with the same K become one range with the smaller speed-up.
//
// A measurement at batch 1 changes this:
// - Batch 1 gets the measured K if the whole interval is above 1, else 0. Batch sizes up to the table's next size get
//   the K of that next size.
// - If the measurement shows no gain, every batch size gets 0.
// - If the measured speed-up is below its prediction, the other predictions are scaled down by the same ratio.
std::vector<ScheduleRow> speed_schedule(const std::vector<ValidationReport::TableRow>& table,
                                        const std::optional<MeasuredSpeed>& measured = {});
// Returns the K >= 1 with the largest speed-up at the table's smallest batch size; 1 if the table is empty.
int best_k(const std::vector<ValidationReport::TableRow>& table);

// Returns for each batch size the smallest acceptance α, equal at every position, at which some K pays off: S(K, B) > 1
// with tau(K) = (1 − α^{K+1}) / (1 − α). A batch size is left out if even α = 1 does not pay off.
std::map<int, double> break_even(const CostTable& costs);

// Costs of another engine, given with --predict: the draft cost c, and one verify cost v for all K.
struct EngineCosts {
  double draft_cost = 0, verify_cost = 0;
  int batch = 1;
};
EngineCosts parse_engine_costs(const std::string& text);  // such as "c=0.05,v=1.1"; throws Error(kUsage)
// Predicts the best K up to max_k from measured overlaps, or from `alpha` at every position if no step was measured.
ValidationReport::Prediction predicted(const EngineCosts& costs, const AcceptanceCounts& counts, double alpha,
                                       int max_k);

struct SpeedupOptions {
  SpeculationOptions speculation;
  SamplingOptions sampling;
  int64_t tokens = 64;  // length of every answer; EOS is ignored
  int rounds = 3;       // runs of each prompt, each with its own seed
  uint64_t seed = 0;
  int threads = 0;  // CPU threads of this process; 0: one per CPU
};
// Seconds of decoding for each prompt, summed over its undisturbed runs (over all runs on a busy machine). The target's
// prefill is excluded, the draft's prefill is included.
struct SpeedupRuns {
  std::vector<double> normal, speculative;
  MachineUse machine;
};
// Times decoding with and without the draft at batch 1; steps of the two runs alternate. Prompts are cut so that the
// answer fits the context.
SpeedupRuns measure_speedup(const decode::ModelPair& models, std::span<const std::vector<int32_t>> prompts,
                            const SpeedupOptions& options, const Instruments& instruments,
                            const ProgressFn& progress = {});
// Returns the settings with which the gate times its pairs of runs, given the seconds of a plain run.
PairsOptions gate_pairs(int threads, double plain_seconds);
// Sums the times of each prompt over `rounds` repetitions of all prompts. The pair with index r · prompts + p is
// repetition r of prompt p. Prompts without an undisturbed run are left out.
SpeedupRuns sum_by_prompt(const TimedPairs& pairs, size_t prompts);
// Returns the speed-up: the sum of `normal` divided by the sum of `speculative`. Its 90 % interval is a bootstrap over
// prompts with widened percentiles (Hesterberg 2015, The American Statistician 69, section 4.3), because with few
// prompts the usual percentiles give too narrow an interval. With eight prompts, each end of the usual interval would
// lie on the wrong side of the true ratio in 10 % of all gates. Each end of this interval does so in at most 5 %
// (tests/validate/speed_simulation_test.cpp). Throws Error(kInternal) without runs.
Estimate speedup(std::span<const double> normal, std::span<const double> speculative);

// Chooses up to `count` prompts spread over the rows, from different conversations as far as possible. Returns the
// indices of their rows, ascending.
std::vector<size_t> choose_prompts(std::span<const TokenRow> rows, int64_t count);
std::vector<int32_t> prompt_of(const TokenRow& row);

}  // namespace specdec::deploy
