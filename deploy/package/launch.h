// Writes a package's launch files. Each starts one engine with the package's pair and the settings that passed the
// gate. If the pair did not pass, the file starts the engine without the draft, and a comment says why and how to draft
// anyway. Launch files are plain text without absolute paths, because the package's digest covers them. Their flags are
// those of vLLM 0.33, SGLang 0.5.23, TensorRT-LLM 1.2 and 1.3, llama.cpp of September 2026, KServe v1alpha2, and the
// chart vllm/vllm-stack of the vLLM production stack.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/schema/draft_kind.h"
#include "base/schema/validation_report.h"
#include "base/verdict.h"
#include "deploy/package/head_support.h"

namespace specdec::deploy {

struct LaunchPlan {
  std::string name;              // served model name: letters, digits, '.', '_', '-', '/'
  std::string target_reference;  // where engines find the target; "" = target/ inside the package
  std::string target_id;         // fingerprint ids of target and draft; they name the files that llama.cpp.sh writes
  std::string draft_id;
  std::string dtype;  // "fp32", "bf16" or "fp16": the dtype that the gate used, in which specdec serves
  // The dtype of the target's checkpoint: "fp32", "bf16" or "fp16", or "auto" for any other. Engines other than specdec
  // serve in this dtype, whatever dtype the gate used; with "auto" the engine chooses. If checkpoint_dtype is "", they
  // serve in `dtype`.
  std::string checkpoint_dtype = {};
  // Verification rule that the gate used (run_options.h). An engine that supports only `token` and `block` uses `token`
  // for any other rule.
  std::string verify;
  bool greedy = false;                 // the gate measured at temperature 0
  DraftKind kind = DraftKind::kModel;  // one of the kinds in kInEngines (launch.cpp)
  HeadFacts head;                      // set only if the draft is an EAGLE-3 head
  // The files of target and draft that are GGUF, such as model.gguf, if these models are GGUF files; else "".
  std::string target_gguf = {}, draft_gguf = {};
  // The package has gguf/target.gguf and gguf/draft.gguf, except for a target that is only referred to, an EAGLE-3
  // head, and models that are GGUF files.
  bool has_gguf = false;
  std::vector<std::string> variants;  // formats of the draft's quantised variants, in draft-<format>/
  std::vector<ScheduleRow> schedule;  // ascending, from batch size 1; if the gate did not pass, every k is 0
  Verdict verdict = Verdict::kPass;   // the gate's verdict
  std::string gate;                   // text of gate_brief() for a comment in the launch file; "" = none
  int tried_k = 0;                    // the K that the gate tried, if it did not pass
  // Why the engine of the launch file cannot serve this draft; set by launch_files(). If it is not "", the file starts
  // the engine without the draft and states this reason.
  std::string obstacle;
  int max_k() const;
};

// Returns the value of LaunchPlan::checkpoint_dtype for a target with this config.json.
std::string checkpoint_dtype(const Json& config);

// Makes a plan with the report's schedule. If the report has no schedule, every batch size gets the report's best K, or
// the K of its roll-outs if there is no best K. If the verdict is not pass, every K is 0 (plain decoding).
LaunchPlan launch_plan(const ValidationReport& report, const std::string& name, const std::string& target_reference);

// Returns the engine names that --engines accepts.
const std::vector<std::string>& known_engines();
void require_known_engines(const std::vector<std::string>& engines);  // throws Error(kUsage)

// Returns the launch files of the requested engines, as a map from file name inside engines/ to content. Throws
// Error(kUsage) for an unknown engine.
std::map<std::string, std::string> launch_files(const LaunchPlan& plan, const std::vector<std::string>& engines);

}  // namespace specdec::deploy
