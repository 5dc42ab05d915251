// A page of figures, tables and charts, as self-contained HTML (uPlot inlined, data embedded as JSON; no network, no
// CDN: its own Content-Security-Policy allows nothing but the inlined scripts and styles, by hash) and as Markdown.
// Used by validate, bench and distill.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/verdict.h"

namespace specdec::deploy {

// y values of one curve or one set of bars over Chart::x; NaN = no point there. low and high: whiskers, empty or as
// long as y.
struct Series {
  std::string name;
  std::vector<double> y, low, high;
  bool dashed = false;
};
struct Chart {
  enum class Kind { kLines, kBars };
  std::string title, x_label, y_label;
  Kind kind = Kind::kLines;
  std::vector<double> x;             // ascending
  std::vector<std::string> x_names;  // shown instead of numbers where not empty
  std::vector<Series> series;
  std::optional<double> rule;  // a horizontal line, labelled
  std::string rule_name;
  std::optional<double> y_min, y_max;
};
struct Table {
  std::string title;
  std::vector<std::string> head;
  std::vector<std::vector<std::string>> rows;  // first column left-aligned, others right
  bool text = false;                           // … others left-aligned and wrapped
};
struct Tile {
  std::string name, value, note;
};
struct Section {
  std::string title, text;
  std::vector<Chart> charts;
  std::vector<Table> tables;
};
// The class decides the colour and the mark that a page gives its verdict.
enum class VerdictClass { kGood, kBad, kOpen };
VerdictClass class_of(Verdict verdict);

struct Page {
  std::string title, verdict, reason;  // the verdict is as people read it
  VerdictClass verdict_class = VerdictClass::kOpen;
  std::vector<Tile> tiles;
  std::vector<Section> sections;
  Json data;  // the machine-readable result, embedded whole
};

// "not_worth_it" -> "not worth it".
std::string readable(std::string verdict);

// Every string is escaped; invalid UTF-8 is replaced. Charts without a finite value are left out.
std::string render_html(const Page& page);

// For comments on pull requests (GitHub, GitLab): verdict, reason, figures, and the tables folded away. Every string is
// escaped.
std::string render_markdown(const Page& page);

// DIR/<name>.html and <name>.md, each replaced atomically. Throws Error(kIo).
void write_pages(const Page& page, const std::filesystem::path& directory, const std::string& name);

// Valid UTF-8 on one line: what is invalid is replaced, control characters are spaces.
std::string escape_control(const std::string& text);
// Text content or a double-quoted attribute: & < > " ' and control characters.
std::string escape_html(const std::string& text);
// Text of one line: nothing in it starts a link, a tag, a table cell, code, emphasis or a mention.
std::string escape_markdown(const std::string& text);
// JSON that may stand inside a <script> element: no '<', '>', '&', U+2028 or U+2029 remains, and it parses to the same
// value.
std::string script_json(const Json& value);

}  // namespace specdec::deploy
