// The commands that run models, defined in cli/engine/<command>.cpp.
#pragma once

#include "cli/command.h"

namespace specdec::cli {

int run_generate(const Global& global, const deploy::GenerateOptions& options);
int run_distill(const Global& global, const distill::DistillOptions& options);
int run_label(const Global& global, const distill::LabelOptions& options);
int run_validate(const Global& global, const deploy::ValidateOptions& options);
int run_bench(const Global& global, const deploy::BenchOptions& options);
int run_serve(const Global& global, const deploy::ServeOptions& options);
int run_doctor_gpus(const Global& global);

inline EngineRunners engine_runners() {
  return {run_generate, run_distill, run_label, run_validate, run_bench, run_serve, run_doctor_gpus};
}

}  // namespace specdec::cli
