#include "monitor/report/life_page.h"

#include <set>

#include "tests/base/page/json_block.h"
#include "tests/monitor/lived.h"

namespace specdec::monitor {
namespace {

using specdec::testing::json_block;

const Json& lane(const Json& chart, const std::string& name) {
  for (const Json& l : chart["lanes"])
    if (l["name"] == name) return l["stretches"];
  static const Json kNone = Json::array();
  return kNone;
}

TEST_F(Lived, AllChartsHaveOneAxisOfTime) {
  live_it_all();
  const std::string html = render_html(life_page(life(), "monitor.db"));
  const Json charts = Json::parse(json_block(html, "charts"));
  ASSERT_EQ(charts.size(), 4u) << "lanes, acceptance, evidence, domains";
  for (const Json& chart : charts) {
    EXPECT_EQ(chart["time"], true);
    EXPECT_EQ(chart["xMin"], charts[0]["xMin"]);
    EXPECT_EQ(chart["xMax"], charts[0]["xMax"]);
    EXPECT_EQ(chart["marks"], charts[0]["marks"]);
    EXPECT_TRUE(std::is_sorted(chart["x"].begin(), chart["x"].end()));
    for (const Json& series : chart["series"]) EXPECT_EQ(series["y"].size(), chart["x"].size());
  }
  EXPECT_EQ(charts[0]["kind"], "lanes");
  for (const char* name : {"verdict", "state", "training", "canary", "moves", "package", "target"})
    EXPECT_FALSE(lane(charts[0], name).empty()) << name;
  for (const Json& l : charts[0]["lanes"])
    for (size_t i = 1; i < l["stretches"].size(); ++i)
      EXPECT_LE(l["stretches"][i - 1]["to"], l["stretches"][i]["from"]) << l["name"] << ": stretches do not overlap";
  EXPECT_EQ(lane(charts[0], "training")[0]["tone"], "bad");
  std::set<std::string> marks;
  for (const Json& mark : charts[0]["marks"]) marks.insert(mark["name"].get<std::string>().substr(0, 7));
  for (const char* name : {"drift", "stale t", "promoti", "roll-ba", "package"})
    EXPECT_TRUE(marks.contains(name)) << name;
  EXPECT_EQ(charts[1]["series"][0]["name"], "acceptance");
  EXPECT_EQ(charts[1]["series"][2]["name"], "tolerated at least");
}

// The state that the first or the newest check reached is shown, although its span of time is still empty.
TEST_F(Lived, TheStateOfASingleCheckIsShown) {
  live(1, 0.80, 0.60, std::string(12, 'b'));
  const Life l = life();
  ASSERT_EQ(l.begin, l.end);
  ASSERT_GE(l.states.size(), 2u);
  const Json charts = Json::parse(json_block(render_html(life_page(l, "monitor.db")), "charts"));
  ASSERT_EQ(lane(charts[0], "state").size(), 1u);
  EXPECT_EQ(lane(charts[0], "state")[0]["name"], name(l.memory.stage));
}

TEST_F(Lived, ThePageIsCompleteWithoutItsCharts) {
  live_it_all();
  const Life l = life();
  const std::string html = render_html(life_page(l, "monitor.db"));
  for (const char* part :
       {"<title>A draft&#39;s life</title>", "name=\"generator\" content=\"specdec monitor report\"",
        "role=\"img\" aria-label=\"What was when\"", "What to run next", "Nothing needs to be done: keep checking.",
        "specdec monitor check --package STORE:CHANNEL", "By domain, since the detectors were last restarted",
        "<caption>Over time</caption>", "acceptance on the canary set changed by -0.100",
        "exit 1, after 0.0 h, attempts 1", "CANARY → HEALTHY (better)", "<th scope=\"col\">reason and figures</th>"})
    EXPECT_NE(html.find(part), std::string::npos) << part;
  EXPECT_EQ(Json::parse(json_block(html, "result")), to_json(l));
  EXPECT_EQ(life_summary(l).substr(0, 18), "watched for 39.9 d") << life_summary(l);
}

TEST_F(Lived, AnEmptyPageSaysWhatToRun) {
  {
    const State state(options.state);
  }
  const std::string empty = render_html(life_page(life(), "my state.db"));
  EXPECT_NE(empty.find("no check is recorded in my state.db"), std::string::npos);
  EXPECT_NE(empty.find("specdec monitor check --package STORE:CHANNEL --source RECORDS --target MODEL --state &#39;my "
                       "state.db&#39;"),
            std::string::npos)
      << empty.substr(empty.find("<main"), 3000);
  EXPECT_EQ(Json::parse(json_block(empty, "charts")).size(), 0u);
  write_requests(20, 0.80, 0.60);
  see();
  const std::string young = render_html(life_page(life(), "s.db"));
  EXPECT_NE(young.find("too little data: 20 of 50 requests judged"), std::string::npos);
  EXPECT_NE(young.find("specdec monitor watch --package"), std::string::npos) << "the check's own advice";
}

}  // namespace
}  // namespace specdec::monitor
