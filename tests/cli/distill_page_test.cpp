#include "cli/distill_page.h"

#include <gtest/gtest.h>

#include "tests/base/scratch.h"

namespace specdec::cli {
namespace {

using testing::put;
using testing::Scratch;

std::string line(const char* kind, int64_t step, double loss) {
  return Json({{"kind", kind}, {"step", step}, {"time", 1700000000}, {"loss", loss}}).dump() + "\n";
}

TEST(DistillPage, StepsRunAgainCountOnce) {
  const Scratch dir;
  // The run was stopped after step 4 and resumed from the checkpoint of step 2; a crash cut off the last line.
  put(dir / "metrics.jsonl", line("train", 1, 4) + line("train", 2, 3) + line("train", 3, 9) + line("train", 4, 9) +
                                 "no json\n[1]\n{\"kind\":7}\n" + line("train", 3, 2) + line("held_out", 3, 1) +
                                 "{\"kind\":\"train\",\"st");
  const auto curves = read_curves(dir / "metrics.jsonl");
  ASSERT_TRUE(curves.contains("train/loss"));
  EXPECT_EQ(curves.at("train/loss").step, (std::vector<double>{1, 2, 3}));
  EXPECT_EQ(curves.at("train/loss").value, (std::vector<double>{4, 3, 2}));
  EXPECT_EQ(curves.at("held_out/loss").value, std::vector<double>{1});
  EXPECT_EQ(curves.size(), 2u) << "time and step are no curves";
  EXPECT_TRUE(read_curves(dir / "nothing.jsonl").empty());
}

TEST(DistillPage, LongRunsAreThinnedToMeans) {
  const Scratch dir;
  std::string text;
  for (int step = 1; step <= 1201; ++step) text += line("train", step, step);
  put(dir / "metrics.jsonl", text);
  const Curve curve = read_curves(dir / "metrics.jsonl").at("train/loss");
  EXPECT_EQ(curve.step.size(), 401u);
  EXPECT_EQ(curve.value.front(), 2) << "the mean of 1, 2, 3";
  EXPECT_EQ(curve.value.back(), 1201) << "the rest is not lost";
}

TEST(DistillPage, ShowsWhereTheDraftIsAcceptedAndWhatTheRunCost) {
  const auto figure = [](double value) { return DistillFigure{value, value - 0.1, value + 0.1}; };
  const auto part = [&](const char* name, std::optional<DistillFigure> before, double after) {
    return DistillPart{name, before, figure(after), 20, 10, 1234};
  };
  DistillReport result;
  result.scores.emplace();
  result.scores->by_position = {part("1-16", figure(0.25), 0.75), part("17-64", {}, 0.5)};
  result.scores->by_domain = {part("", figure(0.2), 0.4), part("code", figure(0.3), 0.6)};
  result.cost = {.seconds = 7300,
                 .training_seconds = 3600,
                 .training_tokens = 5000000,
                 .tokens_per_second = 1388.9,
                 .device = "cpu",
                 .processes = 2,
                 .teacher_share = 0.4};
  const Page page = distill_page(result, {{"held_out/acceptance", {{0, 2}, {0.1, 0.3}}},
                                          {"held_out/acceptance_low", {{0, 2}, {0.05, 0.2}}},
                                          {"held_out/acceptance_high", {{0, 2}, {0.15, 0.4}}}});
  const Series& held_out = page.sections[0].charts.at(0).series.at(0);
  EXPECT_EQ(held_out.low, (std::vector<double>{0.05, 0.2}));
  EXPECT_EQ(held_out.high, (std::vector<double>{0.15, 0.4}));
  const Section& parts = page.sections.at(1);
  ASSERT_EQ(parts.charts.size(), 2u);
  EXPECT_EQ(parts.charts[0].x_names, (std::vector<std::string>{"1-16", "17-64"}));
  EXPECT_EQ(parts.charts[0].series[0].y, (std::vector<double>{0.75, 0.5}));
  EXPECT_EQ(parts.charts[0].series[0].low, (std::vector<double>{0.65, 0.4}));
  EXPECT_EQ(parts.tables[0].rows[1],
            (std::vector<std::string>{"17-64", "-", "0.500", "[0.400, 0.600]", "20", "10", "1234"}))
      << "a run that an earlier version began has no figure before training";
  EXPECT_EQ(parts.tables[1].rows[0][0], "no domain");
  const std::string html = render_html(page);
  for (const char* text : {"2h01m", "1h00m", "5000000", "1389", "40 %"})
    EXPECT_NE(html.find(text), std::string::npos) << text;
}

TEST(DistillPage, ShowsWhatTheResultHolds) {
  DistillReport result;
  result.verdict = Verdict::kImproved;
  result.reason = "better <b>by far</b>";
  result.scores.emplace();
  result.scores->before.figure = result.scores->after.figure = {0.5, 0.45, 0.55};
  result.scores->difference = {-0.0002, -0.0004, 0.0001};
  result.scores->conversations = 40;
  result.training = {.steps = 7, .tokens_per_second = 100.5, .kept_step = 6};
  result.training->layers = {
      {"probe_rows", 3},
      {"kept", {0, 2}},
      {"trials", {{{"layers", {1, 2}}, {"acceptance", 0.125}}, {{"layers", {0, 2}}, {"acceptance", 0.25}}}}};
  result.options = {{"loss", "kl"}, {"max_steps", 7}};
  const std::map<std::string, Curve> curves = {{"train/acceptance", {{1, 2}, {0.1, 0.2}}},
                                               {"held_out/acceptance", {{0, 2}, {0.05, 0.3}}}};
  const Page page = distill_page(result, curves);
  EXPECT_EQ(page.verdict_class, VerdictClass::kGood);
  // Each interval names its figure, because the interval of the gain is much narrower than those of the two
  // acceptances.
  ASSERT_EQ(page.tiles.size(), 4u);
  EXPECT_EQ(page.tiles[1].note, "95 % interval [0.450, 0.550]");
  EXPECT_EQ(page.tiles[2].name + " " + page.tiles[2].value, "Gain -0.0002");
  EXPECT_EQ(page.tiles[2].note, "95 % interval of the gain [-0.0004, +0.0001], on the same 40 conversations");
  ASSERT_EQ(page.sections.size(), 3u);
  ASSERT_EQ(page.sections[0].charts.size(), 1u) << "only curves that are there";
  const Chart& chart = page.sections[0].charts[0];
  EXPECT_EQ(chart.x, (std::vector<double>{0, 1, 2}));
  EXPECT_TRUE(std::isnan(chart.series[0].y[0]));
  EXPECT_EQ(chart.series[1].y[2], 0.3);
  const Table& tried = page.sections[1].tables[0];
  EXPECT_EQ(tried.rows[0].back(), "") << "tried, not kept";
  EXPECT_EQ(tried.rows[1].back(), "kept");
  const std::string html = render_html(page), markdown = render_markdown(page);
  for (const char* text :
       {"better &lt;b&gt;by far", "keeps layers 0 and 2 of the target", "1 and 2", "0.125", "0.250", "step 6 kept"})
    EXPECT_NE(html.find(text), std::string::npos) << text;
  EXPECT_NE(markdown.find("better &#60;b&#62;by far"), std::string::npos);
  // The page of a run that ended before training shows its reason.
  DistillReport without;
  without.reason = "too little data";
  EXPECT_NE(render_html(distill_page(without, {})).find("too little data"), std::string::npos);
}

}  // namespace
}  // namespace specdec::cli
