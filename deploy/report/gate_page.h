// Presents a validation report to people: the HTML page and the text on stdout.
#pragma once

#include <string>
#include <vector>

#include "base/page/page.h"
#include "base/schema/validation_report.h"

namespace specdec::deploy {

// Details that the page shows in addition to the report.
struct ReportDetails {
  std::vector<Estimate> overlap_at;  // mean overlap at each draft position, with an interval over conversations
  std::vector<std::string> notes;    // warnings and omissions, one line each
};

Page report_page(const ValidationReport& report, const ReportDetails& details);

// Returns the text for stdout: verdict and reason first, then aligned figures; ends with a newline.
std::string report_text(const ValidationReport& report, const ReportDetails& details);

}  // namespace specdec::deploy
