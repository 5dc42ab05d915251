#include "base/schema/gate_summary.h"

#include <gtest/gtest.h>

#include "base/sha256.h"
#include "base/shell.h"
#include "tests/base/sample_report.h"

namespace specdec {
namespace {

ValidationReport report(Verdict verdict) {
  Json parts = {{"config", std::string(64, 'a')},
                {"header", std::string(64, '1')},
                {"tokenizer", std::string(64, '2')},
                {"weights", std::string(64, 'b')}};
  parts["id"] = sha256_hex(canonical_json(parts));
  const Fingerprint f = fingerprint_from_json(parts, "made up");
  ValidationReport r = testing::sample_report(f, f, verdict);
  r.baseline.reset();
  r.segments.clear();
  return r;
}
const GateCommand kCommand = {"models/target", "run/draft", "traffic", "gate", {"--max-k=4", "--speed-prompts=16"}};

TEST(GateSummary, TheCommandThatHelpsWithEachVerdict) {
  const auto next = [](const ValidationReport& r) { return next_command(r, kCommand); };
  EXPECT_EQ(next(report(Verdict::kPass)),
            "specdec package --target models/target --draft run/draft --report gate/report.json --store store "
            "--channel production");
  EXPECT_EQ(next(report(Verdict::kNotWorthIt)),
            "specdec bench --target models/target --draft run/draft --data traffic --out gate/bench");
  EXPECT_EQ(next(report(Verdict::kFail)),
            "specdec distill --target models/target --data traffic --draft model:run/draft --out run-next");
  EXPECT_EQ(next(report(Verdict::kStale)), next(report(Verdict::kFail)));
  const std::string again =
      "specdec validate --target models/target --draft run/draft --data traffic --out gate --max-k=4";
  EXPECT_EQ(next(report(Verdict::kNotLossless)), again + " --speed-prompts=16 --parts lossless --dtype fp32");
  GateCommand narrow = kCommand;
  narrow.flags = {"--max-k=4", "--dtype=bf16"};
  EXPECT_EQ(next_command(report(Verdict::kNotLossless), narrow), again + " --parts lossless --dtype fp32")
      << "no flag is given twice";
}

TEST(GateSummary, WhatIsOpenSaysWhatToGiveMoreOf) {
  const std::string again =
      "specdec validate --target models/target --draft run/draft --data traffic --out gate --max-k=4";
  ValidationReport r = report(Verdict::kInconclusive);
  r.alpha = {0.7, {0.65, 0.75}, 40};
  r.speedup = {1.02, {0.98, 1.06}, 8};
  EXPECT_EQ(next_command(r, kCommand), again + " --speed-prompts 39");
  r.machine->busy = true;
  EXPECT_EQ(next_command(r, kCommand), again + " --speed-prompts=16") << "the same again, when the machine is idle";
  r.machine.reset();
  r.alpha.ci.low = 0.4;
  EXPECT_EQ(next_command(r, kCommand), again + " --speed-prompts=16 --max-requests 0");
  GateCommand few = kCommand;
  few.flags = {"--max-requests=4", "--speed-prompts=2"};
  r.speedup.n = 2;
  for (const bool busy : {false, true}) {
    r.machine.emplace().busy = busy;
    EXPECT_EQ(next_command(r, few),
              "specdec validate --target models/target --draft run/draft --data traffic --out gate --max-requests 0 "
              "--speed-prompts 8")
        << "no circle: what this run's own limits left open is given more of";
  }
  r.machine.reset();
  r.speedup.n = 8;
  r.requests_available = r.alpha.n;
  EXPECT_EQ(next_command(r, kCommand), "specdec data ingest LOG... --target models/target --out traffic-more");
  r.has_lossless = false;
  EXPECT_EQ(next_command(r, kCommand), again + " --speed-prompts=16") << "without --parts all are measured";
}

TEST(GateSummary, PromptsThatDecide) {
  EXPECT_EQ(prompts_to_decide({1.5, {0.9, 2.1}, 8}), 16) << "at least twice as many";
  EXPECT_EQ(prompts_to_decide({1.0, {0.9, 1.1}, 8}), 256) << "what gains nothing is not asked for forever";
  EXPECT_EQ(prompts_to_decide({1.0, {0.9, 1.1}, 300}), 600);
  EXPECT_EQ(prompts_to_decide({1.1, {0.9, 1.3}, 1}), 8);
}

// Paths and reasons may contain any characters. The output must be one line with nothing that a shell would execute or
// a terminal would interpret.
TEST(GateSummary, ForeignTextIsHarmless) {
  ValidationReport r = report(Verdict::kNotWorthIt);
  r.reason = "speed-up\n\x1b[2Jof 'x'";
  EXPECT_EQ(gate_line(r), "not worth it: speed-up  [2Jof 'x'");
  r.target_path = "a b'; rm -rf /\n#";
  const std::string next = next_command(r, command_of(r, "gate"));
  EXPECT_EQ(next.rfind("specdec bench --target 'a b'\\''; rm -rf / #' --draft run/draft", 0), 0u) << next;
  EXPECT_EQ(json_of(gate_summary(r))["reason"], "speed-up  [2Jof 'x'");
  EXPECT_EQ(shell_words({"a", "", "b c", "it's"}), "a '' 'b c' 'it'\\''s'");
}

TEST(GateSummary, ALongReasonIsBriefWhereItStandsElsewhereInFull) {
  ValidationReport r = report(Verdict::kInconclusive);
  r.reason = "not measured: speed";
  EXPECT_EQ(gate_brief(r, "manifest.json"), "inconclusive: not measured: speed");
  r.reason =
      "acceptance 0.612 [0.550, 0.670] is not decided: its interval contains the floor 0.60; give more requests "
      "(--max-requests 0 takes all); speed-up at batch 1 1.043 [0.912, 1.180] decides nothing, because the machine was "
      "busy: other processes used 1.2 of 2 CPUs while it was timed; run it again on an idle machine";
  EXPECT_EQ(
      gate_brief(r, "manifest.json"),
      "inconclusive: acceptance 0.612 [0.550, 0.670] is not decided: its interval contains the floor 0.60 ... (in "
      "full: manifest.json)");
  EXPECT_EQ(gate_line(r), "inconclusive: " + r.reason);
  r.reason = std::string(125, 'x');
  for (int i = 0; i < 40; ++i) r.reason += "\u00e9";  // two bytes each
  EXPECT_EQ(gate_brief(r, "f"), "inconclusive: " + std::string(125, 'x') + " ... (in full: f)");
}

TEST(GateSummary, EveryRowSaysWhatItRestsOn) {
  EXPECT_EQ(schedule_line(report(Verdict::kPass).schedule),
            "batch 1: K 4 (validated: measured 1.40 [1.30, 1.50]), 2-4: K 4 (predicted 1.35), 5-16: K 3 (predicted "
            "1.10), 17-64: plain (K 2 predicted 0.90)");
  EXPECT_EQ(schedule_line({{1, 1, 0, true, 2, 0.912, {0.873, 0.953}}}),
            "batch 1: plain (K 2 measured 0.91 [0.87, 0.95])");
  EXPECT_EQ(schedule_line({{1, 4, 2}, {5, 8, 0}}), "batch 1-4: K 2 (predicted), 5-8: plain") << "of an earlier program";
  const Json json = json_of(gate_summary(report(Verdict::kPass)));
  EXPECT_EQ(json["schedule"].size(), json["schedule_figures"].size());
  EXPECT_EQ(json["schedule_figures"][0]["validated"], true);
  EXPECT_EQ(json["schedule_figures"][1]["basis"], "predicted");
}

// Reports of earlier versions lack these keys. The rows of their schedule (the best K by batch size) count as
// predicted, and nothing is known about the load of the machine.
TEST(ValidationReport, ReportsOfEarlierProgramsStayReadable) {
  Json json = to_json(report(Verdict::kPass));
  for (const char* key : {"schedule_figures", "machine", "prediction_fits"}) json["speed"].erase(key);
  for (const char* key : {"judged_by", "next"}) json.erase(key);
  const ValidationReport r = validation_report_from_json(json, "report.json");
  ASSERT_EQ(r.schedule.size(), 4u);
  for (const ScheduleRow& row : r.schedule) {
    EXPECT_FALSE(row.measured || row.validated());
    EXPECT_EQ(row.figure_k, 0);
  }
  EXPECT_FALSE(r.machine);
  EXPECT_TRUE(r.judged_by.empty() && r.next.empty());
}

}  // namespace
}  // namespace specdec
