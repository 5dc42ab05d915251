// `specdec bench`: plain decoding against speculation with each draft, K and batch size, on the same prompts and
// lengths.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/acceptance.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/progress.h"
#include "base/schema/validation_report.h"
#include "base/statistics.h"
#include "base/verdict.h"
#include "deploy/bench/options.h"
#include "deploy/report/page.h"
#include "deploy/validate/cpu_meter.h"

namespace specdec::deploy {

struct BenchRow {
  std::string draft;  // as given; empty for a normal row
  std::string name;   // for people: the directory's name where no other draft has it
  int k = 0;          // -1 = auto
  int batch = 1;
  int64_t tokens = 0;
  double seconds = 0;                            // of decoding: from the first step on
  double ttft_ms = 0;                            // mean
  double itl_p50 = 0, itl_p95 = 0, itl_p99 = 0;  // ms between deliveries
  AcceptanceCounts counts;
  Estimate speedup;  // against the normal row of the batch size; interval over groups, n = groups; n < 4: none
  // tau / (K·c + v): this row's overlaps, costs measured apart; 0: not a chain of a fixed K, or no costs
  double predicted = 0;
  int64_t greedy_prompts = 0, greedy_identical = 0, near_ties = 0, differences = 0;
  double sampled_p_value = 1;
  int64_t memory_bytes = 0;  // weights and caches
  bool normal() const { return draft.empty(); }
  double tokens_per_second() const { return seconds > 0 ? static_cast<double>(tokens) / seconds : 0; }
};
struct BenchResult {
  Verdict verdict = Verdict::kInconclusive;  // or kFaster, kNotWorthIt, kNotLossless, kStale
  std::string reason;
  std::string started;
  double seconds = 0;
  Json inputs;
  int64_t prompts = 0, answer_tokens = 0, rounds = 0;
  std::vector<BenchRow> rows;
  MachineUse machine;  // while the runs were timed: of the batch size that others took most from; busy: of the smallest
  std::vector<size_t> ranking;  // rows: the best of each draft at the smallest batch size, fastest first
  std::vector<std::string> notes;
};

// Runs are interleaved: each group of prompts goes through every configuration before the next group, each beside a
// normal run, step by step; those that other processes disturb are repeated (timed_pairs.h). Rows are logged as they
// complete. Throws Error(kUsage) for options, Error(kData) for data of another tokenizer or prompts without room, and
// what loading and running models throw.
BenchResult run_bench(const BenchOptions& options, const Clock& clock, const CpuMeter& meter,
                      const ProgressFn& progress = {});

// Verdict and ranking from the rows alone: not_lossless on any difference or p <= 1e-4; faster when the fastest
// speculative row at the smallest batch size gains with its whole interval; not_worth_it when its interval ends at or
// below 1; inconclusive on a machine that was busy at the smallest batch size.
void judge_bench(BenchResult& result);
int bench_exit_code(Verdict verdict);  // stale 5, not_lossless 3, else 0: an experiment that ran is done

Json to_json(const BenchResult& result);  // schema "specdec.bench/1"
Page bench_page(const BenchResult& result);
// one line, for the log: "draft, K 4, batch 1: speed-up 1.31 [1.25, 1.37], 210 tokens/s"
std::string row_text(const BenchRow& row);
std::string bench_text(const BenchResult& result);
// DIR/bench.json, bench.html and bench.md, each replaced atomically.
void write_bench(const BenchResult& result, const std::filesystem::path& directory);

}  // namespace specdec::deploy
