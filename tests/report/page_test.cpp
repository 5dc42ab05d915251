#include "deploy/report/page.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "deploy/report/assets.h"
#include "deploy/report/gate_page.h"

namespace specdec::deploy {
namespace {

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

// Returns what an HTML parser sees between <script …> and </script> of the block with this id.
std::string block(const std::string& html, const std::string& id) {
  const std::string open = "<script type=\"application/json\" id=\"" + id + "\">";
  const size_t start = html.find(open);
  if (start == std::string::npos) return "";
  return html.substr(start + open.size(), html.find("</script", start) - start - open.size());
}
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
    if (text[0] == '\xff') continue;  // JSON cannot hold this value
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
    // The elements are the same as with harmless text: none is opened, none is closed.
    for (const char* part : {"<script", "</script", "<style", "</style", "<!--", "-->", "<h1", "</title", "<"})
      EXPECT_EQ(count(small, part), count(lower(calm), part)) << part << " from " << text;
    for (const char* part : {"<img", "<svg", "<a ", "<b>", "<i>", "onerror=alert(3)>"})
      EXPECT_EQ(count(small, part), count(lower(calm), part)) << part;
    // This checks the part before the JSON blocks, because quotes end nothing inside them.
    const size_t body_end = html.find("<script type=\"application/json\"");
    EXPECT_EQ(html.substr(0, body_end).find("' onmouseover='"), std::string::npos);
    EXPECT_NO_THROW(Json::parse(block(html, "charts"))) << text;
    EXPECT_NO_THROW(Json::parse(block(html, "result"))) << text;
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
  const Json charts = Json::parse(block(html, "charts"));
  ASSERT_EQ(charts.size(), 1u);
  EXPECT_EQ(charts[0]["series"][0]["y"], Json({0.5, nullptr}));
  EXPECT_EQ(charts[0]["yMax"], 1.0);
  EXPECT_EQ(html.find("empty"), std::string::npos);
}

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
  const Json charts = Json::parse(block(html, "charts"));
  EXPECT_EQ(charts.size(), 7u);  // sequence, histogram, segments, positions, length, speed-up against K and batch
  EXPECT_EQ(charts[0]["x"], Json({1.0, 2.0}));
  EXPECT_EQ(charts[0]["series"][1]["y"], Json({0.0, 0.68}));
  EXPECT_EQ(charts[0]["rule"]["y"], 0.6);
  EXPECT_EQ(charts[2]["xNames"], Json({"</script>", "code"}));
  EXPECT_EQ(charts[3]["series"][0]["low"], Json({0.65, 0.5}));
  EXPECT_NEAR(charts[4]["series"][0]["y"][1].get<double>(), 1 + 0.7 + 0.7 * 0.7, 1e-12);  // from overlaps 0.7, 0.7
  EXPECT_EQ(charts[4]["series"][1]["y"], Json({nullptr, 2.0}));                           // 2 steps, 2 accepted
  EXPECT_EQ(charts[5]["series"][2]["y"], Json({nullptr, 1.25}));
  EXPECT_EQ(charts[5]["series"][0]["name"], "predicted, batch 1");
  EXPECT_EQ(charts[5]["series"][2]["name"], "measured, batch 1");
  EXPECT_EQ(charts[6]["xNames"], Json({"1 measured", "2–3 predicted", "4 predicted"}));
  EXPECT_EQ(charts[6]["series"][0]["y"], Json({1.25, 1.15, 0.96}));
  EXPECT_EQ(charts[6]["series"][0]["low"], Json({1.2, nullptr, nullptr}));
  EXPECT_FALSE(charts[2].contains("rule")) << "no segment has a floor";
  for (const char* part : {"<td>validated: measured with K = 2</td><td>1.25 [1.20, 1.30]</td>",
                           "<td>predicted with K = 2</td><td>1.15</td>", "0 (plain)",
                           "other processes used 0.0 of 2 CPUs; 26 timed runs, 2 of them disturbed",
                           "specdec package --target &#39;&lt;i&gt;&#39;"})
    EXPECT_NE(html.find(part), std::string::npos) << part;
  EXPECT_EQ(html.find("outside the measured interval"), std::string::npos);
  EXPECT_NE(html.find("2 of 9 requests were scored"), std::string::npos);
  EXPECT_EQ(Json::parse(block(html, "result")), to_json(r));
  EXPECT_NE(html.find("a note &lt;i&gt;"), std::string::npos);
  EXPECT_NE(html.find("&lt;b&gt;good"), std::string::npos);
}

// The chart draws the floor that all segments share. Where the floors differ, only the table shows them.
TEST(Report, TheFloorIsDrawnWhereSegmentsHaveIt) {
  ValidationReport r = full_report();
  const auto rule = [&] {
    return Json::parse(block(render_html(report_page(r, {})), "charts"))[2].value("rule", Json());
  };
  EXPECT_TRUE(rule().is_null());
  r.segments[0].floor = 0.55;
  EXPECT_TRUE(rule().is_null()) << "one of two";
  r.segments[1].floor = 0.55;
  EXPECT_EQ(rule()["y"], 0.55);
  r.segments[1].floor = 0.5;
  EXPECT_TRUE(rule().is_null());
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

// The legend of a chart lists its curves; uPlot would list the x-axis first.
TEST(ReportHtml, LegendsDoNotListTheAxis) {
  EXPECT_NE(std::string(assets::kReportCss).find(".u-legend .u-series:first-child { display: none; }"),
            std::string::npos);
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
  EXPECT_EQ(Json::parse(block(html, "charts")).size(), 0u);
  EXPECT_NE(html.find("verdict bad"), std::string::npos);
  EXPECT_EQ(report_text(r, {}).rfind("stale: made for another target", 0), 0u);
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
    // The structure is that of a page with harmless text: the same number of lines, cells and tags.
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
}  // namespace specdec::deploy
