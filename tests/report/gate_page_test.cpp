#include "deploy/report/gate_page.h"

#include <gtest/gtest.h>

#include "tests/base/page/json_block.h"

namespace specdec::deploy {
namespace {

using testing::json_block;

ValidationReport full_report() {
  ValidationReport r;
  r.verdict = Verdict::kPass;
  r.reason = "<b>good</b>";
  r.started = "2026-11-21T12:00:00Z";
  for (Fingerprint* f : {&r.target, &r.draft})
    f->config = f->tokenizer = f->header = f->weights = f->id = std::string(64, 'a');
  r.target_path = "/models/<target>";
  r.draft_path = "/models/draft\"quoted\"";
  r.alpha = {0.71, {0.68, 0.74}, 2};
  r.alpha_tokens = 0.7;
  r.greedy_agreement = 0.66;
  r.tokens = 900;
  r.request_ids = {"a", "b"};
  r.request_alphas = {0.7, 0.72};
  r.rollout.k = 2;
  r.rollout.verify = "token";
  r.rollout.counts.add_step(2, 2, {0.8, 0.7});
  r.rollout.counts.add_step(2, 0, {0.6});
  r.segments = {{"</script>", {0.7, {0.6, 0.8}, 1}, {}, 1.5}, {"code", {0.72, {0.62, 0.82}, 1}, {}, 1.0}};
  r.sequence = {{1, 0.6, 0.0, 1.0}, {2, 0.71, 0.68, 0.74}};
  r.requests_available = 9;
  r.requests_needed = 2;
  r.break_even = {{1, 0.4}};
  r.predictions = {{8, 0.05, 1.1, 3, 1.75, 0.2}};
  r.has_speed = true;
  r.table = {{1, 1, 1.2}, {1, 2, 1.3}, {4, 1, 1.0}, {4, 2, 0.9}};
  r.schedule = {{1, 1, 2, true, 2, 1.25, {1.2, 1.3}}, {2, 3, 2, false, 2, 1.15}, {4, 4, 0, false, 1, 0.96}};
  r.predicted_speedup = 1.3;
  r.next = "specdec package --target '<i>'";
  r.machine = MachineUse{2, 2, 0.04, 0, 0.02, 26, 2, 1, false};
  r.speedup = {1.25, {1.2, 1.3}, 8};
  r.best_k = 2;
  r.has_lossless = true;
  r.greedy_prompts = r.greedy_identical = 16;
  return r;
}

TEST(Report, PageShowsEveryPart) {
  const ValidationReport r = full_report();
  const std::string html =
      render_html(report_page(r, {{{0.7, {0.65, 0.75}, 2}, {0.7, {0.5, 0.9}, 1}}, {"a note <i>"}}));
  const Json charts = Json::parse(json_block(html, "charts"));
  EXPECT_EQ(charts.size(), 7u);  // sequence, histogram, segments, positions, length, speed-up against K and batch
  EXPECT_EQ(charts[0]["x"], Json({1.0, 2.0}));
  EXPECT_EQ(charts[0]["series"][1]["y"], Json({0.0, 0.68}));
  EXPECT_EQ(charts[0]["rule"]["y"], 0.6);
  EXPECT_EQ(charts[2]["xNames"], Json({"</script>", "code"}));
  EXPECT_EQ(charts[3]["series"][0]["low"], Json({0.65, 0.5}));
  EXPECT_NEAR(charts[4]["series"][0]["y"][1].get<double>(), 1 + 0.7 + 0.7 * 0.7, 1e-12);  // both overlaps are 0.7
  EXPECT_EQ(charts[4]["series"][1]["y"], Json({nullptr, 2.0}));                           // 2 accepted in 2 steps
  EXPECT_EQ(charts[5]["series"][2]["y"], Json({nullptr, 1.25}));
  EXPECT_EQ(charts[5]["series"][0]["name"], "predicted, batch 1");
  EXPECT_EQ(charts[5]["series"][2]["name"], "measured, batch 1");
  EXPECT_EQ(charts[6]["xNames"], Json({"1 measured", "2–3 predicted", "4 predicted"}));
  EXPECT_EQ(charts[6]["series"][0]["y"], Json({1.25, 1.15, 0.96}));
  EXPECT_EQ(charts[6]["series"][0]["low"], Json({1.2, nullptr, nullptr}));
  EXPECT_FALSE(charts[2].contains("rule")) << "no segment has a floor";
  for (const char* part : {">validated: measured with K = 2</td><td data-head=\"speed-up\">1.25 [1.20, 1.30]</td>",
                           ">predicted with K = 2</td><td data-head=\"speed-up\">1.15</td>", "0 (plain)",
                           "other processes used 0.0 of 2 CPUs; 26 timed runs, 2 of them disturbed",
                           "specdec package --target &#39;&lt;i&gt;&#39;"})
    EXPECT_NE(html.find(part), std::string::npos) << part;
  EXPECT_EQ(html.find("outside the measured interval"), std::string::npos);
  EXPECT_NE(html.find("2 of 9 requests were scored"), std::string::npos);
  EXPECT_EQ(Json::parse(json_block(html, "result")), to_json(r));
  EXPECT_NE(html.find("a note &lt;i&gt;"), std::string::npos);
  EXPECT_NE(html.find("&lt;b&gt;good"), std::string::npos);
}

// The chart has a line for the floor only if all segments share the floor; otherwise only the table shows the floors.
TEST(Report, TheFloorIsDrawnWhereSegmentsHaveIt) {
  ValidationReport r = full_report();
  const auto rule = [&] {
    return Json::parse(json_block(render_html(report_page(r, {})), "charts"))[2].value("rule", Json());
  };
  EXPECT_TRUE(rule().is_null());
  r.segments[0].floor = 0.55;
  EXPECT_TRUE(rule().is_null()) << "one of two";
  r.segments[1].floor = 0.55;
  EXPECT_EQ(rule()["y"], 0.55);
  r.segments[1].floor = 0.5;
  EXPECT_TRUE(rule().is_null());
}

// The curves of the interval's ends are drawn only inside the chart's scale, which fits the later, narrower intervals.
TEST(Report, TheIntervalStaysInTheFrame) {
  ValidationReport r = full_report();
  r.sequence = {
      {1, 0.2, 0.0, 1.0}, {2, 0.25, 0.05, 0.9}, {3, 0.3, 0.1, 0.58}, {4, 0.3, 0.2, 0.4}, {5, 0.3, 0.25, 0.35}};
  const Json chart = Json::parse(json_block(render_html(report_page(r, {})), "charts"))[0];
  ASSERT_TRUE(chart.contains("yMax"));
  for (const Json& series : chart["series"])
    for (const Json& y : series["y"])
      EXPECT_TRUE(y.is_null() || (y >= chart["yMin"] && y <= chart["yMax"])) << series["name"] << " " << y;
  EXPECT_TRUE(chart["series"][2]["y"][0].is_null());
  EXPECT_EQ(chart["series"][2]["y"][2], 0.58);
  EXPECT_GT(chart["yMax"].get<double>(), 0.62) << "the label of the floor 0.60 has space";
}

// If times were measured on a busy machine, the titles of the figures computed from them say so.
TEST(Report, ABusyMachineIsNamedBesideItsFigures) {
  ValidationReport r = full_report();
  for (const bool is_busy : {false, true}) {
    r.machine->busy = is_busy;
    const Page page = report_page(r, {});
    const auto says = [](const std::string& text) { return text.find("busy") != std::string::npos; };
    for (const Tile& tile : page.tiles) EXPECT_EQ(says(tile.note), is_busy && tile.name == "Speed-up, batch 1");
    for (const Section& section : page.sections) {
      if (section.title != "Speed") continue;
      EXPECT_EQ(says(section.text), is_busy) << section.text;
      for (const Chart& chart : section.charts) EXPECT_EQ(says(chart.title), is_busy) << chart.title;
      for (const Table& table : section.tables) EXPECT_EQ(says(table.title), is_busy) << table.title;
    }
    const std::string text = report_text(r, {});
    for (const char* name : {"\n  speed-up ", "\n  schedule ", "\n  break-even "}) {
      const size_t at = text.find(name);
      ASSERT_NE(at, std::string::npos) << name;
      EXPECT_EQ(says(text.substr(at, text.find('\n', at + 1) - at)), is_busy) << name << text;
    }
  }
}

TEST(Report, APredictionThatTheMeasurementRefutesIsFlagged) {
  ValidationReport r = full_report();
  r.speedup = {0.912, {0.873, 0.953}, 8};
  r.predicted_speedup = 1.18;
  r.schedule = {{1, 1, 0, true, 2, 0.912, {0.873, 0.953}}, {2, 4, 0, false, 2, 1.1}};
  EXPECT_NE(report_text(r, {}).find("predicted 1.18, which is outside the measured interval\n"), std::string::npos)
      << report_text(r, {});
  EXPECT_NE(report_text(r, {}).find("batch 1: plain (K 2 measured 0.91 [0.87, 0.95]), 2-4: plain (K 2 predicted 1.10)"),
            std::string::npos)
      << report_text(r, {});
  EXPECT_NE(render_html(report_page(r, {})).find("The prediction 1.18 lies outside the measured interval"),
            std::string::npos);
  EXPECT_EQ(to_json(r)["speed"]["prediction_fits"], false);
}

TEST(Report, TextSaysVerdictAndReasonFirst) {
  const std::string text = report_text(full_report(), {});
  EXPECT_EQ(text.rfind("pass: <b>good</b>\n", 0), 0u);
  for (const char* part : {"acceptance", "0.710 [0.680, 0.740]", "tokens per step", "2.00 at K = 2", "speed-up",
                           "1.25 [1.20, 1.30]", "2 of 9 scored, 2 needed to decide", "acceptance 0.40 at batch 1",
                           "1.75 × at batch 8 with c = 0.05, v = 1.1: K = 3, break-even at acceptance 0.20",
                           "batch 1: K 2 (validated: measured 1.25 [1.20, 1.30]), 2-3: K 2 (predicted 1.15), 4: plain "
                           "(K 1 predicted 0.96)",
                           "other processes used 0.0 of 2 CPUs", "specdec package --target", "16 of 16 identical"})
    EXPECT_NE(text.find(part), std::string::npos) << part << " in\n" << text;
}

TEST(Report, StaleReportHasVerdictAndInputsOnly) {
  ValidationReport r;
  r.verdict = Verdict::kStale;
  r.reason = "made for another target";
  for (Fingerprint* f : {&r.target, &r.draft})
    f->config = f->tokenizer = f->header = f->weights = f->id = std::string(64, 'a');
  const std::string html = render_html(report_page(r, {}));
  EXPECT_EQ(Json::parse(json_block(html, "charts")).size(), 0u);
  EXPECT_NE(html.find("verdict bad"), std::string::npos);
  EXPECT_EQ(report_text(r, {}).rfind("stale: made for another target", 0), 0u);
}

}  // namespace
}  // namespace specdec::deploy
