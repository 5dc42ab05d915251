// Holds decoder weights as plain structs, and loads and saves them. Loading and saving go through list_parameters().
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

// Tensors that the layer's config does not need are undefined. Phi-3 checkpoints store q, k, v as one tensor, and gate,
// up as another; these are split when read and joined when written.
struct LayerWeights {
  at::Tensor input_norm;  // [E]
  at::Tensor q, k, v;     // [H·D, E], [G·D, E], [G·D, E]
  at::Tensor q_bias, k_bias, v_bias, o_bias;
  at::Tensor q_norm, k_norm;                              // QkNorm::kHead: [D] each; kProjection: [H·D] and [G·D]
  at::Tensor o;                                           // [E, H·D]
  at::Tensor attention_out_norm, mlp_norm, mlp_out_norm;  // [E]
  at::Tensor gate, up;                                    // [I, E]
  at::Tensor down;                                        // [E, I]
  at::Tensor gate_bias, up_bias, down_bias;
  at::Tensor router;  // [experts, E]
  std::vector<ExpertWeights> experts;
  // For matrices that stay quantised: the order of their inputs, as the index in x of each input
  // (kernels::PackedCodes). attention_order is for q, k and v, mlp_order for gate and up. Undefined if the inputs keep
  // their order.
  at::Tensor attention_order, o_order, mlp_order, down_order;
};

struct DecoderWeights {
  at::Tensor embed;  // [V, E]
  std::vector<LayerWeights> layers;
  at::Tensor norm;  // [E]
  // [V, E]. If config.tie_embeddings is set, lm_head is the same tensor as embed, except in int8 decoders and those of
  // GGUF files, which multiply by a copy of their own. After
  // reduce_head() it has only the rows of config.draft_vocab.
  at::Tensor lm_head;
  // The ids of config.draft_vocab on the weights' device (draft_vocab_index()); undefined before reduce_head().
  at::Tensor draft_ids = {};

  // Calls f(name, tensor&) once for each parameter, in the order in which a pass reads them, with its Hugging Face name
  // (parts of a joined tensor have Llama's names). A tied lm_head is skipped.
  void visit(const DecoderConfig& config, const std::function<void(const std::string& name, at::Tensor&)>& f);
};

// The place of a parameter in checkpoints that join the experts' tensors of a layer, as transformers 5 does in memory:
// rows [row, row + rows) of the tensor `stored` of this shape, and of each row the values from `column` on.
struct JoinedPlace {
  std::string stored;  // "": the parameter is in no joined tensor
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
  bool in_products = false;  // true: --dtype int8 quantises it (not embedding, not routers)
  Split split = Split::kNone;
  JoinedPlace joined = {};
};
// Returns whether a parameter stays quantised under kAsStored if the checkpoint has it quantised. lm_head is
// always dequantised, except from a GGUF file.
inline bool stays_quantised(const Parameter& p) { return p.in_products && p.name != "lm_head.weight"; }
// Lists parameters in the order of visit(); parts of one stored tensor are adjacent, from its first row to its last.
std::vector<Parameter> list_parameters(DecoderWeights& weights, const DecoderConfig& config);

struct Decoder {
  DecoderConfig config;  // with ranks, the config of the rank's share: shard_config()
  DecoderWeights weights;
  // The ranks that hold the decoder together with this one; null: this process holds the whole decoder.
  std::shared_ptr<const ShardGroup> group = nullptr;
  int64_t key_copies = 1;  // the number of ranks that keep the same kv head: key_copies()
  // If true, on a GPU the bits of a token's logits never depend on the number of tokens in a decoding pass. If false,
  // they may depend on it in passes of more than kernels::kMostNarrowRows tokens, which are then faster.
  bool exact = false;
  // For tests: kernels with which a pass on the CPU follows the code path of a GPU. Null: the kernels of the weights'
  // device.
  const kernels::CudaLibrary* library = nullptr;
};

// A special dtype for loading: layer matrices that the checkpoint stores quantised stay quantised
// (kernels/quantised_matrix.h on a GPU, kernels/block_quantised.h for a GGUF file on a CPU, with lm_head) if the
// kernels' layout can represent them. Everything else has the checkpoint's dtype.
inline constexpr at::ScalarType kAsStored = at::kByte;

// Reads config.json and *.safetensors or the GGUF file, dequantises quantised matrices (quantised_reader.h), and
// converts the weights to `dtype` (resolve_dtype()). Two dtypes are special. kChar: the matrices of products are
// quantised to int8 (kernels::quantise_int8), including lm_head even if it is tied. kAsStored: matrices that the
// checkpoint stores quantised stay quantised. In both cases, everything else and the caches have side_dtype(). A
// decoder with int8 or quantised matrices can be neither trained nor saved. Throws Error(kModel) for missing, unknown
// or wrongly shaped tensors; rotary inv_freq buffers and a tied lm_head.weight are ignored.
Decoder load_decoder(const std::filesystem::path& directory, at::Device device, at::ScalarType dtype);
// Reads this rank's share of a decoder, as load_decoder() reads a whole one, but does not support kAsStored. If a
// matrix is divided by rows, reads only this rank's rows. Quantised matrices are read whole, one at a time. Throws what
// load_decoder() and shard_config() throw.
Decoder load_shard(const std::filesystem::path& directory, at::Device device, at::ScalarType dtype,
                   std::shared_ptr<const ShardGroup> group);
