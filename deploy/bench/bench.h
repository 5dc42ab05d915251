// `specdec bench`: compares plain decoding with speculation for each draft, K and batch size, on the same prompts and
// answer lengths.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/acceptance.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/page/page.h"
#include "base/progress.h"
#include "base/schema/validation_report.h"
#include "base/statistics.h"
#include "base/verdict.h"
#include "deploy/bench/options.h"
#include "deploy/validate/cpu_meter.h"

namespace specdec::deploy {

struct BenchRow {
  std::string draft;  // name as the user gave it; "" = a row of plain decoding
  std::string name;   // for display: the directory's name if no other draft has the same
  int k = 0;          // -1: the controller chooses K
  int batch = 1;
  int64_t tokens = 0;
  double seconds = 0;                            // total time of all steps, without the target's prefill
  double ttft_ms = 0;                            // mean time to first token
  double itl_p50 = 0, itl_p95 = 0, itl_p99 = 0;  // percentiles of the ms between two deliveries of tokens
  AcceptanceCounts counts;
  // Speed-up over plain decoding at the same batch size. n is the number of groups of prompts, over which the interval
  // is computed; with n < 4 there is no interval.
  Estimate speedup;
  // Predicted speed-up tau / (K·c + v). tau, the tokens per step, comes from this row's overlaps. c and v are the costs
  // of drafting one token and of verifying, measured separately and relative to a plain step. 0 if the draft is not a
  // chain of a fixed K, or if no costs were measured.
  double predicted = 0;
  int64_t greedy_prompts = 0, greedy_identical = 0, near_ties = 0, differences = 0;
  double sampled_p_value = 1;
  int64_t memory_bytes = 0;  // size of weights and KV caches
  bool normal() const { return draft.empty(); }
  double tokens_per_second() const { return seconds > 0 ? static_cast<double>(tokens) / seconds : 0; }
};
struct BenchResult {
  Verdict verdict = Verdict::kInconclusive;  // kInconclusive, kFaster, kNotWorthIt, kNotLossless or kStale
  std::string reason;
  std::string started;
  double seconds = 0;
  Json inputs;
  int64_t prompts = 0, answer_tokens = 0, rounds = 0;
  std::vector<BenchRow> rows;
  // CPU use of other processes while the runs were timed. machine.busy is that of the smallest batch size, on which the
  // verdict depends; the other fields are of the batch size at which other processes used the most CPU time.
  MachineUse machine;
  std::vector<size_t> ranking;  // indices of rows: each draft's best at the smallest batch size, fastest first
  std::vector<std::string> notes;
};

// Runs the benchmark. Each group of prompts goes through every configuration before the next group starts. The steps of
// each run alternate with those of a plain run of the same prompts. A run that other processes disturb is repeated
// (timed_pairs.h). Rows are logged as they complete. Throws what loading and running models throws, and:
// - Error(kUsage) for invalid options;
// - Error(kData) for data of another tokenizer, a split without rows, or a prompt that leaves no room for the answer;
// - Error(kNetwork), the kind that means "try again", if a signal stops the run.
BenchResult run_bench(const BenchOptions& options, const Clock& clock, const CpuMeter& meter,
                      const ProgressFn& progress = {});

// Sets verdict, reason and ranking from the rows and the machine. The first rule that applies decides:
//  - not_lossless if any answer differs or a sampled p-value is at most 1e-4;
//  - inconclusive without a speculative row, or if the machine was busy at the smallest batch size;
//  - faster if the whole interval of the fastest speculative row at that batch size is above 1;
//  - not_worth_it if that interval ends at or below 1, or if there is no interval and the speed-up is at most 1;
//  - inconclusive otherwise.
void judge_bench(BenchResult& result);
// Returns 5 for stale, 3 for not_lossless, else 0: the benchmark succeeded, even if speculation was slower.
int bench_exit_code(Verdict verdict);

void visit_fields(Fields& f, BenchResult& result);
Json to_json(const BenchResult& result);  // schema "specdec.bench/1"
Page bench_page(const BenchResult& result);
// Returns a line for the log, for example "draft, K 4, batch 1: speed-up 1.31 [1.25, 1.37], 210 tokens/s".
std::string row_text(const BenchRow& row);
std::string bench_text(const BenchResult& result);
// Writes DIR/bench.json, bench.html and bench.md, each replaced atomically.
void write_bench(const BenchResult& result, const std::filesystem::path& directory);

}  // namespace specdec::deploy
