#include "base/page/page.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <limits>

#include "base/page/assets.h"
#include "tests/base/page/json_block.h"
#include "tests/base/scratch.h"

namespace specdec {
namespace {

using testing::json_block;

const std::vector<std::string> kHostile = {
    "<script>alert(1)</script>",
    "</script><script>alert(2)</script>",
    "</ScRiPt ><img src=x onerror=alert(3)>",
    "\"><svg onload=alert(4)>",
    "' onmouseover='alert(5)",
    "<!--<script>",
    "-->",
    "]]>",
    "&lt;script&gt;alert(6)&lt;/script&gt;",
    "javascript:alert(7)",
    "<style>*{display:none}</style>",
    "</title><h1>x",
    std::string("\xE2\x80\xA8"
                "alert(8)\xE2\x80\xA9"),
    std::string("\xff\xfe broken utf-8 <b>"),
    std::string("nul\0<i>", 7),
    "<a href=\"data:text/html,<script>alert(9)</script>\">",
    "{{constructor.constructor('alert(10)')()}}",
};

size_t count(const std::string& text, const std::string& part) {
  size_t n = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
  return n;
}
std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::tolower(c); });
  return text;
}

Page page_with(const std::string& text) {
  Page page;
  page.title = page.verdict = page.reason = text;
  page.tiles = {{text, text, text}};
  Chart chart{
      text, text, text, Chart::Kind::kBars, {0, 1}, {text, text}, {{text, {1, 2}, {0.5, 1.5}, {1.5, 2.5}, false}}, 1.0,
      text, {},   {}};
  page.sections = {{text, text, {chart}, {{text, {text, text}, {{text, text}}}}}};
  page.data = {{text == kHostile[13] ? "key" : text, text}, {"list", {text}}};
  return page;
}

TEST(ReportHtml, EscapesText) {
  EXPECT_EQ(escape_html("a<b>&\"'c"), "a&lt;b&gt;&amp;&quot;&#39;c");
  EXPECT_EQ(escape_html("tab\tnul\x01"), "tab nul ");
  EXPECT_EQ(escape_html("\xff"), "\xEF\xBF\xBD");
}

TEST(ReportHtml, ScriptJsonKeepsTheValue) {
  for (const std::string& text : kHostile) {
    if (text[0] == '\xff') continue;  // not UTF-8, so JSON cannot hold it
    const Json value = {{"k", text}};
    const std::string out = script_json(value);
    for (const char* bad : {"<", ">", "&", "\xE2\x80\xA8", "\xE2\x80\xA9"})
      EXPECT_EQ(out.find(bad), std::string::npos) << out;
    EXPECT_EQ(Json::parse(out), value);
  }
}

TEST(ReportHtml, HostileTextNeverBecomesMarkup) {
  const std::string calm = render_html(page_with("calm"));
  for (const std::string& text : kHostile) {
    const std::string html = render_html(page_with(text));
    const std::string small = lower(html);
    // The page has the same tags as with harmless text: hostile text opens and closes no element.
    for (const char* part : {"<script", "</script", "<style", "</style", "<!--", "-->", "<h1", "</title", "<"})
      EXPECT_EQ(count(small, part), count(lower(calm), part)) << part << " from " << text;
    for (const char* part : {"<img", "<svg", "<a ", "<b>", "<i>", "onerror=alert(3)>"})
      EXPECT_EQ(count(small, part), count(lower(calm), part)) << part;
    // Checks only the part before the JSON blocks. Inside the blocks, a quote cannot end an attribute.
    const size_t body_end = html.find("<script type=\"application/json\"");
    EXPECT_EQ(html.substr(0, body_end).find("' onmouseover='"), std::string::npos);
    EXPECT_NO_THROW(Json::parse(json_block(html, "charts"))) << text;
    EXPECT_NO_THROW(Json::parse(json_block(html, "result"))) << text;
  }
}

TEST(ReportHtml, LoadsNothingFromElsewhere) {
  const std::string html = render_html(page_with("calm"));
  for (const char* part : {"src=", "<link", "@import", "url(", "unsafe-inline", "unsafe-eval"})
    EXPECT_EQ(html.find(part), std::string::npos) << part;
  EXPECT_NE(html.find("default-src 'none'"), std::string::npos);
  EXPECT_EQ(count(html, "'sha256-"), 4u);
  // Each hash is the base64 of 32 bytes, which has 44 characters.
  const size_t at = html.find("'sha256-");
  EXPECT_EQ(html.find("'", at + 1) - at, 8u + 44u);
  EXPECT_NE(html.find(assets::kUplotLicense), std::string::npos);
  EXPECT_NE(html.find("prefers-color-scheme: dark"), std::string::npos);
  EXPECT_NE(html.find("@media print"), std::string::npos);
}

