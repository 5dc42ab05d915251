// Reads pages in Prometheus' text format 0.0.4, and the common subset of OpenMetrics.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "base/error.h"

namespace specdec::monitor {

// An Error(kData) about the reply of a URL. It has its own type because another poll may get a better reply, unlike a
// file.
class PageError final : public Error {
 public:
  explicit PageError(const std::string& message) : Error(ErrorKind::kData, message) {}
};

struct Sample {
  std::string name;
  std::map<std::string, std::string> labels;
  double value = 0;
};

// One parsed line of a page. If the line is malformed, `sample` has only what came before the problem.
struct PageLine {
  bool is_sample = false;  // false for blank lines, comments and malformed lines
  // True if the name and all labels were read, even if the line is malformed. If a label occurs twice, `sample` has its
  // first value.
  bool is_named = false;
  std::string problem;  // why the line is malformed, "" = it is not
  Sample sample;
};

// Parses name{key="value",…} number [timestamp] without the line feed. Blanks and tabs may stand between any two of
// these parts. The name may also stand inside the braces, in quotes. Text after " # " is an exemplar and is skipped.
PageLine parse_line(std::string_view line);

// Writes name{key="value",…} with sorted labels, in the form that parse_line() reads.
std::string series_text(const std::string& name, const std::map<std::string, std::string>& labels);

// The evidence in a reply that the page is complete.
struct PageEnd {
  bool has_length = true;       // the HTTP headers gave the body's end, so a broken transfer would have been noticed
  bool is_openmetrics = false;  // an OpenMetrics page, whose last line must be "# EOF"
};
// Throws PageError if the page may be truncated: a counter without its last digits looks smaller, like a restarted
// server.
void require_whole_page(const std::string& text, const PageEnd& end, const std::string& where);

}  // namespace specdec::monitor
