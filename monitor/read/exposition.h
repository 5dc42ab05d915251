// Reads pages in Prometheus' text format 0.0.4, and the common subset of OpenMetrics.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "base/error.h"

namespace specdec::monitor {

// An Error(kData) about the reply of a URL. It has a type of its own because, unlike a file, the URL may give a better
// reply the next time.
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
  // True if the name and all labels were read, even if the rest of the line is malformed. If a label occurs twice,
  // `sample` has its first value.
  bool is_named = false;
  std::string problem;  // why the line is malformed; "" = it is well-formed
  Sample sample;
};

// Parses a line without its line feed: name{key="value",…} number [timestamp]. Blanks and tabs may stand between any
// two of these parts. The name may also stand inside the braces, in quotes. Text after " # " is an exemplar and is
// skipped.
PageLine parse_line(std::string_view line);

// Writes name{key="value",…} with sorted labels, in the form that parse_line() reads.
std::string series_text(const std::string& name, const std::map<std::string, std::string>& labels);

// Facts about a reply that show whether its page is complete.
struct PageEnd {
  bool has_length = true;       // the HTTP headers say where the body ends
  bool is_openmetrics = false;  // an OpenMetrics page, whose last line must be "# EOF"
};
// Throws PageError if the page may be truncated. A counter without its last digits is smaller, which would look like a
// restarted server.
void require_whole_page(const std::string& text, const PageEnd& end, const std::string& where);

}  // namespace specdec::monitor
