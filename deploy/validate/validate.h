// `specdec validate`: measures a draft with its target on recorded traffic and judges the draft.
#pragma once

#include <filesystem>

#include "base/clock.h"
#include "base/progress.h"
#include "base/schema/validation_report.h"
#include "deploy/report/gate_page.h"
#include "deploy/validate/cpu_meter.h"
#include "deploy/validate/options.h"

namespace specdec::deploy {

struct Validation {
  ValidationReport report;
  ReportDetails details;
};

// Checks the options first, then the binding. A stale draft gives the verdict kStale instead of an error, and nothing
// else is measured. Throws Error(kUsage) for invalid options, Error(kData) for data of another tokenizer or an empty
// split, and what loading and running models throws. Throws Error(kNetwork), the kind that means "try again", if a
// signal stops it.
Validation run_validate(const ValidateOptions& options, const Clock& clock, const CpuMeter& meter,
                        const ProgressFn& progress = {});

// Creates the directory and writes report.json, report.html, report.md and report.junit.xml, each replaced atomically.
void write_validation(const Validation& validation, const std::filesystem::path& directory);

}  // namespace specdec::deploy
