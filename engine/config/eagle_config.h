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
  // target's V. draft_vocab lists the D ids of the rows of lm_head, ascending; it is empty if lm_head has all ids. The
  // ids are not in config.json but in the tensor d2t, so a parsed config has only draft_vocab_size.
  DecoderConfig layer;
  int64_t draft_vocab_size = 0;    // D
  int64_t target_hidden_size = 0;  // Et
  // The layers of the target from which the head reads hidden states, ascending: `k` is the residual stream after the
  // first k layers (HiddenObserver, vLLM's numbering, hidden_states[k] in transformers).
  std::vector<int64_t> taps;
  bool default_taps = true;  // config.json names no layers, so engines take [2, N / 2, N - 3]
  // Whether hidden_norm comes before the residual is taken, and not only before attention. SGLang cannot run such
  // heads.
  bool norm_before_residual = false;
  bool norm_before_fc = false;  // one norm over all tapped values
  bool fc_norm = false;         // one norm for each tap
  bool norm_output = false;     // the row that is fed back is the normalised one

  int64_t num_taps() const { return static_cast<int64_t>(taps.size()); }
};

// Returns the configuration of a new head for this target: a layer of the target's widths, with its rope, and the
// default taps. A target of 4 to 6 layers has no three different default taps; its head names others. Throws
// Error(kUsage) for fewer than 4 layers.
EagleConfig eagle_config_for(const DecoderConfig& target);

// Parses the config.json of a head for this target; `where` names the file in messages. Throws Error(kModel) that names
// file and key for anything that is missing, unsupported or does not fit the target.
EagleConfig parse_eagle_config(const Json& config, const DecoderConfig& target, const std::string& where);
EagleConfig load_eagle_config(const std::filesystem::path& directory, const DecoderConfig& target);

// Returns the config.json of the plain layout, without nulls.
Json to_json(const EagleConfig& config);

// Returns the config.json of the speculators layout. `verifier` is the target's name at the hub, `architecture` that of
// its config.json, and `k` the number of tokens that vLLM drafts per step.
struct Verifier {
  std::string name, architecture;
  int64_t k = 3;
};
Json to_speculators_json(const EagleConfig& config, const Verifier& verifier);

}  // namespace specdec::model
