#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <sstream>

#include "base/base64.h"
#include "base/file.h"
#include "base/page/assets.h"
#include "base/page/page.h"
#include "base/sha256.h"
#include "base/shell.h"

namespace specdec {

namespace {

void replace_all(std::string& text, const std::string& from, const std::string& to) {
  for (size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size())
    text.replace(at, from.size(), to);
}

int hex_digit(char c) { return c <= '9' ? c - '0' : c - 'a' + 10; }

// Returns 'sha256-…' for a Content-Security-Policy: the digest in base64.
std::string csp_hash(const std::string& content) {
  const std::string hex = sha256_hex(content);
  std::string bytes;
  for (size_t i = 0; i < hex.size(); i += 2) bytes += static_cast<char>(hex_digit(hex[i]) * 16 + hex_digit(hex[i + 1]));
  return "'sha256-" + base64(bytes) + "'";
}

std::string valid_utf8(const std::string& text) {
  return Json::parse(Json(text).dump(-1, ' ', false, Json::error_handler_t::replace)).get<std::string>();
}

Json numbers(const std::vector<double>& values) {
  Json out = Json::array();
  for (const double v : values) out.push_back(std::isfinite(v) ? Json(v) : Json(nullptr));
  return out;
}

const char* css_class(VerdictClass verdict_class) {
  switch (verdict_class) {
    case VerdictClass::kGood:
      return "good";
    case VerdictClass::kBad:
      return "bad";
    case VerdictClass::kOpen:
      return "open";
  }
  return "open";
}

Json stretches_json(const std::vector<Stretch>& stretches) {
  Json out = Json::array();
  for (const Stretch& s : stretches)
    out.push_back({{"from", s.from}, {"to", s.to}, {"name", s.name}, {"tone", s.tone ? css_class(*s.tone) : "plain"}});
  return out;
}

bool has_points(const Chart& chart) {
  for (const Lane& lane : chart.lanes)
    if (!lane.stretches.empty()) return true;
  for (const Series& s : chart.series)
    for (const double y : s.y)
      if (std::isfinite(y)) return true;
  return false;
}

const char* name_of(Chart::Kind kind) {
  switch (kind) {
    case Chart::Kind::kLines:
      return "lines";
    case Chart::Kind::kBars:
      return "bars";
    case Chart::Kind::kLanes:
      return "lanes";
  }
  return "lines";
}

// The ends of the y axis, and whether the label of the horizontal line (Chart::rule) is drawn below the line because
// there is no space above it.
struct Frame {
  double low = 0, high = 1;
  bool is_label_below = false;
};

// Returns a y axis that contains every point, every interval and the horizontal line Chart::rule. Chart::y_min and
// y_max are used instead if they are set. The label of the line is 17 pixels high, at most a tenth of the axis; if
// y_max is not set, the axis extends far enough for the label.
Frame frame_of(const Chart& chart) {
  constexpr double kMargin = 0.08, kLabel = 0.1;
  double low = std::numeric_limits<double>::infinity(), high = -low;
  const auto take = [&](double y) {
    if (std::isfinite(y)) low = std::min(low, y), high = std::max(high, y);
  };
  for (const Series& s : chart.series)
    for (const std::vector<double>* values : {&s.y, &s.low, &s.high}) std::ranges::for_each(*values, take);
  if (chart.rule) take(*chart.rule);
  if (low > high) low = 0, high = 1;
  const double extent = high > low ? high - low : high != 0 ? std::abs(high) : 1, margin = kMargin * extent;
  Frame frame{chart.y_min.value_or(low - margin), chart.y_max.value_or(high + margin)};
  if (!chart.rule) return frame;
  if (!chart.y_max) frame.high = std::max(frame.high, (*chart.rule - kLabel * frame.low) / (1 - kLabel));
  frame.is_label_below = frame.high - *chart.rule < kLabel * (frame.high - frame.low) * (1 - 1e-9);
  return frame;
}

Json chart_json(const Chart& chart) {
  Json series = Json::array();
  for (const Series& s : chart.series) {
    series.push_back({{"name", s.name},
                      {"y", numbers(s.y)},
                      {"low", numbers(s.low)},
                      {"high", numbers(s.high)},
                      {"dashed", s.dashed}});
    if (s.colour) series.back()["colour"] = *s.colour;
  }
  Json out = {{"kind", name_of(chart.kind)}, {"xLabel", chart.x_label}, {"yLabel", chart.y_label},
              {"x", numbers(chart.x)},       {"xNames", chart.x_names}, {"series", series}};
  const Frame frame = frame_of(chart);
  out["yMin"] = frame.low;
  out["yMax"] = frame.high;
  if (chart.rule) out["rule"] = {{"y", *chart.rule}, {"name", chart.rule_name}, {"below", frame.is_label_below}};
  if (!chart.is_time) return out;
  out["time"] = true;
  if (chart.x_min) out["xMin"] = *chart.x_min;
  if (chart.x_max) out["xMax"] = *chart.x_max;
  out["marks"] = stretches_json(chart.marks);
  out["lanes"] = Json::array();
  for (const Lane& lane : chart.lanes)
    out["lanes"].push_back({{"name", lane.name}, {"stretches", stretches_json(lane.stretches)}});
  return out;
}

// Returns whether the text has a word that is too long for one line, such as a digest or a path.
bool has_long_word(const std::string& text) {
  constexpr size_t kLongest = 24;
  size_t length = 0;
  for (const char c : text)
    if ((length = c == ' ' ? 0 : length + 1) > kLongest) return true;
  return false;
}

// Returns a cell. On a narrow screen the rows of a text table are shown as paragraphs, in which the heading of the
// column precedes each cell.
std::string cell_html(const Table& table, const std::vector<std::string>& row, size_t column) {
  std::string attributes = column ? "" : " scope=\"row\"";
  if (table.text && column && column < table.head.size() && !table.head[column].empty() && !row[column].empty())
    attributes += " data-head=\"" + escape_html(table.head[column]) + "\"";
  if (has_long_word(row[column])) attributes += " class=\"long\"";
  const std::string tag = column ? "td" : "th";
  return "<" + tag + attributes + ">" + escape_html(row[column]) + "</" + tag + ">";
}

std::string table_html(const Table& table) {
  std::string out = std::string("<div class=\"table") + (table.text ? " text" : "") + "\"><table>";
  if (!table.title.empty()) out += "<caption>" + escape_html(table.title) + "</caption>";
  out += "<thead><tr>";
  for (const std::string& cell : table.head) out += "<th scope=\"col\">" + escape_html(cell) + "</th>";
  out += "</tr></thead><tbody>";
  for (const auto& row : table.rows) {
    out += "<tr>";
    for (size_t i = 0; i < row.size(); ++i) out += cell_html(table, row, i);
    out += "</tr>";
  }
  return out + "</tbody></table></div>";
}

std::string section_html(const Section& section, Json& charts) {
  std::string out = "<section><h2>" + escape_html(section.title) + "</h2>";
  if (!section.text.empty()) out += "<p>" + escape_html(section.text) + "</p>";
  std::string figures;
  for (const Chart& chart : section.charts) {
    if (!has_points(chart)) continue;
    const std::string title = escape_html(chart.title);
    figures += std::string("<figure") + (chart.is_time ? " class=\"time\"" : "") + "><figcaption>" + title +
               "</figcaption><div class=\"chart\" role=\"img\" aria-label=\"" + title + "\" data-chart=\"" +
               std::to_string(charts.size()) + "\"></div></figure>";
    charts.push_back(chart_json(chart));
  }
  if (!figures.empty()) out += "<div class=\"charts\">" + figures + "</div>";
  for (const Table& table : section.tables)
    if (!table.rows.empty()) out += table_html(table);
  return out + "</section>\n";
}

}  // namespace

VerdictClass class_of(Verdict verdict) {
  switch (verdict) {
    case Verdict::kPass:
    case Verdict::kFaster:
    case Verdict::kHealthy:
    case Verdict::kImproved:
      return VerdictClass::kGood;
    case Verdict::kFail:
    case Verdict::kNotLossless:
    case Verdict::kNotWorthIt:
    case Verdict::kStale:
    case Verdict::kDrift:
    case Verdict::kStaleTarget:
      return VerdictClass::kBad;
    case Verdict::kInconclusive:
    case Verdict::kWarn:
    case Verdict::kNoSignificantGain:  // longer training or more data may still help
      return VerdictClass::kOpen;
  }
  return VerdictClass::kOpen;
}

std::string escape_control(const std::string& text) { return one_line(valid_utf8(text)); }

std::string escape_html(const std::string& text) {
  std::string out;
  for (const char c : escape_control(text)) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

std::string script_json(const Json& value) {
  // In JSON text, the characters that are replaced below occur only inside strings, where \u escapes mean the same.
  std::string text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
  replace_all(text, "&", "\\u0026");
  replace_all(text, "<", "\\u003c");
  replace_all(text, ">", "\\u003e");
  replace_all(text, "\xE2\x80\xA8", "\\u2028");
  replace_all(text, "\xE2\x80\xA9", "\\u2029");
  return text;
}

namespace {

// Returns whether a word of the value is too long for a tile of normal width.
bool is_wide(const Tile& tile) {
  constexpr size_t kFits = 8;
  std::istringstream words(tile.value);
  for (std::string word; words >> word;)
    if (word.size() > kFits) return true;
  return false;
}

// Returns the first bytes of every page that this generator writes. They tell such a page from other files.
std::string beginning(const Page& page) {
  return "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"generator\" content=\"" +
         escape_html(page.generator) + "\">\n";
}

}  // namespace

std::string render_html(const Page& page) {
  const std::string styles[] = {assets::kUplotCss, assets::kReportCss},
                    scripts[] = {assets::kUplotJs, assets::kReportJs};
  Json charts = Json::array();
  std::string body;
  for (const Section& section : page.sections) body += section_html(section, charts);
  std::string tiles;
  for (const Tile& t : page.tiles)
    tiles += std::string("<div class=\"tile") + (is_wide(t) ? " wide" : "") + "\"><dt>" + escape_html(t.name) +
             "</dt><dd>" + escape_html(t.value) + "</dd><dd class=\"note\">" + escape_html(t.note) + "</dd></div>";
  std::string out =
      beginning(page) +
      "<meta http-equiv=\"Content-Security-Policy\" "
      "content=\"default-src 'none'; "
      "base-uri 'none'; form-action 'none'; style-src " +
      csp_hash(styles[0]) + " " + csp_hash(styles[1]) + "; script-src " + csp_hash(scripts[0]) + " " +
      csp_hash(scripts[1]) +
      "\">\n<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"><meta name=\"color-scheme\" "
      "content=\"light "
      "dark\">\n<title>" +
      escape_html(page.title) + "</title>\n<style>" + styles[0] + "</style>\n<style>" + styles[1] +
      "</style>\n</head><body><main>\n<header><h1>" + escape_html(page.title) + "</h1><p class=\"verdict " +
      css_class(page.verdict_class) + "\"><strong>" + escape_html(page.verdict) + "</strong> " +
      escape_html(page.reason) + "</p></header>\n<dl class=\"tiles\">" + tiles + "</dl>\n" + body + "</main>\n";
  out += "<script type=\"application/json\" id=\"charts\">" + script_json(charts) + "</script>\n";
  out += "<script type=\"application/json\" id=\"result\">" + script_json(page.data) + "</script>\n";
  out += "<!-- uPlot 1.6.32\n" + std::string(assets::kUplotLicense) + "\n-->\n<script>" + scripts[0] +
         "</script>\n<script>" + scripts[1] + "</script>\n</body></html>\n";
  return out;
}

void write_html(const Page& page, const fs::path& file) {
  std::error_code ec;
  const fs::file_status status = fs::status(file, ec);
  if (fs::is_directory(status))
    throw Error(ErrorKind::kUsage, file.string() + ": is a directory; expected the name of an HTML file");
  if (fs::exists(status) && !fs::is_regular_file(status))
    throw Error(ErrorKind::kUsage, file.string() + ": is not a regular file; expected the name of an HTML file");
  if (fs::exists(status) && fs::file_size(file, ec) > 0) {
    const std::string expected = beginning(page);
    std::string found(expected.size(), '\0');
    InputFile input(file, ErrorKind::kUsage);
    if (input.size() >= found.size()) input.read(0, std::as_writable_bytes(std::span(found)));
    if (found != expected)
      throw Error(ErrorKind::kUsage, file.string() + ": exists already and is no page of " + page.generator +
                                         "; expected the name of a new file, or of such a page");
  }
  write_file_atomic(file, render_html(page));
}

}  // namespace specdec
