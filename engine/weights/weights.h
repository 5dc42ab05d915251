// Holds decoder weights as plain structs, and loads and saves them. list_parameters() drives loading and saving.
// visit() gives callers every parameter, for example for optimisers and training checkpoints.
#pragma once

#include <ATen/ATen.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/config/config.h"
#include "engine/config/shard.h"

namespace specdec::kernels {
struct CudaLibrary;
}

namespace specdec::model {

struct ExpertWeights {
  at::Tensor gate, up;  // [X, E], where X is the experts' width
  at::Tensor down;      // [E, X]
};

// Tensors that the layer's config does not have are undefined. Phi-3 checkpoints store q, k, v as one tensor, and gate,
// up as another; these are split when read and joined when written.
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
  // For matrices that stay quantised: the input in x of each input of q, k and v, of o, of gate and up, and of down.
  // Undefined if the inputs are in their order (kernels::PackedCodes).
  at::Tensor attention_order, o_order, mlp_order, down_order;
};

struct DecoderWeights {
  at::Tensor embed;  // [V, E]
  std::vector<LayerWeights> layers;
  at::Tensor norm;  // [E]
  // [V, E]. If tied, it is the same tensor as embed, except in int8 decoders. After reduce_head() it has only the rows
  // of config.draft_vocab.
  at::Tensor lm_head;
  // The ids of config.draft_vocab on the weights' device (draft_vocab_index()), from reduce_head() on; else undefined.
  at::Tensor draft_ids = {};

  // Calls f(name, tensor&) once for each parameter, in the order of a pass, with its Hugging Face name (parts of a
  // joined tensor have Llama's names). A tied lm_head is skipped.
  void visit(const DecoderConfig& config, const std::function<void(const std::string& name, at::Tensor&)>& f);
};

// Where a parameter lies in checkpoints that keep a layer's experts in joined tensors, as transformers 5 has them in
// memory: in the tensor `stored` of this shape, rows [row, row + rows), and of these the values from `column` on.
struct JoinedPlace {
  std::string stored;  // "" = nowhere
  std::vector<int64_t> shape;
  int64_t row = 0, rows = 0, column = 0;
};

// A parameter and its place in checkpoints: rows [row, row + shape[0]) of the tensor `stored`, which has stored_rows
// rows.
struct Parameter {
  std::string name;
  at::Tensor* tensor;
  std::vector<int64_t> shape;
  std::string stored;
  int64_t row = 0, stored_rows = 0;
  bool in_products = false;  // a matrix that --dtype int8 quantises: neither the embedding nor a router
  Split split = Split::kNone;
  JoinedPlace joined = {};
};
// Returns whether kAsStored leaves a parameter as it is if the checkpoint has it quantised. A head is dequantised.
inline bool stays_quantised(const Parameter& p) { return p.in_products && p.name != "lm_head.weight"; }
// Lists parameters in the order of visit(); parts of one stored tensor are adjacent, from its first row to its last.
std::vector<Parameter> list_parameters(DecoderWeights& weights, const DecoderConfig& config);

struct Decoder {
  DecoderConfig config;  // of a rank's share: shard_config()
  DecoderWeights weights;
  // The ranks that hold the decoder together with this one; null: it is whole.
  std::shared_ptr<const ShardGroup> group = nullptr;
  int64_t key_copies = 1;  // the number of ranks that keep the same head of keys: key_copies()
  // The kernels that run passes of weights on a CPU as a GPU's would, for tests; null: the device's own.
  const kernels::CudaLibrary* library = nullptr;
};

// A dtype for loading: matrices of layers that a checkpoint stores quantised stay so (kernels/quantised_matrix.h) where
// the layout of the kernels allows it. All else has the checkpoint's dtype, of 16 bits.
inline constexpr at::ScalarType kAsStored = at::kByte;

// Reads config.json and *.safetensors; quantised matrices are dequantised (quantised_reader.h), except with kAsStored.
// A decoder with quantised matrices can be neither trained nor saved, and keeps its config's quantisation. Throws
// Error(kModel) for missing, unknown or wrongly shaped tensors (rotary inv_freq buffers and a tied lm_head.weight are
// known and ignored). Weights are converted to `dtype` (resolve_dtype()). kChar quantises the matrices of products to
// int8 (kernels::quantise_int8), including lm_head even if it is tied; everything else and the caches have
// side_dtype(). An int8 decoder can be neither trained nor saved.
Decoder load_decoder(const std::filesystem::path& directory, at::Device device, at::ScalarType dtype);
// Reads this rank's share of a decoder, as load_decoder() reads a whole one, but never with kAsStored. Of a matrix that
// is divided by rows it reads its own rows alone; quantised ones it reads as a whole, one at a time. Throws what
// load_decoder() and shard_config() throw.
Decoder load_shard(const std::filesystem::path& directory, at::Device device, at::ScalarType dtype,
                   std::shared_ptr<const ShardGroup> group);
