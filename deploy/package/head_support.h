// Which engines can serve an EAGLE-3 head. A head reads hidden states of its target between layers, so the engine's
// code for the target's family must hand them out. Each engine reads different layouts of heads. The facts are those of
// vLLM 0.33, SGLang 0.5.23, TensorRT-LLM 1.2 and 1.3 (its one-model drafting), and llama.cpp of September 2026.
#pragma once

#include <string>
#include <vector>

#include "base/json.h"

namespace specdec::deploy {

// What launch files must know of a head and its target.
struct HeadFacts {
  std::string target_type;             // model_type of the target's config.json
  bool reduced_vocabulary = false;     // the head proposes only some of the target's tokens
  bool is_speculators_layout = false;  // the layout of the speculators library, else the plain one
  bool norm_before_residual = false;
  bool has_fc_norm = false;           // fc_norm or norm_output (EAGLE-3.1)
  bool hides_norm_before_fc = false;  // norm_before_fc is true under eagle_config and not at the top
  std::vector<int64_t> taps;          // layers that config.json names, not under eagle_config; empty = none
};
// Reads the config.json of the target and of the head.
HeadFacts head_facts(const Json& target, const Json& head);

// Returns the engines that know EAGLE-3 heads, as --engines names them.
const std::vector<std::string>& head_engines();

// Returns why the engine cannot hand out the hidden states of a target of this family, "" = it can, or the family is
// unknown here.
std::string tap_obstacle(const std::string& engine, const std::string& target_type);

// Returns why the engine cannot serve this head, "" = it can.
std::string head_obstacle(const std::string& engine, const HeadFacts& head);

}  // namespace specdec::deploy
