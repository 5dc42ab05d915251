#include "deploy/report/gate_ci.h"

#include <gtest/gtest.h>

#include "deploy/report/gate_checks.h"
#include "tests/base/sample_report.h"

namespace specdec::deploy {
namespace {

Fingerprint some_fingerprint() {
  Fingerprint f;
  f.config = f.tokenizer = f.header = f.weights = f.id = std::string(64, 'a');
  return f;
}
ValidationReport report() {
  return specdec::testing::sample_report(some_fingerprint(), some_fingerprint(), Verdict::kFail);
}
size_t count_of(const std::string& text, const std::string& part) {
  size_t n = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
  return n;
}

// The report has these checks: lossless, acceptance, two segments (one with a floor), comparison with the serving draft
// including one segment, and speed-up.
TEST(Junit, ASuiteForEverySegmentAndACaseForEveryCheck) {
  ValidationReport r = report();
  r.alpha = {0.40, {0.35, 0.45}, 40};           // below the floor 0.5
  r.segments[1].alpha = {0.7, {0.6, 0.8}, 20};  // the interval contains the floor 0.65
  const std::string xml = junit_xml(r);
  EXPECT_NE(xml.find("<testsuites name=\"specdec validate\" tests=\"7\" failures=\"1\" errors=\"2\" skipped=\"1\""),
            std::string::npos)
      << xml;
  EXPECT_EQ(count_of(xml, "<testsuite "), 3u);
  EXPECT_NE(xml.find("<testsuite name=\"all requests\" tests=\"4\" failures=\"1\" errors=\"1\" skipped=\"0\""),
            std::string::npos)
      << xml;
  EXPECT_NE(xml.find("<failure type=\"fail\" message=\"acceptance 0.400 [0.350, 0.450] is below the floor 0.50\">"),
            std::string::npos)
      << xml;
  EXPECT_NE(xml.find("<error type=\"inconclusive\" message=\"acceptance of chat 0.700 [0.600, 0.800] is not decided: "
                     "its interval contains its floor 0.65; give more requests (--max-requests 0 takes all)"),
            std::string::npos)
      << xml;
  EXPECT_NE(xml.find("<skipped message=\"not judged: acceptance of code"), std::string::npos) << xml;
  EXPECT_EQ(count_of(xml, "<testcase "), 7u);
}

TEST(Junit, HostileNamesStayText) {
  ValidationReport r = report();
  const std::string calm = junit_xml(r);
  r.segments[1].name = "\"><failure/>]]>&\x01\xff<!--";
  const std::string xml = junit_xml(r);
  EXPECT_EQ(count_of(xml, "<"), count_of(calm, "<"));
  EXPECT_EQ(count_of(xml, ">"), count_of(calm, ">"));
  EXPECT_EQ(count_of(xml, "\""), count_of(calm, "\""));
  EXPECT_EQ(xml.find('\x01'), std::string::npos);
  EXPECT_EQ(xml.find('\xff'), std::string::npos);
}

TEST(GitHub, AnnotationsOfWhatFailedOrIsOpen) {
  ValidationReport r = report();
  r.alpha = {0.40, {0.35, 0.45}, 40};
  r.segments[1].name = "a,b:c%\n::error::no";
  r.segments[1].alpha = {0.7, {0.6, 0.8}, 20};
  EXPECT_EQ(github_annotations(r),
            "::error title=specdec validate%3A acceptance::acceptance 0.400 [0.350, 0.450] is below the floor 0.50\n"
            "::warning title=specdec validate%3A acceptance of a%2Cb%3Ac%25 %3A%3Aerror%3A%3Ano::acceptance of "
            "a,b:c%25 ::error::no 0.700 [0.600, 0.800] is not decided: its "
            "interval contains its floor 0.65; give more requests (--max-requests 0 takes all)\n"
            "::warning title=specdec validate%3A against the serving draft::acceptance less that of the serving draft "
            "-0.010 [-0.030, +0.010] is not decided: its "
            "interval contains -0.020; give more requests (--max-requests 0 takes all)\n");
  r = report();
  r.segments.clear();
  for (int i = 0; i < 30; ++i) r.segments.push_back({"s" + std::to_string(i), {0.1, {0.05, 0.2}, 9}, {}, 0, 0.5});
  EXPECT_EQ(count_of(github_annotations(r), "::error "), 10u);
  r.segments.clear();
  r.baseline.reset();
  r.verdict = Verdict::kPass;
  EXPECT_EQ(github_annotations(r), "::notice title=specdec validate%3A pass::acceptance 0.70 above the floor\n");
  r.verdict = Verdict::kStale;
  EXPECT_EQ(count_of(github_annotations(r), "::error title=specdec validate%3A binding::"), 1u);
}

TEST(GitHub, OutputsAreOneLineEach) {
  EXPECT_EQ(github_outputs(report(), "out\nverdict=pass"),
            "verdict=fail\nacceptance=0.7000\nacceptance_low=0.6500\nacceptance_high=0.7500\nrequests=40\nspeedup=1."
            "4000\nreport=out verdict=pass\n");
}

TEST(GitHub, SummaryIsCutAtALine) {
  EXPECT_EQ(github_summary("a\nb\n", 4), "a\nb\n");
  const std::string cut = github_summary(std::string(50, 'a') + "\n" + std::string(50, 'b') + "\n", 90);
  EXPECT_EQ(cut, std::string(50, 'a') + "\n\n_The rest is in report.md._\n");
  EXPECT_EQ(github_summary(std::string(500, 'a'), 90), "");
  EXPECT_EQ(github_summary("abc", 2), "");
}

TEST(Checks, AStaleReportHasOne) {
  ValidationReport r = report();
  r.verdict = Verdict::kStale;
  r.reason = "made for another target";
  const auto checks = checks_of(r);
  ASSERT_EQ(checks.size(), 1u);
  EXPECT_EQ(checks[0].text, "made for another target");
  EXPECT_EQ(junit_xml(r).find("<failure type=\"stale\" message=\"made for another target\">") != std::string::npos,
            true);
}

}  // namespace
}  // namespace specdec::deploy
