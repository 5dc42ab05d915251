// Defines the weights of an EAGLE-3 head, and loads and saves them.
#pragma once

#include <ATen/ATen.h>

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "engine/config/eagle_config.h"
#include "engine/weights/weights.h"

namespace specdec::model {

// In shapes: E is the hidden size of the head, Et of the target; A the number of taps (EagleConfig); H query heads, G
// kv heads, D their dimension; V vocabulary of the draft, Vt of the target.
struct EagleWeights {
  at::Tensor fc;                      // [E, A·Et]
  at::Tensor taps_norm;               // [A·Et], undefined unless norm_before_fc
  std::vector<at::Tensor> tap_norms;  // A tensors of [Et], empty unless fc_norm
  // The layer: q is [H·D, 2·E], k and v are [G·D, 2·E]; o, gate, up, down and mlp_norm are as in a decoder. input_norm
  // is the norm of the token's embedding.
  LayerWeights layer;
  at::Tensor hidden_norm;  // [E]; the norm of the hidden state
  at::Tensor norm;         // [E]
  at::Tensor lm_head;      // [V, E]
  // The token embedding [Vt, E], which is not a parameter and is never trained. It is the target's embedding unless
  // target and head differ in width.
  at::Tensor embed;

  // Calls f(name, tensor&) once for each parameter, with its name in checkpoints of the plain layout.
  void visit(const EagleConfig& config, const std::function<void(const std::string& name, at::Tensor&)>& f);
};

struct EagleHead {
  EagleConfig config;
  EagleWeights weights;
  const kernels::CudaLibrary* library = nullptr;  // see Decoder::library
};

int64_t num_parameters(const EagleConfig& config);

// Reads config.json and *.safetensors in either layout, and converts the weights to `dtype`. Throws Error(kModel) if
// tensors are missing, unknown or have wrong shapes; if d2t is not int64 or t2d is not bool; if d2t and t2d list
// different or unsorted ids; or if embed_tokens has the target's width but other values.
EagleHead load_eagle_head(const std::filesystem::path& directory, const Decoder& target, at::Device device,
                          at::ScalarType dtype);

// Returns a new head for the target. Its matrices are drawn from a normal distribution with standard deviation 1 /
// sqrt(3 · inputs), that of PyTorch's default for linear layers. `norm` is a copy of the target's final norm, and
// lm_head a copy of the target's rows for `draft_vocab` (ascending ids; empty: all). A seed gives the same weights on
// every machine.
EagleHead new_eagle_head(const Decoder& target, std::vector<int32_t> draft_vocab, uint64_t seed, at::ScalarType dtype);

// Returns a head of this configuration whose parameters are allocated but uninitialised. Its embedding is the target's,
// or uninitialised if the widths differ.
EagleHead empty_eagle_head(const EagleConfig& config, const Decoder& target, at::ScalarType dtype);

// Both functions write model.safetensors and config.json into an existing directory (fsynced): save_eagle_head() in the
// plain layout, save_as_speculators() in that of the speculators library. The embedding is left out if it is the
// target's.
void save_eagle_head(const EagleHead& head, const std::filesystem::path& directory);
void save_as_speculators(const EagleHead& head, const Verifier& verifier, const std::filesystem::path& directory);

}  // namespace specdec::model
