// Launch files of a package: how each engine serves this pair with the settings that passed the gate. Of a pair that
// did not pass they start without the draft, with a comment that says why and how to draft nevertheless. Plain text
// that names no absolute path, since the digest of the package covers it. Flags as of vLLM 0.33, SGLang 0.5.23,
// TensorRT-LLM 1.2 and 1.3, llama.cpp of August 2026, KServe v1alpha2, the chart vllm/vllm-stack of the vLLM production
// stack.
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
  std::string target_id;         // fingerprints, to name converted files after
  std::string draft_id;
  std::string dtype;  // "fp32" | "bf16" | "fp16", as validated; anything else: left to the engine
  // as the gate verified (run_options.h); engines that know only token and block verify by token otherwise
  std::string verify;
  bool greedy = false;                // validated at temperature 0
  bool eagle3 = false;                // the draft is an EAGLE-3 head, else a model of its own
  std::vector<std::string> variants;  // formats of quantised drafts beside it, in draft-<format>/
  std::vector<ScheduleRow> schedule;  // from batch 1, ascending; every k is 0 where the gate did not pass
  Verdict verdict = Verdict::kPass;   // of the gate
  std::string gate;                   // gate_line() of the report, for a comment; "" = none
  int tried_k = 0;                    // where the gate did not pass: the K it measured, to draft with nevertheless
  int max_k() const;
};

// config.json of an EAGLE-3 head, plain or of the speculators library.
bool is_eagle3(const Json& config);

// The report's schedule; where it has none, the K of its roll-outs for every batch. Plain for every batch where the
// verdict is not pass.
LaunchPlan launch_plan(const ValidationReport& report, const std::string& name, const std::string& target_reference);

// "specdec", "vllm", "sglang", "tensorrt-llm", "llama.cpp", "kserve", "helm".
const std::vector<std::string>& known_engines();

// File name inside engines/ → content, for the engines asked for. Throws Error(kUsage) for an unknown engine.
std::map<std::string, std::string> launch_files(const LaunchPlan& plan, const std::vector<std::string>& engines);

}  // namespace specdec::deploy