TEST(ReportHtml, ChartsCarryNumbersAndGaps) {
  Page page = page_with("calm");
  constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
  page.sections[0].charts = {
      {"t", "x", "y", Chart::Kind::kLines, {1, 2}, {}, {{"s", {0.5, kNone}, {}, {}, true}}, {}, "", 0.0, 1.0},
      {"empty", "x", "y", Chart::Kind::kLines, {1}, {}, {{"s", {kNone}, {}, {}, false}}, {}, "", {}, {}}};
  const std::string html = render_html(page);
  const Json charts = Json::parse(json_block(html, "charts"));
  ASSERT_EQ(charts.size(), 1u);
  EXPECT_EQ(charts[0]["series"][0]["y"], Json({0.5, nullptr}));
  EXPECT_EQ(charts[0]["yMax"], 1.0);
  EXPECT_EQ(html.find("empty"), std::string::npos);
}

// A chart draws only within its frame: points, ends of intervals, the horizontal line (Chart::rule) and its label.
TEST(ReportHtml, NothingLeavesTheFrameOfItsChart) {
  constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
  const auto frame = [](const Chart& chart) {
    Page page = page_with("calm");
    page.sections[0].charts = {chart};
    return Json::parse(json_block(render_html(page), "charts"))[0];
  };
  const auto expect_holds = [&](const Chart& chart) {
    const Json drawn = frame(chart);
    ASSERT_TRUE(drawn.contains("yMin") && drawn.contains("yMax")) << chart.title;
    const double low = drawn["yMin"], high = drawn["yMax"], label = 0.1 * (high - low) * (1 - 1e-6);
    for (const Series& s : chart.series)
      for (const auto* values : {&s.y, &s.low, &s.high})
        for (const double y : *values) EXPECT_TRUE(!std::isfinite(y) || (low <= y && y <= high)) << chart.title << y;
    if (!chart.rule) return;
    const bool is_below = drawn["rule"].value("below", false);
    EXPECT_GE(is_below ? *chart.rule - low : high - *chart.rule, label) << chart.title << ": space for the label";
    EXPECT_LE(is_below ? *chart.rule : *chart.rule + label, high) << chart.title;
  };
  Chart chart{"rule on top", "x", "y", Chart::Kind::kLines, {1, 2}, {}, {{"s", {0.1, 0.2}, {}, {}, false}}, 0.6,
              "floor 0.60",  {},  {}};
  expect_holds(chart);
  chart.title = "bars from zero";
  chart.kind = Chart::Kind::kBars;
  chart.y_min = 0;
  chart.rule = 1;
  expect_holds(chart);
  chart.title = "fixed ends";
  chart.y_max = 1;
  chart.rule = 0.95;
  expect_holds(chart);
  EXPECT_EQ(frame(chart)["rule"]["below"], true);
  EXPECT_EQ(frame(chart)["yMax"], 1.0) << "as the chart says";
  chart = {
      "intervals", "x", "y", Chart::Kind::kLines, {1, 2}, {}, {{"s", {2, kNone}, {-1, kNone}, {9, kNone}, false}}, {},
      "",          {},  {}};
  expect_holds(chart);
  chart.title = "one value";
  chart.series = {{"s", {0, 0}, {}, {}, false}};
  expect_holds(chart);
  EXPECT_LT(frame(chart)["yMin"].get<double>(), frame(chart)["yMax"].get<double>());
}

// Only words too long for any screen, such as digests, may be broken, and words in a tile only if the tile cannot be
// wider.
TEST(ReportHtml, WordsStayWhole) {
  Page page = page_with("calm");
  page.tiles = {{"State", "STALE_TARGET", ""}, {"Speed-up", "1.25 ×", ""}};
  page.sections[0].tables = {{"", {"check", "result", ""}, {{"lossless", "inconclusive", std::string(64, 'a')}}, true}};
  const std::string html = render_html(page), style = assets::kReportCss;
  for (const char* part :
       {"<div class=\"tile wide\"><dt>State", "<div class=\"tile\"><dt>Speed-up", "<th scope=\"row\">lossless</th>",
        "<td data-head=\"result\">inconclusive</td>", "<td class=\"long\">aaaa"})
    EXPECT_NE(html.find(part), std::string::npos) << part;
  const size_t cells = style.find(".table.text td {");
  ASSERT_NE(cells, std::string::npos);
  EXPECT_EQ(style.substr(cells, style.find('}', cells) - cells).find("anywhere"), std::string::npos);
}

TEST(ReportHtml, TimeChartsCarryLanesAndMarks) {
  Page page = page_with("calm");
  Chart lanes;
  lanes.title = "when";
  lanes.kind = Chart::Kind::kLanes;
  lanes.is_time = true;
  lanes.x_min = 100;
  lanes.x_max = 900;
  lanes.lanes = {{"verdict", {{200, 300, "drift", VerdictClass::kBad}, {400, 400, "now"}}}, {"empty", {}}};
  lanes.marks = {{200, 200, "drift", VerdictClass::kBad}};
  Chart none = lanes;
  none.title = "nothing";
  none.lanes = {{"verdict", {}}};
  page.sections[0].charts = {lanes, none};
  const std::string html = render_html(page);
  const Json charts = Json::parse(json_block(html, "charts"));
  ASSERT_EQ(charts.size(), 1u) << "a chart without a stretch is left out";
  EXPECT_EQ(charts[0]["kind"], "lanes");
  EXPECT_EQ(charts[0]["lanes"][0]["stretches"][0],
            (Json{{"from", 200.0}, {"to", 300.0}, {"name", "drift"}, {"tone", "bad"}}));
  EXPECT_EQ(charts[0]["lanes"][0]["stretches"][1]["tone"], "plain");
  EXPECT_EQ(charts[0]["marks"][0]["from"], 200.0);
  EXPECT_EQ(charts[0]["xMax"], 900.0);
  EXPECT_NE(html.find("<figure class=\"time\"><figcaption>when</figcaption><div class=\"chart\" role=\"img\" "
                      "aria-label=\"when\""),
            std::string::npos);
}

