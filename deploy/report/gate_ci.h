// Writes a validation report for CI pipelines: JUnit XML, and the formats that GitHub Actions reads.
#pragma once

#include <cstddef>
#include <string>

#include "base/schema/validation_report.h"

namespace specdec::deploy {

// Returns one testsuite for all requests and one per segment, with one testcase per check. A failed check becomes a
// failure, an undecided check an error; both contain the figures. A check that was not measured or has no floor is
// marked as skipped.
std::string junit_xml(const ValidationReport& report);

// Returns workflow commands, one per line: ::error for every failed check, ::warning for every undecided
// check, ::notice for the verdict pass. Returns at most ten of each kind, because GitHub shows no more per step.
std::string github_annotations(const ValidationReport& report);
// Returns "key=value" lines for $GITHUB_OUTPUT: verdict, acceptance, acceptance_low, acceptance_high, requests,
// speedup, report.
std::string github_outputs(const ValidationReport& report, const std::string& directory);
// Returns the Markdown for $GITHUB_STEP_SUMMARY, cut at the end of a line to at most `limit` bytes.
std::string github_summary(const std::string& markdown, size_t limit);

}  // namespace specdec::deploy