// Returns a rank's share of a whole decoder whose matrices are neither packed nor quantised.
Decoder shard_of(const Decoder& whole, std::shared_ptr<const ShardGroup> group);
// Reads only the embedding: a decoder for load_eagle_head().
Decoder load_embedding(const std::filesystem::path& directory, at::Device device, at::ScalarType dtype);
// Reads all but the layers: embedding, final norm and head, as load_head() does.
Decoder load_without_layers(const std::filesystem::path& directory, at::Device device, at::ScalarType dtype);
// Reads only the final norm and the head (or the embedding, if it is the head): a decoder without layers, which turns
// hidden states into logits (head_logits()). config.num_layers stays the checkpoint's. Throws what load_decoder()
// throws, except for unknown tensors.
Decoder load_head(const std::filesystem::path& directory, at::Device device, at::ScalarType dtype);
// If config.draft_vocab is not empty, keeps only the rows of the head that it lists. Such a decoder can be neither
// trained nor saved.
void reduce_head(Decoder& decoder);
// Packs the fp32 or bf16 matrices of products in place into the layout that a CPU reads fastest (kernels::pack). Skips
// matrices with an odd number of inputs, and a tied head, whose rows are also the embeddings. Does nothing for other
// dtypes and devices. A packed decoder can be neither trained nor saved.
void pack_matrices(Decoder& decoder);
// Puts the matrices of queries, keys and values of each layer, and their biases, one after the other into one block of
// memory, so that a kernel reads them as one matrix. Leaves quantised matrices as they are if they are quantised in
// different ways, or if a block of their layout would have outputs of two of them.
void join_projections(Decoder& decoder);
// load_for_decoding() loads a decoder and packs or joins its matrices; a draft also gets a reduced head. A target
// always keeps its whole head, even if its checkpoint lists a draft vocabulary.
enum class Role { kTarget, kDraft };
std::shared_ptr<const Decoder> load_for_decoding(const std::filesystem::path& directory, at::Device device,
                                                 at::ScalarType dtype, Role role);
// The same for this rank's share of a target.
std::shared_ptr<const Decoder> load_shard_for_decoding(const std::filesystem::path& directory, at::Device device,
                                                       at::ScalarType dtype, std::shared_ptr<const ShardGroup> group);
// Returns the dtype that the decoder was loaded with: that of the matrices of products.
at::ScalarType dtype_of(const Decoder& decoder);
// Parses "auto" (the checkpoint's dtype), "fp32", "bf16", "fp16" or "int8" (kChar). Throws Error(kUsage) otherwise.
at::ScalarType resolve_dtype(const std::string& flag, const DecoderConfig& config);
// Does the same for decoding, where "auto" keeps the matrices of a quantised checkpoint as they are (kAsStored) if one
// process (`ranks` is 1) holds the whole decoder on a GPU.
at::ScalarType resolve_decoding_dtype(const std::string& flag, const DecoderConfig& config, at::Device device,
                                      int ranks = 1);
std::string dtype_flag(at::ScalarType dtype);  // inverse of resolve_dtype(); "stored" for kAsStored
// Returns the dtype of embeddings, norms, biases and caches for a decoder of `dtype`. For int8 this is bf16 if the
// checkpoint is bf16, else fp32; for kAsStored the checkpoint's; otherwise it is `dtype` itself.
at::ScalarType side_dtype(at::ScalarType dtype, const DecoderConfig& config);
// Parses "auto" (CUDA if there is a device, else CPU), "cpu" or "cuda[:i]". Throws Error(kUsage) for other text,
// Error(kDevice) if there is no such device.
at::Device resolve_device(const std::string& flag);

// Returns a decoder with matrices drawn from Normal(0, 0.02), norms that multiply by one, and zero biases. A seed gives
// the same weights on every machine (Philox).
Decoder random_decoder(const DecoderConfig& config, uint64_t seed, at::Device device, at::ScalarType dtype);

// Writes config.json and model.safetensors into an existing directory (fsynced). Tokenizer files are left to the
// caller.
void save_decoder(const Decoder& decoder, const std::filesystem::path& directory);

}  // namespace specdec::model
