// The configuration of an EAGLE-3 head (Li et al. 2025, arXiv 2503.01840): a draft of one decoder layer that reads
// hidden states of the target. Checkpoints have one of two layouts. The plain layout loads in vLLM and SGLang. The
// layout of the speculators library has no model_type, keeps the layer's settings under transformer_layer_config, and
// loads in vLLM alone.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/json.h"
#include "engine/config/config.h"

namespace specdec::model {

struct EagleConfig {
  // The head's layer: a Llama layer with hidden_size H, whose attention reads rows of 2·H values. vocab_size is the
  // target's. draft_vocab lists the D token ids of the rows of lm_head, ascending; it is empty if lm_head has all ids.
  // The ids are stored in the tensor d2t, not in config.json, so a config parsed from JSON has only draft_vocab_size.
  DecoderConfig layer;
  int64_t draft_vocab_size = 0;    // D
  int64_t target_hidden_size = 0;  // hidden size of the target
  // The layers of the target from which the head reads hidden states ("taps"), ascending. Tap k is the residual stream
  // after the target's first k layers, as in vLLM and in hidden_states[k] of transformers.
  std::vector<int64_t> taps;
  bool default_taps = true;  // config.json names no taps, so engines take [2, N / 2, N - 3] of N layers
  // If true, the residual is taken after hidden_norm; if false, before it. SGLang cannot run heads with true.
  bool norm_before_residual = false;
  bool norm_before_fc = false;  // true: one norm over the values of all taps together, before fc
  bool fc_norm = false;         // true: one norm for each tap, before fc
  bool norm_output = false;     // true: the row that is fed back to the head is normalised

  int64_t num_taps() const { return static_cast<int64_t>(taps.size()); }
};

// Returns the configuration of a new head for this target: one layer with the target's widths and rope, and the default
// taps. If the target has 4 to 6 layers, the three default taps would not all differ, so the configuration names
// other taps. Throws Error(kUsage) for fewer than 4 layers.
EagleConfig eagle_config_for(const DecoderConfig& target);

// Parses the config.json of a head for this target; `where` names the file in messages. Throws Error(kModel), which
// names file and key, if something is missing, unsupported or does not fit the target.
EagleConfig parse_eagle_config(const Json& config, const DecoderConfig& target, const std::string& where);
EagleConfig load_eagle_config(const std::filesystem::path& directory, const DecoderConfig& target);

// Returns the config.json of the plain layout. Keys without a value are left out.
Json to_json(const EagleConfig& config);

// The settings that only a config.json of the speculators layout has: `name` is the target's name at the hub,
// `architecture` is from the target's config.json, and `k` is the number of tokens that vLLM drafts per step.
struct Verifier {
  std::string name, architecture;
  int64_t k = 3;
};
Json to_speculators_json(const EagleConfig& config, const Verifier& verifier);

}  // namespace specdec::model
