#include <algorithm>

#include "base/file.h"
#include "base/page/page.h"

namespace specdec {

namespace {

std::string table_markdown(const Table& table) {
  std::string out;
  if (!table.title.empty()) out += "**" + escape_markdown(table.title) + "**\n\n";
  const auto row = [&](const std::vector<std::string>& cells) {
    std::string line = "|";
    for (const std::string& cell : cells) line += " " + escape_markdown(cell) + " |";
    return line + "\n";
  };
  out += row(table.head) + "|";
  for (size_t i = 0; i < table.head.size(); ++i) out += i == 0 || table.text ? "---|" : "---:|";
  out += "\n";
  for (const auto& cells : table.rows) out += row(cells);
  return out + "\n";
}

const char* mark_of(VerdictClass verdict_class) {
  switch (verdict_class) {
    case VerdictClass::kGood:
      return "✅";
    case VerdictClass::kBad:
      return "❌";
    case VerdictClass::kOpen:
      return "❔";
  }
  return "❔";
}

}  // namespace

std::string escape_markdown(const std::string& text) {
  // Brackets are not special: without '(' or ':' they make no link.
  static const std::string kSpecial = "\\`*_{}()#!|~<>&$:";
  std::string out;
  for (const char c : escape_control(text)) {
    if (c == '@') {
      out += "@\xE2\x80\x8B";  // the zero-width space keeps "@name" from notifying anybody
    } else if (kSpecial.find(c) != std::string::npos ||
               (c == '.' && !out.empty() && (out.back() == 'w' || out.back() == 'W'))) {  // "www." begins a link
      out += "&#" + std::to_string(static_cast<int>(c)) + ";";
    } else {
      out += c;
    }
  }
  return out;
}

std::string render_markdown(const Page& page) {
  const char* mark = mark_of(page.verdict_class);
  std::string out = "### " + escape_markdown(page.title) + ": " + mark + " " + escape_markdown(page.verdict) + "\n\n" +
                    escape_markdown(page.reason) + "\n\n";
  if (!page.tiles.empty()) {
    Table tiles{"", {"figure", "value", ""}, {}, true};
    for (const Tile& t : page.tiles) tiles.rows.push_back({t.name, t.value, t.note});
    out += table_markdown(tiles);
  }
  for (const Section& section : page.sections) {
    std::string tables;
    for (const Table& table : section.tables) {
      if (!table.rows.empty()) tables += table_markdown(table);
    }
    if (!tables.empty())
      out += "<details><summary>" + escape_markdown(section.title) + "</summary>\n\n" +
             (section.text.empty() ? "" : escape_markdown(section.text) + "\n\n") + tables + "</details>\n\n";
  }
  return out;
}

void write_pages(const Page& page, const std::filesystem::path& directory, const std::string& name) {
  write_file_atomic(directory / (name + ".html"), render_html(page));
  write_file_atomic(directory / (name + ".md"), render_markdown(page));
}

}  // namespace specdec