TEST(ReportHtml, APageReplacesNothingButItsOwnKind) {
  const testing::Scratch dir;
  Page page = page_with("calm");
  page.generator = "specdec x";
  write_html(page, dir / "new.html");
  EXPECT_EQ(testing::get(dir / "new.html"), render_html(page));
  page.reason = "later";
  write_html(page, dir / "new.html");
  EXPECT_EQ(testing::get(dir / "new.html"), render_html(page)) << "its own page is replaced";
  testing::put(dir / "empty", "");
  write_html(page, dir / "empty");
  EXPECT_EQ(testing::get(dir / "empty"), render_html(page));
  Page other = page;
  other.generator = "specdec x y";
  testing::put(dir / "other.html", render_html(other));
  testing::put(dir / "mine", "my own notes");
  for (const fs::path& foreign : {dir / "other.html", dir / "mine"}) {
    const std::string before = testing::get(foreign);
    testing::expect_error(ErrorKind::kUsage, {foreign.string(), "exists already and is no page of specdec x"},
                          [&] { write_html(page, foreign); });
    EXPECT_EQ(testing::get(foreign), before);
  }
  testing::expect_error(ErrorKind::kUsage, {"is a directory"}, [&] { write_html(page, dir.root()); });
  ASSERT_EQ(::mkfifo((dir / "pipe").c_str(), 0600), 0);
  testing::expect_error(ErrorKind::kUsage, {"is not a regular file"}, [&] { write_html(page, dir / "pipe"); });
  testing::expect_error(ErrorKind::kIo, {"none/x.html"}, [&] { write_html(page, dir / "none/x.html"); });
}

// The legend of a chart lists only its curves, although uPlot also lists the x axis, first.
TEST(ReportHtml, LegendsDoNotListTheAxis) {
  EXPECT_NE(std::string(assets::kReportCss).find(".u-legend .u-series:first-child { display: none; }"),
            std::string::npos);
}

TEST(ReportMarkdown, HostileTextStaysText) {
  std::vector<std::string> corpus = kHostile;
  for (const char* more :
       {"[click](https://evil)", "![x](https://evil/pixel)", "| cell | more |", "`code`", "```\nblock",
        "# heading\n- [ ] task", "@everyone look", "line\nbreak\r\n\r\n# h", "$(rm -rf)", "*bold* _it_ ~~gone~~",
        "</details>", "www.evil.example", "https://evil.example", "a\\b", ":bomb:"})
    corpus.push_back(more);
  const std::string plain = render_markdown(page_with("x"));
  for (const std::string& text : corpus) {
    const std::string markdown = render_markdown(page_with(text));
    // The structure equals that of a page with harmless text: the same number of lines, cells and tags.
    EXPECT_EQ(count(markdown, "\n"), count(plain, "\n")) << text;
    for (const char* mark : {"|", "<details>", "</details>", "<summary>", "**"})
      EXPECT_EQ(count(markdown, mark), count(plain, mark)) << text << " " << mark;
    for (const char* never : {"<script", "<img", "<svg", "](", "`", "@e", "www.", "://", "$(", ":bomb:", "<a ", "~~"})
      EXPECT_EQ(count(lower(markdown), never), 0u) << text << " " << never;
  }
}

TEST(ReportMarkdown, FiguresAndFoldedTables) {
  Page page;
  page.title = "Draft validation";
  page.verdict = "pass";
  page.verdict_class = VerdictClass::kGood;
  page.reason = "acceptance 0.73 is above the floor";
  page.tiles = {{"Acceptance", "0.730", "[0.700, 0.760]"}};
  page.sections = {{"Speed", "", {}, {{"", {"batch", "K = 1"}, {{"1", "1.50"}}, false}}}, {"Empty", "text", {}, {}}};
  const std::string markdown = render_markdown(page);
  EXPECT_NE(markdown.find("### Draft validation: ✅ pass\n\nacceptance 0.73 is above the floor\n"), std::string::npos)
      << markdown;
  EXPECT_NE(markdown.find("| Acceptance | 0.730 | [0.700, 0.760] |"), std::string::npos) << markdown;
  EXPECT_NE(markdown.find("<summary>Speed</summary>\n\n| batch | K = 1 |\n|---|---:|\n| 1 | 1.50 |"), std::string::npos)
      << markdown;
  EXPECT_EQ(count(markdown, "Empty"), 0u) << "a section without tables has nothing to unfold";
}

}  // namespace
}  // namespace specdec
