// Says which engines can serve an EAGLE-3 head. A head reads hidden states from between the target's layers, so the
// engine must expose the hidden states of the target's model family. Engines also differ in the head layouts that they
// can read. The facts hold for vLLM 0.33, SGLang 0.5.23, TensorRT-LLM 1.2 and 1.3 (one-model drafting), and llama.cpp
// of September 2026.
#pragma once

#include <string>
#include <vector>

#include "base/json.h"

namespace specdec::deploy {

// Facts about a head and its target that the launch files depend on.
struct HeadFacts {
  std::string target_type;             // model_type of the target's config.json
  bool reduced_vocabulary = false;     // the head proposes only some of the target's tokens
  bool is_speculators_layout = false;  // the layout of the speculators library; false: plain EAGLE-3
  bool norm_before_residual = false;
  bool has_fc_norm = false;           // config.json has fc_norm or norm_output (EAGLE-3.1)
  bool hides_norm_before_fc = false;  // norm_before_fc is true under eagle_config but not at the top level
  std::vector<int64_t> taps;          // target layers that config.json names outside eagle_config; empty = none
};
// Extracts the facts from config.json of the target and config.json of the head.
HeadFacts head_facts(const Json& target, const Json& head);

// Returns the engines that support EAGLE-3 heads, as --engines names them.
const std::vector<std::string>& head_engines();

// Returns why the engine cannot expose the hidden states of a target of this family; "" if it can or if the family is
// not in the table.
std::string tap_obstacle(const std::string& engine, const std::string& target_type);

// Returns why the engine cannot serve this head; "" if it can.
std::string head_obstacle(const std::string& engine, const HeadFacts& head);

}  // namespace specdec::deploy
