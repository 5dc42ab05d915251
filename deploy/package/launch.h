// Writes a package's launch files: how each engine serves this pair with the settings that passed the gate. If the pair
// did not pass, they start without the draft, and a comment says why and how to draft anyway. They are plain text
// without absolute paths, since the digest of the package covers them. Flags are those of vLLM 0.33, SGLang 0.5.23,
// TensorRT-LLM 1.2 and 1.3, llama.cpp of August 2026, KServe v1alpha2, and the chart vllm/vllm-stack of the vLLM
// production stack.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/schema/validation_report.h"
#include "base/verdict.h"

namespace specdec::deploy {

struct LaunchPlan {
  std::string name;              // served model name: letters, digits, '.', '_', '-', '/'
  std::string target_reference;  // "" = target/ inside the package
  std::string target_id;         // fingerprints, by which converted files are named
  std::string draft_id;
  std::string dtype;  // "fp32" | "bf16" | "fp16", as validated; for anything else the engine chooses
  // The gate's verification rule (run_options.h). Engines that know only token and block use token for the others.
  std::string verify;
  bool greedy = false;                // validated at temperature 0
  bool eagle3 = false;                // the draft is an EAGLE-3 head, else a separate model
  std::vector<std::string> variants;  // formats of its quantised variants, in draft-<format>/
  std::vector<ScheduleRow> schedule;  // from batch 1, ascending; if the gate did not pass, every k is 0
  Verdict verdict = Verdict::kPass;   // of the gate
  std::string gate;                   // gate_line() of the report, for a comment; "" = none
  int tried_k = 0;                    // if the gate did not pass: the K that it measured
  int max_k() const;
};

// Returns whether this config.json is of an EAGLE-3 head, plain or of the speculators library.
bool is_eagle3(const Json& config);

// Makes a plan with the report's schedule; if it has none, with the K of its roll-outs for every batch. Decoding is
// plain for every batch if the verdict is not pass.
LaunchPlan launch_plan(const ValidationReport& report, const std::string& name, const std::string& target_reference);

// Returns the names that --engines takes.
const std::vector<std::string>& known_engines();

// Returns file name inside engines/ → content, for the requested engines. Throws Error(kUsage) for an unknown engine.
std::map<std::string, std::string> launch_files(const LaunchPlan& plan, const std::vector<std::string>& engines);

}  // namespace specdec::deploy
