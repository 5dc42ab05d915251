// A page of figures, tables and charts, rendered as self-contained HTML and as Markdown. The HTML has uPlot inlined and
// the data embedded as JSON, and loads nothing from the network: its Content-Security-Policy allows only the inlined
// scripts and styles, by hash. Used by validate, bench, distill and monitor report.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/verdict.h"

namespace specdec {

// Holds the y values of one curve or one set of bars over Chart::x; NaN = no point there. `low` and `high` are the ends
// of whiskers; each is empty or as long as `y`.
struct Series {
  std::string name;
  std::vector<double> y, low, high;
  bool dashed = false;
  // Index of a colour, 0 to 5, in the palette of the page. With it, a name can have the same colour in several charts.
  // Without it, the position of the series in the chart decides.
  std::optional<int> colour = {};
};
// The class of a verdict. It decides the colour and the mark with which a page shows the verdict.
enum class VerdictClass { kGood, kBad, kOpen };
VerdictClass class_of(Verdict verdict);

// A named stretch of a time axis, from `from` to `to` in unix seconds. `from` equals `to` for a single moment. Without
// `tone`, the stretch is drawn as neither good nor bad.
struct Stretch {
  double from = 0, to = 0;
  std::string name;
  std::optional<VerdictClass> tone = {};
};
struct Lane {
  std::string name;  // shown beside the lane, which has space for at most ten characters
  std::vector<Stretch> stretches;
};
struct Chart {
  enum class Kind { kLines, kBars, kLanes };
  std::string title, x_label, y_label;
  Kind kind = Kind::kLines;
  std::vector<double> x;             // ascending
  std::vector<std::string> x_names;  // names to show at x instead of numbers; empty = numbers
  std::vector<Series> series;
  std::optional<double> rule;  // y of a horizontal line with the label rule_name
  std::string rule_name;
  std::optional<double> y_min, y_max;
  // If true, x is in unix seconds and shown in UTC. A time chart takes the whole width of the page. All time charts of
  // a page have a common cursor and equally wide margins. With equal x_min and x_max, their times are aligned.
  bool is_time = false;
  std::optional<double> x_min = {}, x_max = {};
  std::vector<Stretch> marks = {};  // moments drawn as vertical lines; only in time charts
  std::vector<Lane> lanes = {};     // only of kLanes charts, from top to bottom; such a chart has no x and no series
};
struct Table {
  std::string title;
  std::vector<std::string> head;
  std::vector<std::vector<std::string>> rows;  // the first column is left-aligned, the others right-aligned
  bool text = false;                           // true: the other columns are left-aligned too, and wrapped
};
struct Tile {
  std::string name, value, note;
};
struct Section {
  std::string title, text;
  std::vector<Chart> charts;
  std::vector<Table> tables;
};
struct Page {
  std::string title, verdict, reason;  // verdict: in readable form, "not worth it"
  std::string generator = "specdec";   // the command that makes such pages
  VerdictClass verdict_class = VerdictClass::kOpen;
  std::vector<Tile> tiles;
  std::vector<Section> sections;
  Json data;  // the machine-readable result; all of it is embedded
};

// Renders the HTML page. Escapes every string and replaces invalid UTF-8. Leaves out charts that have neither a finite
// value nor a Stretch.
std::string render_html(const Page& page);
// Replaces `file` by the HTML page. Throws Error(kUsage) if `file` exists, is not empty and was not written by the same
// generator (Page::generator); throws Error(kIo) if the file cannot be written.
void write_html(const Page& page, const std::filesystem::path& file);

// Renders Markdown for comments on pull requests (GitHub, GitLab): verdict, reason, figures, and folded tables. Escapes
// every string.
std::string render_markdown(const Page& page);

// Writes DIR/<name>.html and <name>.md, each replaced atomically. Throws Error(kIo).
void write_pages(const Page& page, const std::filesystem::path& directory, const std::string& name);

// Returns valid UTF-8 on one line: replaces invalid bytes, and turns control characters into spaces.
std::string escape_control(const std::string& text);
// Escapes & < > " ' and control characters, for text content or a double-quoted attribute.
std::string escape_html(const std::string& text);
// Escapes one line of text so that nothing in it starts a link, a tag, a table cell, code, emphasis or a mention.
std::string escape_markdown(const std::string& text);
// Returns JSON that is safe inside a <script> element: it has no '<', '>', '&', U+2028 or U+2029, and parses to the
// same value.
std::string script_json(const Json& value);

}  // namespace specdec
