// Reads pages in Prometheus' text format 0.0.4, and OpenMetrics pages as far as they look the same.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "base/error.h"

namespace specdec::monitor {

// An Error(kData) about what a URL answered. It has its own type because another poll may get a better answer, whereas
// a file stays as it is.
class PageError final : public Error {
 public:
  explicit PageError(const std::string& message) : Error(ErrorKind::kData, message) {}
};

struct Sample {
  std::string name;
  std::map<std::string, std::string> labels;
  double value = 0;
};

// One line of a page. If the line is malformed, `sample` has the name only if the name came before the problem.
struct PageLine {
  bool is_sample = false;  // false for blank lines and comments, too
  // True if the name and all labels were read, even if the line is malformed. If a label is there twice, `sample` has
  // its first value.
  bool is_named = false;
  std::string problem;  // why the line is malformed, "" = it is not
  Sample sample;
};

// Parses name{key="value",…} number [timestamp] without the line feed. Blanks and tabs may stand between any two of
// these parts. The name may also stand inside the braces, in quotes. What follows " # " is an exemplar and is skipped.
PageLine parse_line(std::string_view line);

// Writes a series in the form that parse_line() reads before the number, with sorted labels.
std::string series_text(const std::string& name, const std::map<std::string, std::string>& labels);

// How a reply shows that it is whole.
struct PageEnd {
  bool has_length = true;       // HTTP said where the body ends, so a broken transfer was noticed
  bool is_openmetrics = false;  // its last line is "# EOF"
};
// Throws PageError if the page may have been cut: a number without its last digits is a smaller number, and would be
// taken for the restart of a server.
void require_whole_page(const std::string& text, const PageEnd& end, const std::string& where);

}  // namespace specdec::monitor
