#include "monitor/read/foreign_record.h"

#include <gtest/gtest.h>

#include "monitor/read/source.h"
#include "monitor/statistics/baseline.h"
#include "tests/base/scratch.h"
#include "tests/source_folder.h"

namespace specdec::monitor {
namespace {

using testing::expect_error;

const fs::path kFixtures = fs::path(source_folder()) / "tests/monitor/fixtures";

std::vector<AcceptanceRecord> read_fixture(const std::string& name) {
  std::vector<AcceptanceRecord> records;
  FilePosition position;
  const ReadFigures figures = read_records(kFixtures / name, file_identity(kFixtures / name), position,
                                           [&](const AcceptanceRecord& r) { records.push_back(r); });
  EXPECT_EQ(figures.broken_lines, 0) << figures.first_problem;
  for (const AcceptanceRecord& r : records) r.validate(name);
  return records;
}

TEST(ForeignRecords, VllmsResponses) {
  const auto records = read_fixture("vllm.jsonl");
  ASSERT_EQ(records.size(), 2u);
  const AcceptanceRecord& summary = records[0];  // from the histogram [8, 4, 10, 18] with K = 3
  EXPECT_EQ(summary.time, 1795262400);
  EXPECT_FALSE(summary.efficiency);
  EXPECT_EQ(summary.counts.steps, 40);
  EXPECT_EQ(summary.counts.accepted, 78);
  EXPECT_EQ(summary.counts.reached_at, (std::vector<int64_t>{40, 32, 28}));
  EXPECT_EQ(summary.counts.accepted_at, (std::vector<int64_t>{32, 28, 18}));
  EXPECT_EQ(summary.counts.overlap_sum_at, (std::vector<double>{32, 28, 18}));
  const AcceptanceRecord& detailed = records[1];  // K differs between steps, so the steps are counted one by one
  EXPECT_FALSE(detailed.efficiency);
  EXPECT_EQ(detailed.counts.drafted, 96);
  EXPECT_EQ(detailed.counts.accepted, 74);
  EXPECT_LT(detailed.counts.reached_at[2], 26) << "steps that drafted less do not reach the third position";
}

TEST(ForeignRecords, AiperfsAreTheSame) {
  const auto records = read_fixture("aiperf.jsonl");
  ASSERT_EQ(records.size(), 1u);
  EXPECT_EQ(records[0].counts.reached_at, (std::vector<int64_t>{40, 32, 28}));
}

TEST(ForeignRecords, SglangsRequestLog) {
  const auto records = read_fixture("sglang-request-metrics-20261122_05.log");
  ASSERT_EQ(records.size(), 2u);
  EXPECT_EQ(records[0].temperature, 0);
  EXPECT_FALSE(records[0].constrained);
  EXPECT_EQ(records[0].counts.reached_at, (std::vector<int64_t>{40, 31, 25}));  // from the histogram [9, 6, 5, 20]
  EXPECT_EQ(records[0].counts.accepted, 76);
  EXPECT_EQ(records[1].temperature, 0.6);
  EXPECT_TRUE(records[1].constrained);
  EXPECT_EQ(stratum_key(records[1]), "- t0.7 json");
  EXPECT_EQ(record_files(kFixtures).size(), 4u) << "the log is found in a directory, beside *.jsonl";
}

TEST(ForeignRecords, LlamasTimingsKnowTheEfficiencyAlone) {
  const auto records = read_fixture("llamacpp.jsonl");
  ASSERT_EQ(records.size(), 3u);
  EXPECT_TRUE(records[0].efficiency);
  EXPECT_EQ(records[0].counts.reached_at, std::vector<int64_t>{150});
  EXPECT_EQ(records[0].counts.overlap_sum_at, std::vector<double>{8});
  EXPECT_EQ(stratum_key(records[0]), "- eff") << "never judged by the gate's acceptance, which is another statistic";
}

TEST(ForeignRecords, TensorRtAndWhatOthersWrap) {
  const std::string trt = R"({"total_accepted_draft_tokens":30,"total_draft_tokens":60,"num_spec_steps":20,)"
                          R"("acceptance_histogram":[8,0,6,6],"num_spec_tokens":null})";
  auto records = foreign_records(R"({"response":{"body":{"choices":[{"speculative_decoding":)" + trt +
                                     R"(},{"speculative_decoding":)" + trt + R"(}]}},"domain":"a b/c"})",
                                 "x");
  ASSERT_EQ(records.size(), 2u);
  EXPECT_EQ(records[1].counts.reached_at, (std::vector<int64_t>{20, 12, 12}));
  EXPECT_EQ(records[1].segment, "a_b_c");
  records = foreign_records(
      R"({"num_draft_tokens":5,"num_accepted_draft_tokens":2,"num_spec_steps":2,"acceptance_histogram":[1,0,1]})", "x");
  EXPECT_TRUE(records[0].efficiency) << "5 tokens in 2 steps: what each drafted is not known";
  records = foreign_records(
      R"({"num_draft_tokens":5,"num_accepted_draft_tokens":2,"num_spec_steps":2,"acceptance_histogram":[1,0,1],)"
      R"("acceptance_histogram_by_draft_length":{"2":[0,0,1],"3":[1,0,0,0]}})",
      "x");
  EXPECT_EQ(records[0].counts.reached_at, (std::vector<int64_t>{2, 1, 0}));
}

std::string sglang(int64_t k, const std::vector<int64_t>& histogram) {
  int64_t steps = 0, accepted = 0;
  for (size_t j = 0; j < histogram.size(); ++j)
    steps += histogram[j], accepted += histogram[j] * static_cast<int64_t>(j);
  return Json({{"spec_verify_ct", steps},
               {"spec_num_proposed_drafts", steps * k},
               {"spec_num_correct_drafts", accepted},
               {"spec_correct_drafts_histogram", histogram}})
      .dump();
}

// With --speculative-eagle-topk 4, 5 steps and 8 draft tokens, SGLang counts 7 proposed tokens per step, in a tree of
// depth 5. A sixth position is never drafted, so a step that accepts 5 tokens has no rejection at position 6.
TEST(ForeignRecords, SglangsTreesEndAtTheirDepth) {
  const auto counts = [](int64_t k, const std::vector<int64_t>& histogram) {
    return foreign_records(sglang(k, histogram), "x").at(0).counts;
  };
  const std::vector<int64_t> deep = {1, 1, 1, 2, 0, 15}, full = {0, 0, 0, 0, 0, 20};
  EXPECT_EQ(counts(7, deep).reached_at, counts(5, deep).reached_at);
  EXPECT_EQ(counts(7, deep).accepted_at, counts(5, deep).accepted_at);
  EXPECT_EQ(counts(7, full).overlap(0), 1.0);
  EXPECT_EQ(counts(7, full).reached_at.size(), 5u);
  // The chains here have 7 tokens that are rejected at various positions, 7 tokens of which none is ever accepted, or a
  // single step. The depth of a chain is not cut.
  EXPECT_EQ(counts(7, {8, 6, 4, 3, 2, 1}).reached_at, (std::vector<int64_t>{24, 16, 10, 6, 3, 1, 0}));
  EXPECT_EQ(counts(7, {20}).reached_at[0], 20);
  EXPECT_EQ(counts(7, {20}).accepted_at[0], 0);
  EXPECT_EQ(counts(7, {0, 0, 1}).reached_at, (std::vector<int64_t>{1, 1, 1, 0, 0, 0, 0}));
}

TEST(ForeignRecords, SglangsFiguresAreReadOnceAnAnswer) {
  const Json figures = Json::parse(sglang(3, {5, 3, 5, 7})), message = {{"content", "t"}};
  const Json both = {{"choices", {{{"index", 0}, {"message", message}, {"meta_info", figures}}}},
                     {"sglext", {{"spec_tokens_details", figures}}}};
  EXPECT_EQ(foreign_records(both.dump(), "x").size(), 1u);
  const Json one = {{"choices", {{{"index", 0}, {"message", message}}}},
                    {"sglext", {{"spec_tokens_details", figures}}}};
  EXPECT_EQ(foreign_records(one.dump(), "x").size(), 1u);
  Json two = both;
  two["choices"].push_back(both["choices"][0]);
  EXPECT_EQ(foreign_records(two.dump(), "x").size(), 2u);
  const Json old = {{"spec_verify_ct", 20},
                    {"spec_draft_token_num", 60},
                    {"spec_accept_token_num", 34},
                    {"spec_accept_histogram", {5, 3, 5, 7}}};
  EXPECT_EQ(foreign_records(old.dump(), "x").at(0).counts.reached_at,
            foreign_records(figures.dump(), "x").at(0).counts.reached_at);
}

TEST(ForeignRecords, TensorRtsPerformanceMetrics) {
  const auto records = foreign_records(
      R"({"request_id":0,"perf_metrics":{"timing_metrics":{"arrival_time":1.0},"speculative_decoding":)"
      R"({"acceptance_rate":0.5,"total_accepted_draft_tokens":30,"total_draft_tokens":60}},"status":"complete"})",
      "x");
  ASSERT_EQ(records.size(), 1u);
  EXPECT_TRUE(records[0].efficiency);
  EXPECT_EQ(records[0].counts.reached_at, std::vector<int64_t>{60});
  EXPECT_EQ(records[0].counts.accepted_at, std::vector<int64_t>{30});
}

TEST(ForeignRecords, WhatIsNoneSaysSo) {
  for (const char* text : {"{}", "[]", "{\"timings\":{\"draft_n\":3}}", "{\"messages\":[{\"spec_verify_ct\":3}]}"})
    expect_error(ErrorKind::kData, {"line 1", "no acceptance in it"}, [&] { foreign_records(text, "line 1"); });
  const Json good = Json::parse(
      R"({"num_draft_tokens":6,"num_accepted_draft_tokens":2,"num_spec_steps":2,"acceptance_histogram":[1,0,1]})");
  EXPECT_NO_THROW(foreign_records(good.dump(), "x"));
  const auto broken = [&](const char* key, const Json& value) {
    Json bad = good;
    bad[key] = value;
    EXPECT_THROW(foreign_records(bad.dump(), "x"), Error) << bad;
  };
  broken("num_draft_tokens", 1);
  broken("num_draft_tokens", "6");
  broken("num_accepted_draft_tokens", 3);
  broken("num_spec_steps", 3);
  broken("num_spec_steps", -2);
  broken("acceptance_histogram", {1, 0, -1});
  broken("acceptance_histogram", 7);
  broken("acceptance_histogram", Json{{"x", 1}});
  broken("acceptance_histogram", Json{{"9999", 1}});
  broken("acceptance_histogram_by_draft_length", Json{{"1", {0, 0, 2}}});
  expect_error(ErrorKind::kData, {}, [] { foreign_records("{\"draft_n\":3,\"draft_n_accepted\":4}", "x"); });
  expect_error(ErrorKind::kData, {}, [] { foreign_records(std::string(100, '['), "x"); });
  expect_error(ErrorKind::kData, {}, [] { foreign_records("not json", "x"); });
}

}  // namespace
}  // namespace specdec::monitor
