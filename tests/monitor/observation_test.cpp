// Tests reading and judging sources. No models are needed: the package consists only of its manifest.
#include "monitor/observation.h"

#include <gtest/gtest.h>

#include "base/file.h"
#include "monitor/statistics/counter_chart.h"
#include "tests/base/sample_report.h"
#include "tests/base/scratch.h"
#include "tests/model/counted_malloc.h"
#include "tests/monitor/loopback.h"
#include "tests/monitor/traffic.h"

namespace specdec::monitor {
namespace {

using testing::expect_error;
using testing::put;
using testing::Scratch;

class Observed : public ::testing::Test {
 protected:
  Observed() {
    package.manifest.draft.id = std::string(64, 'd');
    package.manifest.target.id = std::string(64, 'a');
    report.temperature = 1;
    report.rollout.k = 1;
    report.rollout.alpha = {0.7, {0.695, 0.705}, 1000};
    report.rollout.counts.add_step(1, 1, {0.7});
    for (int i = 1; i < 1000; ++i) report.rollout.counts.add_step(1, i % 10 < 7, {0.7});
    options.sources = {(dir / "records.jsonl").string()};
    options.state = dir / "s.db";
  }

  void write(int n, double mean, const std::function<void(AcceptanceRecord&)>& change = {}) {
    std::ofstream out(dir / "records.jsonl", std::ios::app);
    for (int i = 0; i < n; ++i) {
      AcceptanceRecord r;
      r.time = 1795000000 + 60 * written++;
      r.draft = std::string(12, 'd');
      r.counts = traffic.request(mean);
      r.counts.drafted = r.counts.steps;
      r.counts.accepted_at = {r.counts.steps / 2};
      r.counts.accepted = r.counts.steps / 2;
      if (change) change(r);
      out << to_line(r) << "\n";
    }
  }

  // Makes one check with a new detector.
  Json look() {
    Detector detector = make_detector(options, package, report);
    State state(options.state);
    const Observation observation =
        observe({.options = options, .package = package, .report = report, .state = state, .now = kNow}, detector);
    keep(observation, state);
    judged = judge(options, detector, report, observation);
    return evidence_json(options, detector, observation);
  }

