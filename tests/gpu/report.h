// The report file in which the tests of this folder pass their results to run.py. It is rewritten after each test and
// each figure, so that a crash or a hang loses no earlier result.
#pragma once

#include <string>

#include "base/json.h"

namespace specdec::gpu {

// Starts the report of this process. From now on each test is added to the report when the test ends.
// SPECDEC_GPU_REPORT names the file; without it, nothing is written. `device` describes where the tests run. The form
// of the file is:
//   {device, tests: [{name, passed, seconds, failures}], running: the name of the test that runs, or null,
//    figures: {group: {name: figure}}}
//
// Call start_report() once, between InitGoogleTest() and RUN_ALL_TESTS().
void start_report(Json device);

// Adds a measured figure to the report. `group` says what was measured, `name` under which conditions.
void record(const std::string& group, const std::string& name, Json figure);

}  // namespace specdec::gpu
