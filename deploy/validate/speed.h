// What speculation costs and gains: draft and verify cost by batch and K, the speed-up they predict, and the measured
// one.
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
#include "engine/decode/causal_model.h"

namespace specdec::deploy {

// Seconds of whole steps of the server's own Stepper, sampling and host time included.
struct CostTable {
  std::map<int, double> plain_seconds;               // batch → one step without a draft
  std::map<int, double> draft_cost;                  // batch → c: time to draft one token / plain step
  std::map<int, std::map<int, double>> verify_cost;  // batch → K → v: everything of a step but drafting / plain step
};

struct CostOptions {
  std::vector<int> batches = {1, 2, 4};
  int max_k = 8;
  SamplingOptions sampling;
  VerifyRule verify = VerifyRule::kToken;
  uint64_t seed = 0;
  int repetitions = 15;           // of every K, interleaved; medians are taken
  double seconds_per_batch = 20;  // fewer repetitions (at least 3) where they take longer
};
// `prompts` are used in turn and cut so that max_k + 1 tokens a repetition fit. A batch size or K for which no step
// drafted its full K is left out. Throws Error(kData) without prompts or room.
CostTable measure_costs(decode::CausalModel& target, decode::CausalModel& draft,
                        std::span<const std::vector<int32_t>> prompts, const CostOptions& options, const Clock& clock,
                        const ProgressFn& progress = {});

// tau(K) = 1 + Σ_{i<=K} Π_{j<=i} overlap_j from measured overlaps; positions never reached take the last one that was.
// Exact for token verification, a lower bound for block verification.
double predicted_length(const AcceptanceCounts& counts, int k);
// S(K, B) = tau(K) / (K·c + v) for every measured batch and K.
std::vector<ValidationReport::TableRow> speed_table(const CostTable& costs, const AcceptanceCounts& counts);
// The measured speed-up at batch 1 with a K, and whether the machine let it be measured.
struct MeasuredSpeed {
  int k = 1;
  Estimate speedup;
  double predicted = 0;  // for the same K
  bool busy = false;
  bool gains() const { return !busy && speedup.n >= kLeastUnits && speedup.ci.low > 1; }
};
// Arg max over K for each batch, 0 where that is not above 1; neighbours with the same K and basis are joined, with the
// figure that speaks least for drafting. A batch size between two of the table takes the smaller one's K. Batch 1 is
// what was measured: its K where that gains with its whole interval, else 0. Where it does not, no other batch size
// drafts either; where it does, what was predicted for the others is scaled down by as much as the measurement stayed
// below its own prediction.
std::vector<ScheduleRow> speed_schedule(const std::vector<ValidationReport::TableRow>& table,
                                        const std::optional<MeasuredSpeed>& measured = {});
// The K >= 1 with the largest speed-up at the smallest batch of the table, 1 if the table is empty.
int best_k(const std::vector<ValidationReport::TableRow>& table);

// The least acceptance, the same at every position, for which some K of that batch pays: S(K, B) > 1 with tau(K) =
// (1 − α^{K+1}) / (1 − α). Batches for which even α = 1 does not pay are absent.
std::map<int, double> break_even(const CostTable& costs);

// Of an engine that is not here: c and v of --predict, v of every K.
struct EngineCosts {
  double draft_cost = 0, verify_cost = 0;
  int batch = 1;
};
EngineCosts parse_engine_costs(const std::string& text);  // "c=0.05,v=1.1[,batch=8]"; throws Error(kUsage)
// The best K up to max_k for measured overlaps, or for `alpha` at every position where no step was measured.
ValidationReport::Prediction predicted(const EngineCosts& costs, const AcceptanceCounts& counts, double alpha,
                                       int max_k);

struct SpeedupOptions {
  SpeculationOptions speculation;
  SamplingOptions sampling;
  int64_t tokens = 64;  // of every answer; EOS is ignored
  int rounds = 3;       // of every prompt, each with its own seed
  uint64_t seed = 0;
  int threads = 0;  // of this process; 0: as many as there are CPUs
};
// Seconds of a prompt, summed over the rounds that were left alone (all of them on a busy machine); the target's prompt
// pass excluded, the draft's included.
struct SpeedupRuns {
  std::vector<double> normal, speculative;
  MachineUse machine;
};
// Batch 1, both sides step by step. Prompts are cut so that the answer fits.
SpeedupRuns measure_speedup(decode::CausalModel& target, decode::CausalModel& draft,
                            std::span<const std::vector<int32_t>> prompts, const SpeedupOptions& options,
                            const Clock& clock, const CpuMeter& meter, const ProgressFn& progress = {});
// How the gate times its pairs, where a plain run takes so long.
PairsOptions gate_pairs(int threads, double plain_seconds);
// The runs of `rounds` · `prompts` pairs (round · prompts + prompt) summed by prompt; prompts without any run that
// counts are left out.
SpeedupRuns sum_by_prompt(const TimedPairs& pairs, size_t prompts);
// Ratio of summed times; interval by bootstrap over prompts, at the expanded level of Hesterberg 2015 (The American
// Statistician 69, section 4.3): plain percentiles of eight prompts would miss the true ratio in 10 % of all gates on
// one side. Each end errs in at most 5 % (tests/validate/speed_simulation_test.cpp). Throws Error(kInternal) for no
// runs.
Estimate speedup(std::span<const double> normal, std::span<const double> speculative);

// Up to `count` prompts spread over the rows, of different conversations as long as there are enough; ids of the chosen
// rows.
std::vector<size_t> choose_prompts(std::span<const TokenRow> rows, int64_t count);
std::vector<int32_t> prompt_of(const TokenRow& row);

}  // namespace specdec::deploy
