// Decoder weights as plain structs. One visit() drives loading, saving, optimisers and gradient checks.
#pragma once

#include <ATen/ATen.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/model/config.h"

namespace specdec::model {

struct ExpertWeights {
  at::Tensor gate, up;  // [X, E], X the experts' width
  at::Tensor down;      // [E, X]
};

// What a layer's config leaves out is undefined. Checkpoints that hold q, k, v or gate, up as one tensor (Phi-3) are
// split when they are read and joined when they are written.
struct LayerWeights {
  at::Tensor input_norm;  // [E]
  at::Tensor q, k, v;     // [H·D, E], [G·D, E], [G·D, E]
  at::Tensor q_bias, k_bias, v_bias, o_bias;
  at::Tensor q_norm, k_norm;                              // [D] each, or [H·D] and [G·D]
  at::Tensor o;                                           // [E, H·D]
  at::Tensor attention_out_norm, mlp_norm, mlp_out_norm;  // [E]
  at::Tensor gate, up;                                    // [I, E]
  at::Tensor down;                                        // [E, I]
  at::Tensor gate_bias, up_bias, down_bias;
  at::Tensor router;  // [experts, E]
  std::vector<ExpertWeights> experts;
};

struct DecoderWeights {
  at::Tensor embed;  // [V, E]
  std::vector<LayerWeights> layers;
  at::Tensor norm;     // [E]
  at::Tensor lm_head;  // [V, E]; the same tensor as embed when tied; after reduce_head() the rows of config.draft_vocab

  // f(name, tensor&) for each parameter once, in the order of a pass, under its Hugging Face name (parts of a joined
  // tensor under Llama's); a tied lm_head is skipped.
  void visit(const DecoderConfig& config, const std::function<void(const std::string& name, at::Tensor&)>& f);
};

// A parameter and where checkpoints keep it: rows [row, row + shape[0]) of `stored`, which has stored_rows.
struct Parameter {
  std::string name;
  at::Tensor* tensor;
  std::vector<int64_t> shape;
  std::string stored;
  int64_t row = 0, stored_rows = 0;
  bool in_products = false;  // a matrix that --dtype int8 quantises: neither the embedding nor a router
};
// In the order of visit(); parts of one stored tensor follow each other, from its first row to its last.
std::vector<Parameter> list_parameters(DecoderWeights& weights, const DecoderConfig& config);

struct Decoder {
  DecoderConfig config;
  DecoderWeights weights;
};

// Reads config.json and *.safetensors; quantised matrices are dequantised (quantised.h). Missing, left-over or wrongly
// shaped tensors are Error(kModel). `dtype`: "auto" keeps the checkpoint's. Left-over means: unknown name (rotary
// inv_freq buffers and a tied lm_head.weight are known and ignored). `dtype` kChar: the matrices of products as int8
// (kernels::quantise_int8), lm_head with them even where it is tied, all else and the caches in side_dtype(); for
// decoding on a CPU (Error(kUsage) elsewhere), such a decoder can be neither trained nor saved.
Decoder load_decoder(const std::filesystem::path& directory, at::Device device, at::ScalarType dtype);
// Keeps only the head's rows that config.draft_vocab names: such a decoder can be neither trained nor saved.
void reduce_head(Decoder& decoder);
// Where they lie, the matrices of products become the streams that a CPU reads fastest (kernels::pack; fp32 and bf16,
// an even number of inputs), but not a tied head, whose rows are embeddings, too: such a decoder can be neither trained
// nor saved.
void pack_matrices(Decoder& decoder);
// load_decoder() for decoding: packed, a draft with its head reduced. A target is all that its checkpoint is, whatever
// it proposes as a draft.
enum class Role { kTarget, kDraft };
std::shared_ptr<const Decoder> load_for_decoding(const std::filesystem::path& directory, at::Device device,
                                                 at::ScalarType dtype, Role role);
// What the matrices of products are as numbers: the `dtype` that it was loaded with.
at::ScalarType dtype_of(const Decoder& decoder);
at::ScalarType resolve_dtype(const std::string& flag,
                             const DecoderConfig& config);  // "auto" | fp32 | bf16 | fp16 | int8 (kChar)
std::string dtype_flag(at::ScalarType dtype);               // the word that resolve_dtype() reads
// What a decoder of `dtype` has for embeddings, norms, biases and caches: itself, beside int8 bf16 where the checkpoint
// is bf16, else fp32.
at::ScalarType side_dtype(at::ScalarType dtype, const DecoderConfig& config);
at::Device resolve_device(const std::string& flag);  // "auto" | "cpu" | "cuda[:i]"; Error(kDevice) when there is none

// Normal(0, 0.02) for matrices, ones for norms; deterministic for a seed on every machine (Philox).
Decoder random_decoder(const DecoderConfig& config, uint64_t seed, at::Device device, at::ScalarType dtype);

// config.json + model.safetensors into an existing directory (fsynced). Tokenizer files are the caller's.
void save_decoder(const Decoder& decoder, const std::filesystem::path& directory);

}  // namespace specdec::model
