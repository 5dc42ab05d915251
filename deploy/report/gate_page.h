// A validation report for people: the HTML page and the lines on stdout.
#pragma once

#include <string>
#include <vector>

#include "base/schema/validation_report.h"
#include "deploy/report/page.h"

namespace specdec::deploy {

// What the page shows beside the report itself.
struct ReportDetails {
  std::vector<Estimate> overlap_at;  // of the roll-outs, with intervals by conversation
  std::vector<std::string> notes;    // warnings and what was left out, one line each
};

Page report_page(const ValidationReport& report, const ReportDetails& details);

// Verdict and reason first, then aligned figures; ends with a newline.
std::string report_text(const ValidationReport& report, const ReportDetails& details);

}  // namespace specdec::deploy
