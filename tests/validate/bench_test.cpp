#include "deploy/bench/bench.h"

#include <gtest/gtest.h>

#include "deploy/validate/timed_run.h"
#include "tests/base/manual_clock.h"
#include "tests/lossless/toy.h"

namespace specdec::deploy {
namespace {

using decode::toy::Model;
using decode::toy::random_logits;
using specdec::testing::ManualClock;

// The draft equals the target, so every step emits K + 1 tokens. Each pass of the target takes one second.
TEST(BenchRun, TimesAndLatencies) {
  ManualClock clock;
  Model target(5, random_logits(1)), draft(5, random_logits(1));
  target.before_pass = [&](std::span<const decode::Extension>) { clock.now += 1; };
  decode::Stepper speculative(target, &draft), plain(target, nullptr);
  const std::vector<std::vector<int32_t>> prompts = {{0, 1, 2}, {3, 4}};  // prefilled in two passes
  GroupOptions o;
  o.request.max_tokens = 12;
  o.speculation.k = 3;
  const GroupFigures fast = run_group(speculative, prompts, o, nullptr, clock);
  EXPECT_EQ(fast.tokens, 24);
  EXPECT_DOUBLE_EQ(fast.prompt_seconds, 2);
  EXPECT_DOUBLE_EQ(fast.seconds, 3);  // three steps of four tokens
  EXPECT_EQ(fast.ttft_ms, (std::vector<double>{3000, 3000}));
  EXPECT_EQ(fast.itl_ms, (std::vector<double>{1000, 1000, 1000, 1000}));
  EXPECT_EQ(fast.counts.accepted, fast.counts.drafted);
  o.speculation.k = 0;
  const GroupFigures slow = run_group(plain, prompts, o, nullptr, clock);
  EXPECT_EQ(slow.tokens, 24);
  EXPECT_DOUBLE_EQ(slow.seconds, 12);
  EXPECT_EQ(slow.counts.drafted, 0);
  EXPECT_EQ(target.open_sequences(), 0u);
  EXPECT_EQ(draft.open_sequences(), 0u);
}

// The machine becomes ten times slower in the middle. If the two runs were timed one after the other, only the second
// would be slow.
TEST(BenchRun, WhatSlowsTheMachineSlowsBothSides) {
  ManualClock clock;
  Model target(5, random_logits(1)), draft(5, random_logits(1));
  int passes = 0;
  target.before_pass = [&](std::span<const decode::Extension>) { clock.now += ++passes > 32 ? 10 : 1; };
  decode::Stepper speculative(target, &draft), plain(target, nullptr);
  const std::vector<std::vector<int32_t>> prompts = {{0, 1, 2}};
  GroupRun slow(plain, prompts, {.speculation = {.k = 0}, .request = {.max_tokens = 48}}, nullptr, clock),
      fast(speculative, prompts, {.speculation = {.k = 3}, .request = {.max_tokens = 48}}, nullptr, clock);
  EXPECT_EQ(slow.share(), 0);
  run_side_by_side(slow, fast);
  EXPECT_TRUE(slow.done() && fast.done());
  EXPECT_EQ(slow.share(), 1);
  EXPECT_EQ(passes, 2 + 48 + 12);  // prompts + plain tokens + tokens / (K + 1)
  EXPECT_NEAR(slow.figures().seconds / fast.figures().seconds, 4, 0.4);
  EXPECT_EQ(slow.figures().tokens, fast.figures().tokens);
}

TEST(BenchRun, APromptThatFailsLeavesNoSequenceOpen) {
  ManualClock clock;
  Model target(5, random_logits(1));
  int passes = 0;
  target.before_pass = [&](std::span<const decode::Extension>) {
    if (++passes == 2) throw Error(ErrorKind::kDevice, "no room");
  };
  decode::Stepper plain(target, nullptr);
  const std::vector<std::vector<int32_t>> prompts = {{0, 1, 2}, {3, 4}};
  EXPECT_THROW(GroupRun(plain, prompts, {.request = {.max_tokens = 4}}, nullptr, clock), Error);
  EXPECT_EQ(target.open_sequences(), 0u);
}

TEST(BenchRun, SequencesThatAreDoneLeaveTheBatch) {
  ManualClock clock;
  Model target(5, random_logits(1)), draft(5, random_logits(2));
  size_t widest = 0, last = 0;
  target.before_pass = [&](std::span<const decode::Extension> e) {
    widest = std::max(widest, e.size());
    last = e.size();
  };
  decode::Stepper stepper(target, &draft);
  GroupOptions o;
  o.request.max_tokens = 40;
  o.speculation.k = 4;
  const std::vector<std::vector<int32_t>> prompts = {{0}, {1}, {2}};
  const GroupFigures f = run_group(stepper, prompts, o, nullptr, clock);
  EXPECT_EQ(f.tokens, 120);
  EXPECT_EQ(widest, 3u);
  EXPECT_EQ(last, 1u);
}

BenchRow row(const std::string& draft, int k, int batch, Estimate gain) {
  BenchRow r;
  r.draft = draft.empty() ? "" : "/models/" + draft;
  r.name = draft;
  r.k = k;
  r.batch = batch;
  r.tokens = 100;
  r.seconds = 2 / gain.value;
  r.speedup = gain;
  r.counts.drafted = draft.empty() ? 0 : 80;
  r.counts.accepted = draft.empty() ? 0 : 60;
  r.greedy_prompts = r.greedy_identical = draft.empty() ? 0 : 8;
  return r;
}
BenchResult result() {
  BenchResult r;
  r.rows = {row("", 0, 1, {1, {1, 1}, 8}),        row("A", 2, 1, {1.2, {1.1, 1.3}, 8}),
            row("A", 4, 1, {1.4, {1.3, 1.5}, 8}), row("B", -1, 1, {1.6, {1.5, 1.7}, 8}),
            row("", 0, 4, {1, {1, 1}, 2}),        row("A", 2, 4, {2.5, {2.4, 2.6}, 2})};
  judge_bench(r);
  return r;
}

TEST(BenchResult, RanksDraftsBySpeedupAtTheSmallestBatch) {
  const BenchResult r = result();
  EXPECT_EQ(r.ranking, (std::vector<size_t>{3, 2}));
  EXPECT_EQ(r.verdict, Verdict::kFaster);
  EXPECT_EQ(bench_exit_code(r.verdict), 0);
}

TEST(BenchResult, Verdicts) {
  BenchResult r = result();
  r.rows = {row("", 0, 1, {1, {1, 1}, 8}), row("A", 2, 1, {0.7, {0.6, 0.8}, 8})};
  judge_bench(r);
  EXPECT_EQ(r.verdict, Verdict::kNotWorthIt);
  EXPECT_EQ(bench_exit_code(r.verdict), 0);
  r.rows[1].speedup = {1.05, {0.95, 1.15}, 8};
  judge_bench(r);
  EXPECT_EQ(r.verdict, Verdict::kInconclusive);
  r.rows[1].speedup = {1.5, {1.4, 1.6}, 2};  // with only two groups the interval must not decide
  judge_bench(r);
  EXPECT_EQ(r.verdict, Verdict::kInconclusive);
  r.rows[1].speedup = {1.5, {1.4, 1.6}, 8};
  r.rows[1].differences = 1;
  judge_bench(r);
  EXPECT_EQ(r.verdict, Verdict::kNotLossless);
  EXPECT_EQ(bench_exit_code(r.verdict), 3);
  r.rows[1].differences = 0;
  r.rows[1].sampled_p_value = 1e-5;
  judge_bench(r);
  EXPECT_EQ(r.verdict, Verdict::kNotLossless);
  r.verdict = Verdict::kStale;
  EXPECT_EQ(bench_exit_code(r.verdict), 5);
}

TEST(BenchResult, ABusyMachineIsInconclusive) {
  BenchResult r = result();
  r.machine = MachineUse{2, 2, 1.9, 0, 0.95, 40, 40, 0, true};
  judge_bench(r);
  EXPECT_EQ(r.verdict, Verdict::kInconclusive);
  EXPECT_NE(r.reason.find("other processes used 1.9 of 2 CPUs"), std::string::npos) << r.reason;
  EXPECT_EQ(to_json(r)["machine"]["busy"], true);
  EXPECT_NE(bench_text(r).find("machine: other processes used 1.9 of 2 CPUs; 40 timed runs"), std::string::npos)
      << bench_text(r);
}

// A single table of fourteen columns would be wider than a page, so speed and latency have separate tables.
TEST(BenchResult, TablesFitThePage) {
  const Page page = bench_page(result());
  ASSERT_EQ(page.sections[0].tables.size(), 2u);
  for (const Table& table : page.sections[0].tables) {
    EXPECT_LE(table.head.size(), 9u);
    EXPECT_EQ(table.rows.size(), 6u);
    for (const auto& row : table.rows) EXPECT_EQ(row.size(), table.head.size());
  }
  EXPECT_EQ(page.sections[0].tables[1].head.back(), "memory MiB");
  EXPECT_EQ(row_text(result().rows[2]), "A, K 4, batch 1: speed-up 1.40 [1.30, 1.50], 70 tokens/s");
  EXPECT_EQ(row_text(result().rows[0]), "normal, batch 1: 50 tokens/s");
}

TEST(BenchResult, JsonOfTheContract) {
  const Json j = to_json(result());
  EXPECT_EQ(j["schema"], "specdec.bench/1");
  ASSERT_EQ(j["rows"].size(), 6u);
  const Json& normal = j["rows"][0];
  EXPECT_EQ(normal["mode"], "normal");
  EXPECT_TRUE(normal["draft"].is_null());
  EXPECT_EQ(normal["speedup"], 1.0);
  const Json& fast = j["rows"][3];
  EXPECT_EQ(fast["mode"], "speculative");
  EXPECT_EQ(fast["k"], "auto");
  EXPECT_EQ(fast["drafted"], 80);
  EXPECT_EQ(fast["accepted"], 60);
  EXPECT_EQ(fast["rejected"], 20);
  EXPECT_EQ(fast["ci"], Json({1.5, 1.7}));
  EXPECT_EQ(fast["quality"]["greedy_identical"], 8);
  for (const char* key : {"batch", "tokens", "seconds", "tokens_per_second", "ttft_ms", "itl_ms", "memory_bytes"})
    EXPECT_TRUE(fast.contains(key)) << key;
  for (const char* key : {"p50", "p95", "p99"}) EXPECT_TRUE(fast["itl_ms"].contains(key)) << key;
  EXPECT_TRUE(j["rows"][5]["ci"].is_null());
  EXPECT_EQ(j["ranking"][0]["draft"], "/models/B");
}

TEST(BenchResult, TextAndPage) {
  BenchResult r = result();
  r.notes = {"<b>note</b>"};
  const std::string text = bench_text(r);
  EXPECT_EQ(text.rfind("faster: fastest at batch 1: B, K auto, speed-up 1.60", 0), 0u) << text;
  EXPECT_NE(text.find("A, K 4"), std::string::npos);
  const std::string html = render_html(bench_page(r));
  EXPECT_NE(html.find("&lt;b&gt;note"), std::string::npos);
  EXPECT_EQ(html.find("<b>note"), std::string::npos);
  EXPECT_NE(html.find("Speed-up: A"), std::string::npos);
}

}  // namespace
}  // namespace specdec::deploy