// Returns a copy in `dtype` that can be trained: block-quantised matrices are dequantised.
Decoder trainable_copy(const Decoder& decoder, at::ScalarType dtype);
// Returns a rank's share of a whole decoder whose matrices are neither packed nor quantised.
Decoder shard_of(const Decoder& whole, std::shared_ptr<const ShardGroup> group);
// Reads only the embedding of a decoder, which is enough to be the target of load_eagle_head().
Decoder load_embedding(const std::filesystem::path& directory, at::Device device, at::ScalarType dtype);
// Reads the embedding, the final norm and lm_head, but no layers. Errors are those of load_head().
Decoder load_without_layers(const std::filesystem::path& directory, at::Device device, at::ScalarType dtype);
// Reads only the final norm and lm_head (the embedding, if tied). The result is a decoder without layers that turns
// hidden states into logits (head_logits()). config.num_layers stays the checkpoint's. Throws what load_decoder()
// throws, but ignores unknown tensors.
Decoder load_head(const std::filesystem::path& directory, at::Device device, at::ScalarType dtype);
// If config.draft_vocab is not empty, keeps only the rows of lm_head for these ids. Such a decoder can be neither
// trained nor saved.
void reduce_head(Decoder& decoder);
// Packs the fp32 or bf16 matrices of products in place into the layout that a CPU reads fastest (kernels::pack). Skips
// matrices with an odd number of inputs, and a tied lm_head, because its rows are also the embeddings. Does nothing for
// other dtypes and devices. A packed decoder can be neither trained nor saved.
void pack_matrices(Decoder& decoder);
// Joins the matrices of queries, keys and values of each layer, and their biases, in one block of memory, so that a
// kernel reads them as one matrix. Skips quantised matrices whose quantisation differs or that do not end at a block
// border of their layout.
void join_projections(Decoder& decoder);
// load_for_decoding() loads a decoder and packs or joins its matrices. The lm_head of a draft is reduced to its draft
// vocabulary (reduce_head()). A target keeps its whole lm_head, even if its checkpoint lists a draft vocabulary.
enum class Role { kTarget, kDraft };
// `exact` is Decoder::exact.
std::shared_ptr<const Decoder> load_for_decoding(const std::filesystem::path& directory, at::Device device,
                                                 at::ScalarType dtype, Role role, bool exact = false);
// Loads this rank's share of a target for decoding, as load_for_decoding() loads a whole target.
std::shared_ptr<const Decoder> load_shard_for_decoding(const std::filesystem::path& directory, at::Device device,
                                                       at::ScalarType dtype, std::shared_ptr<const ShardGroup> group,
                                                       bool exact = false);
// Returns the dtype with which the decoder was loaded, which is that of the matrices of products.
at::ScalarType dtype_of(const Decoder& decoder);
// Parses "auto" (the checkpoint's dtype), "fp32", "bf16", "fp16" or "int8" (kChar). Throws Error(kUsage) otherwise.
at::ScalarType resolve_dtype(const std::string& flag, const DecoderConfig& config);
// Parses the dtype flag for decoding, as resolve_dtype() does, except that "auto" keeps the matrices of a quantised
// checkpoint quantised (kAsStored) if a single process (`ranks` is 1) holds the decoder on a GPU, or on a CPU if it
// comes from a GGUF file.
at::ScalarType resolve_decoding_dtype(const std::string& flag, const DecoderConfig& config, at::Device device,
                                      int ranks = 1);
std::string dtype_flag(at::ScalarType dtype);  // inverse of resolve_dtype(); "stored" for kAsStored
// Returns the dtype of embeddings, norms, biases and caches of a decoder loaded with `dtype`. For int8 it is bf16 if
// the checkpoint is bf16, else fp32; for kAsStored it is the checkpoint's; otherwise it is `dtype` itself.
at::ScalarType side_dtype(at::ScalarType dtype, const DecoderConfig& config);
// Parses "auto" (CUDA if there is a device, else CPU), "cpu" or "cuda[:i]". Throws Error(kUsage) for other text,
// Error(kDevice) if there is no such device.
at::Device resolve_device(const std::string& flag);

// Returns a decoder with matrices drawn from Normal(0, 0.02), norms that multiply by one, and zero biases. A seed gives
// the same weights on every machine (Philox).
Decoder random_decoder(const DecoderConfig& config, uint64_t seed, at::Device device, at::ScalarType dtype);

// Writes config.json and model.safetensors into an existing directory (fsynced). The caller writes the tokenizer files.
void save_decoder(const Decoder& decoder, const std::filesystem::path& directory);

}  // namespace specdec::model