  Scratch dir{true};
  ResolvedPackage package;
  ValidationReport report = testing::sample_report({}, {});
  CheckOptions options;
  Judged judged;
  Traffic traffic{31};
  int64_t written = 0;
  static constexpr int64_t kNow = 1796000000;
};

TEST_F(Observed, ConditionsThatWereNotMeasuredAreToldAndNotJudged) {
  report.segments.clear();
  write(300, 0.40, [](AcceptanceRecord& r) { r.temperature = 0; });
  const Json e = look();
  EXPECT_EQ(judged.verdict, Verdict::kInconclusive);
  EXPECT_NE(judged.reason.find("300 of 300 new requests are of conditions that were never measured (such as '- t0')"),
            std::string::npos)
      << judged.reason;
  EXPECT_EQ(e["without_baseline"], 300);
  EXPECT_EQ(e["requests"], 0);
}

// Requests that were decoded without the draft say nothing about the draft. They are counted and reported, but not
// judged.
TEST_F(Observed, RequestsDecodedWithoutTheDraftAreToldAndNotJudged) {
  write(200, 0.60, [](AcceptanceRecord& r) {
    r.counts = {};
    r.counts.plain_steps = r.counts.emitted = 40;
  });
  const Json e = look();
  EXPECT_EQ(judged.verdict, Verdict::kInconclusive);
  EXPECT_NE(judged.reason.find("200 of 200 new requests were decoded without the draft"), std::string::npos)
      << judged.reason;
  EXPECT_EQ(e["not_drafted"], 200);
  EXPECT_EQ(e["without_baseline"], 0);
}

TEST_F(Observed, ABaselineOfTheTrafficTakesTheReportsPlace) {
  write(3000, 0.60, [](AcceptanceRecord& r) { r.temperature = 0; });
  write(500, 0.10, [](AcceptanceRecord& r) { r.draft = std::string(12, 'e'); });
  const EstimatedBaseline measured = measure_baseline(options.sources, package, kNow);
  ASSERT_EQ(measured.problem, "");
  EXPECT_EQ(measured.requests, 3000) << "another draft's requests are not its";
  options.baseline = dir / "baseline.json";
  put(options.baseline, to_json(measured.baseline).dump());
  Json e = look();
  EXPECT_EQ(judged.verdict, Verdict::kHealthy) << judged.reason;
  EXPECT_EQ(e["requests"], 3000);
  EXPECT_EQ(e["strata"][0]["name"], "- t0");
  EXPECT_GT(e["amber"]["limit"].get<double>(), 10) << "3,000 requests say what the spread is";
  EXPECT_EQ(e["mix"]["requests"], 3000);
  write(140, 0.55, [](AcceptanceRecord& r) { r.temperature = 0; });
  e = look();
  EXPECT_EQ(judged.verdict, Verdict::kWarn) << judged.reason;
  EXPECT_TRUE(e["amber"]["on"]);
  write(50, 0.10, [](AcceptanceRecord& r) { r.time = kNow + 2 * 86400; });
  EXPECT_EQ(measure_baseline(options.sources, package, kNow).requests, 3140) << "nor is what lies in the future";
  package.manifest.draft.id = std::string(64, 'e');
  expect_error(ErrorKind::kData, {options.baseline, "dddddddddddd", "eeeeeeeeeeee", "monitor baseline"},
               [&] { look(); });
  expect_error(ErrorKind::kUsage, {"http://x", "requests"}, [&] { measure_baseline({"http://x"}, package, kNow); });
}

// A directory has one file per hour of a year. The cost per file must not grow with the number of files.
TEST_F(Observed, EachFileOfADirectoryCostsTheSame) {
  if (!SPECDEC_OWN_MALLOC) GTEST_SKIP() << "the sanitizer has the heap";
  write(1, 0.70);
  fs::create_directory(dir / "year");
  options.sources = {(dir / "year").string()};
  int made = 0;
  const auto cost_of_a_file = [&](int more) {
    for (int i = 0; i < more; ++i)
      fs::copy_file(dir / "records.jsonl", dir / ("year/" + std::to_string(made++) + ".jsonl"));
    const auto cost = [&](const char* new_records) {
      Json e;
      const int64_t taken = allocations_of([&] { e = look(); });
      EXPECT_EQ(e["new_records"].dump(), new_records);
      return static_cast<double>(taken) / made;
    };
    const double with_news = cost(std::to_string(more).c_str()) * made / more;
    return std::pair{with_news, cost("0")};
  };
  const auto few = cost_of_a_file(20), many = cost_of_a_file(400);
  EXPECT_LT(many.first, 1.5 * few.first);
  EXPECT_LT(many.second, 1.5 * few.second);
}

TEST_F(Observed, ReplicasAreOneProcess) {
  Loopback a, b;
  options.sources = {a.url(), b.url()};
  double drafts[2] = {0, 0}, accepted[2] = {0, 0};
  const auto scrape = [&](double of_a, double of_b) {
    Loopback* servers[] = {&a, &b};
    const double overlap[] = {of_a, of_b};
    for (int i = 0; i < 2; ++i) {
      drafts[i] += 1000;
      accepted[i] += 1000 * overlap[i];
      servers[i]->page("vllm:spec_decode_num_drafts_total{model_name=\"m\"} " + std::to_string(drafts[i]) +
                       "\nvllm:spec_decode_num_draft_tokens_total{model_name=\"m\"} " + std::to_string(drafts[i]) +
                       "\nvllm:spec_decode_num_accepted_tokens_per_pos_total{model_name=\"m\",position=\"0\"} " +
                       std::to_string(accepted[i]) + "\n");
    }
    look();
    return judged.verdict;
  };
  for (int i = 0; i < 30; ++i) scrape(0.70 + 0.02 * traffic.normal(), 0.70 + 0.02 * traffic.normal());
  EXPECT_EQ(judged.verdict, Verdict::kHealthy) << judged.reason;
  drafts[1] = accepted[1] = 0;  // one replica is restarted
  for (int i = 0; i < 5; ++i) EXPECT_EQ(scrape(0.70, 0.70), Verdict::kHealthy) << judged.reason;
  for (int i = 0; i < 20; ++i) scrape(0.70, 0.58);
  EXPECT_EQ(judged.verdict, Verdict::kDrift);
  EXPECT_NE(judged.reason.find(a.url() + ", " + b.url()), std::string::npos) << judged.reason;
  options.model = "n";
  EXPECT_THROW(look(), PageError);
}

}  // namespace
}  // namespace specdec::monitor
