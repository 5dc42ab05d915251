#include "engine/weights/eagle_head.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/safetensors.h"
#include "engine/kernels/block_quantised.h"
#include "engine/weights/draft_vocab.h"
#include "engine/weights/stored_tensor.h"
#include "engine/weights/tensor_reader.h"

namespace specdec::model {

namespace {

constexpr const char *kPlainLayer = "midlayer.", *kSpeculatorsLayer = "layers.0.", *kEmbed = "embed_tokens.weight";

struct EagleParameter {
  std::string name;
  at::Tensor* tensor;
  std::vector<int64_t> shape;
};

// Lists the parameters in the order in which a pass reads them. `layer` is the prefix of the layer's tensor names.
std::vector<EagleParameter> list_eagle_parameters(EagleWeights& w, const EagleConfig& config,
                                                  const std::string& layer) {
  const DecoderConfig& c = config.layer;
  const int64_t h = c.hidden_size, taps = config.num_taps() * config.target_hidden_size, q = c.num_heads * c.head_dim,
                kv = c.num_kv_heads * c.head_dim, i = c.intermediate_size;
  std::vector<EagleParameter> out;
  const auto add = [&](const std::string& name, at::Tensor& tensor, std::vector<int64_t> shape) {
    out.push_back({name + ".weight", &tensor, std::move(shape)});
  };
  if (config.norm_before_fc) add("input_norm", w.taps_norm, {taps});
  if (config.fc_norm) {
    w.tap_norms.resize(config.taps.size());
    for (size_t t = 0; t < config.taps.size(); ++t)
      add("fc_norm." + std::to_string(t), w.tap_norms[t], {config.target_hidden_size});
  }
  add("fc", w.fc, {h, taps});
  add(layer + "input_layernorm", w.layer.input_norm, {h});
  add(layer + "hidden_norm", w.hidden_norm, {h});
  add(layer + "self_attn.q_proj", w.layer.q, {q, 2 * h});
  add(layer + "self_attn.k_proj", w.layer.k, {kv, 2 * h});
  add(layer + "self_attn.v_proj", w.layer.v, {kv, 2 * h});
  add(layer + "self_attn.o_proj", w.layer.o, {h, q});
  add(layer + "post_attention_layernorm", w.layer.mlp_norm, {h});
  add(layer + "mlp.gate_proj", w.layer.gate, {i, h});
  add(layer + "mlp.up_proj", w.layer.up, {i, h});
  add(layer + "mlp.down_proj", w.layer.down, {h, i});
  add("norm", w.norm, {h});
  add("lm_head", w.lm_head, {config.draft_vocab_size, h});
  return out;
}

template <class T>
std::vector<T> read_values(const SafetensorsDirectory& files, const std::string& name, const std::string& dtype,
                           int64_t count) {
  const TensorEntry& entry = files.entry(name);
  if (entry.dtype != dtype || entry.shape != std::vector<int64_t>{count})
    throw Error(ErrorKind::kModel, name + ": expected " + std::to_string(count) + " values of " + dtype + ", found " +
                                       entry.dtype + " of shape " + c10::str(at::IntArrayRef(entry.shape)));
  std::vector<T> values(static_cast<size_t>(count));
  files.read(name, std::as_writable_bytes(std::span(values)));
  return values;
}

// Reads the draft vocabulary from the tensors d2t and t2d. Row i of lm_head scores the token id i + d2t[i]. t2d[v] is
// true exactly for these ids v.
std::vector<int32_t> read_draft_vocab(const SafetensorsDirectory& files, const EagleConfig& config) {
  const int64_t kept = config.draft_vocab_size, vocab = config.layer.vocab_size;
  std::vector<int32_t> ids;
  if (!files.contains("d2t")) {
    if (kept == vocab) return ids;
    throw Error(ErrorKind::kModel, "tensor d2t is missing, but lm_head has " + std::to_string(kept) + " of the " +
                                       std::to_string(vocab) + " tokens");
  }
  const std::vector<int64_t> offsets = read_values<int64_t>(files, "d2t", "I64", kept);
  for (size_t i = 0; i < offsets.size(); ++i) {
    const int64_t row = static_cast<int64_t>(i), id = row + std::clamp<int64_t>(offsets[i], -row - 1, vocab);
    if (id >= vocab || id <= (ids.empty() ? -1 : ids.back()))
      throw Error(ErrorKind::kModel, "d2t[" + std::to_string(i) + "] = " + std::to_string(offsets[i]) +
                                         ": expected offsets that give ascending ids below " + std::to_string(vocab));
    ids.push_back(static_cast<int32_t>(id));
  }
  if (files.contains("t2d")) {
    const std::vector<uint8_t> marks = read_values<uint8_t>(files, "t2d", "BOOL", vocab);
    std::vector<int32_t> marked;
    for (size_t i = 0; i < marks.size(); ++i)
      if (marks[i] != 0) marked.push_back(static_cast<int32_t>(i));
    if (marked != ids) throw Error(ErrorKind::kModel, "t2d marks other ids than i + d2t[i] gives");
  }
  if (kept == vocab) ids.clear();
  return ids;
}

// Returns the head's embedding. If the files store a copy of the target's embedding, returns the target's tensor
// instead. Throws if they store a different embedding with the target's width, because SGLang replaces it by the
// target's.
at::Tensor read_embedding(const SafetensorsDirectory& files, const EagleConfig& config, const Decoder& target,
                          at::ScalarType dtype) {
  const int64_t h = config.layer.hidden_size, vocab = config.layer.vocab_size;
  const at::Tensor& theirs = target.weights.embed;
  if (!files.contains(kEmbed)) {
    if (h == target.config.hidden_size) return theirs;
    throw Error(ErrorKind::kModel, std::string("tensor ") + kEmbed + " is missing, and the target's has " +
                                       std::to_string(target.config.hidden_size) + " columns, not " +
                                       std::to_string(h));
  }
  if (h != target.config.hidden_size) return TensorReader(files, theirs.device()).read(kEmbed, {vocab, h}, dtype);
  if (!at::equal(TensorReader(files, at::kCPU).read(kEmbed, {vocab, h}, theirs.scalar_type()), theirs.cpu()))
    throw Error(ErrorKind::kModel, std::string("tensor ") + kEmbed +
                                       " is not the target's embedding: vLLM uses it, SGLang replaces it by the "
                                       "target's: leave it out");
  return theirs;
}

void save_with(const EagleHead& head, const Json& config, const char* layer, const std::filesystem::path& directory) {
  EagleWeights weights = head.weights;
  const DecoderConfig& c = head.config.layer;
  std::vector<at::Tensor> kept;
  std::vector<TensorToWrite> tensors;
  const auto write = [&](const std::string& name, const at::Tensor& tensor) {
    kept.push_back(tensor.detach().to(at::kCPU).contiguous());
    tensors.push_back(to_write(name, kept.back()));
  };
  for (const EagleParameter& p : list_eagle_parameters(weights, head.config, layer)) {
    if (!p.tensor->defined() || p.tensor->sizes() != at::IntArrayRef(p.shape) || p.tensor->scalar_type() != c.dtype)
      throw Error(ErrorKind::kInternal, "tensor " + p.name + " does not fit its config");
    write(p.name, *p.tensor);
  }
  if (c.hidden_size != head.config.target_hidden_size) write(kEmbed, weights.embed.to(c.dtype));
  if (!c.draft_vocab.empty()) {
    const at::Tensor ids = draft_vocab_index(c.draft_vocab, at::kCPU);
    write("d2t", ids - at::arange(ids.numel(), ids.options()));
    write("t2d", at::zeros({c.vocab_size}, at::kBool).index_fill_(0, ids, true));
  }
  write_safetensors(directory / "model.safetensors", tensors);
  write_file_atomic(directory / "config.json", config.dump(2) + "\n");
}

}  // namespace

void EagleWeights::visit(const EagleConfig& config,
                         const std::function<void(const std::string& name, at::Tensor&)>& f) {
  for (const EagleParameter& p : list_eagle_parameters(*this, config, kPlainLayer)) f(p.name, *p.tensor);
}

int64_t num_parameters(const EagleConfig& config) {
  EagleWeights none;
  int64_t out = 0;
  for (const EagleParameter& p : list_eagle_parameters(none, config, kPlainLayer))
    out += c10::multiply_integers(p.shape);
  return out;
}

EagleHead load_eagle_head(const std::filesystem::path& directory, const Decoder& target, at::Device device,
                          at::ScalarType dtype) {
  EagleHead head{load_eagle_config(directory, target.config), {}};
  const SafetensorsDirectory files(directory);
  with_context(directory.string(), [&] {
    std::set<std::string> unread;
    for (const std::string& name : files.names()) unread.insert(name);
    const char* layer =
        files.contains(std::string(kSpeculatorsLayer) + "self_attn.q_proj.weight") ? kSpeculatorsLayer : kPlainLayer;
    TensorReader reader(files, device);
    for (const EagleParameter& p : list_eagle_parameters(head.weights, head.config, layer)) {
      *p.tensor = reader.read(p.name, p.shape, dtype);
      unread.erase(p.name);
    }
    head.config.layer.draft_vocab = read_draft_vocab(files, head.config);
    head.weights.embed = read_embedding(files, head.config, target, dtype);
    for (const char* name : {"d2t", "t2d", kEmbed}) unread.erase(name);
    if (!unread.empty())
      throw Error(ErrorKind::kModel, std::to_string(unread.size()) +
                                         " tensors are not part of the EAGLE-3 head that config.json describes, the "
                                         "first is " +
                                         *unread.begin());
    for (const int32_t id : target.config.eos_ids) {
      const std::vector<int32_t>& kept = head.config.layer.draft_vocab;
      if (!kept.empty() && !std::binary_search(kept.begin(), kept.end(), id))
        log(LogLevel::kWarn,
            "token " + std::to_string(id) +
                " ends answers and is not among the head's ids: the end of an answer is never drafted");
    }
  });
  head.config.layer.dtype = dtype;
  return head;
}

EagleHead new_eagle_head(const Decoder& target, std::vector<int32_t> draft_vocab, uint64_t seed, at::ScalarType dtype) {
  EagleHead head{eagle_config_for(target.config), {}};
  DecoderConfig& layer = head.config.layer;
  const at::Device device = target.weights.embed.device();
  layer.dtype = dtype;
  if (static_cast<int64_t>(draft_vocab.size()) < layer.vocab_size) layer.draft_vocab = std::move(draft_vocab);
  if (!layer.draft_vocab.empty()) head.config.draft_vocab_size = static_cast<int64_t>(layer.draft_vocab.size());
  uint32_t stream = 0;
  for (const EagleParameter& p : list_eagle_parameters(head.weights, head.config, kPlainLayer)) {
    const bool matrix = p.shape.size() == 2;
    *p.tensor = matrix ? normal_tensor(p.shape, 1 / std::sqrt(3.0 * static_cast<double>(p.shape[1])), seed, stream)
                       : at::ones(p.shape, at::kFloat);
    *p.tensor = p.tensor->to(dtype).to(device);
    ++stream;
  }
  const DecoderWeights& theirs = target.weights;
  head.weights.norm = (theirs.norm.detach().to(at::kFloat) + target.config.norm_offset).to(dtype);
  at::Tensor rows = kernels::is_block_quantised(theirs.lm_head)
                        ? kernels::dequantise_blocks(theirs.lm_head, layer.hidden_size)
                        : theirs.lm_head.detach();
  if (!layer.draft_vocab.empty()) rows = rows.index_select(0, draft_vocab_index(layer.draft_vocab, device));
  head.weights.lm_head = rows.to(dtype, /*non_blocking=*/false, /*copy=*/true);
  head.weights.embed = theirs.embed.detach();
  return head;
}

EagleHead empty_eagle_head(const EagleConfig& config, const Decoder& target, at::ScalarType dtype) {
  EagleHead head{config, {}};
  head.config.layer.dtype = dtype;
  const at::Tensor theirs = target.weights.embed.detach();
  const at::TensorOptions options = theirs.options().dtype(dtype);
  for (const EagleParameter& p : list_eagle_parameters(head.weights, head.config, kPlainLayer))
    *p.tensor = at::empty(p.shape, options);
  const DecoderConfig& layer = head.config.layer;
  head.weights.embed = layer.hidden_size == target.config.hidden_size
                           ? theirs
                           : at::empty({layer.vocab_size, layer.hidden_size}, options);
  return head;
}

void save_eagle_head(const EagleHead& head, const std::filesystem::path& directory) {
  save_with(head, to_json(head.config), kPlainLayer, directory);
}

void save_as_speculators(const EagleHead& head, const Verifier& verifier, const std::filesystem::path& directory) {
  save_with(head, to_speculators_json(head.config, verifier), kSpeculatorsLayer, directory);
}

}  // namespace specdec::model
