// A validation report for the machines of a pipeline: JUnit XML, and what GitHub Actions reads.
#pragma once

#include <cstddef>
#include <string>

#include "base/schema/validation_report.h"

namespace specdec::deploy {

// One testsuite for all requests and one a segment, one testcase a check. A check that fails is a failure and an
// undecided one an error, both with the figures; what was not measured or has no floor is skipped.
std::string junit_xml(const ValidationReport& report);

// Workflow commands, a line each: ::error of every failed check, ::warning of every undecided one, ::notice of a pass;
// at most ten of a kind, as GitHub shows no more of a step.
std::string github_annotations(const ValidationReport& report);
// "key=value" lines for $GITHUB_OUTPUT: verdict, acceptance, acceptance_low, acceptance_high, requests, speedup,
// report.
std::string github_outputs(const ValidationReport& report, const std::string& directory);
// For $GITHUB_STEP_SUMMARY: the Markdown, cut at a line so that it has at most `limit` bytes.
std::string github_summary(const std::string& markdown, size_t limit);

}  // namespace specdec::deploy
