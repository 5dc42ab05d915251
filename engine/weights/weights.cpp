#include "engine/weights/weights.h"

#include <algorithm>
#include <filesystem>
#include <memory>

#include "base/file.h"
#include "base/log.h"
#include "base/safetensors.h"
#include "engine/kernels/block_quantised.h"
#include "engine/kernels/cpu/cpu.h"
#include "engine/kernels/cuda.h"
#include "engine/kernels/ops.h"
#include "engine/kernels/tensor_block.h"
#include "engine/kernels/visible_devices.h"
#include "engine/weights/draft_vocab.h"
#include "engine/weights/parameter_source.h"
#include "engine/weights/quantised_layers.h"
#include "engine/weights/quantised_reader.h"
#include "engine/weights/stored_tensor.h"

namespace specdec::model {

namespace {

// Returns the slice of a parameter that this rank keeps; without ranks, the whole parameter.
Slice own_slice(const Parameter& p, const DecoderConfig& config, const ShardGroup* group) {
  return slice_of(group ? p.split : Split::kNone, p.shape, config, group ? group->rank() : 0,
                  group ? group->count() : 1);
}

// Sets every parameter, or this rank's slice of it, from `source`, in its dtype and on the device; matrices that stay
// quantised are not converted. decoder.config must be that of the whole decoder. On the CPU all other parameters share
// one block of memory, in the order in which a pass reads them.
void fill(Decoder& decoder, at::Device device, at::ScalarType dtype, ParameterSource& source) {
  const bool int8 = dtype == at::kChar, own_head = int8 && decoder.config.tie_embeddings;
  const at::ScalarType side = side_dtype(dtype, decoder.config);
  DecoderWeights& weights = decoder.weights;
  const std::vector<Parameter> parameters = list_parameters(weights, decoder.config);
  const auto shape_of = [&](const Parameter& p) {
    const Slice slice = own_slice(p, decoder.config, decoder.group.get());
    std::vector<int64_t> shape = p.shape;
    shape[static_cast<size_t>(slice.dim)] = slice.share.length;
    return shape;
  };
  const auto blocks_of = [&](const Parameter& p) {
    return kernels::block_shape(*source.block_kind(p), p.shape[0], p.shape[1]);
  };
  size_t bytes = 0;
  const auto plan = [&](at::IntArrayRef shape, bool quantised) {
    bytes += TensorBlock::padded(
        static_cast<size_t>(quantised ? shape[0] * kernels::cpu::pack_row_bytes<kernels::cpu::Int8>(nullptr, shape[1])
                                      : c10::multiply_integers(shape) * static_cast<int64_t>(c10::elementSize(side))));
  };
  const auto plan_blocks = [&](const Parameter& p) {
    bytes += TensorBlock::padded(static_cast<size_t>(c10::multiply_integers(blocks_of(p))));
  };
  for (const Parameter& p : parameters)
    p.in_products&& source.block_kind(p) ? plan_blocks(p) : plan(shape_of(p), int8 && p.in_products);
  const bool block_head = decoder.config.tie_embeddings && source.block_kind(parameters.front());
  if (own_head) plan(shape_of(parameters.front()), true);
  if (block_head) plan_blocks(parameters.front());
  TensorBlock block(device.is_cpu() ? bytes : 0);
  const auto take_int8 = [&](const at::Tensor& made) {
    const at::Tensor quantised = kernels::quantise_int8(made);
    return device.is_cpu() ? block.take(quantised.sizes(), at::kChar).copy_(quantised) : quantised.to(device);
  };
  const auto take_blocks = [&](const Parameter& p) {
    return source.packed_blocks(p, block.take(blocks_of(p), at::ScalarType::Bits8));
  };
  for (const Parameter& p : parameters) {
    if (p.in_products && source.block_kind(p)) {
      *p.tensor = take_blocks(p);
      continue;
    }
    if (const at::Tensor kept = source.kept_quantised(p); kept.defined()) {
      *p.tensor = kept.to(device);
      continue;
    }
    const Slice slice = own_slice(p, decoder.config, decoder.group.get());
    if (int8 && p.in_products) {
      *p.tensor = take_int8(narrowed(source.whole(p), slice));
    } else {
      *p.tensor = device.is_cpu() ? block.take(shape_of(p), side)
                                  : at::empty(shape_of(p), at::TensorOptions(device).dtype(side));
      source.put(p, slice, *p.tensor);
    }
  }
  if (decoder.config.tie_embeddings)
    weights.lm_head = block_head ? take_blocks(parameters.front())
                      : own_head ? take_int8(weights.embed.cpu())
                                 : weights.embed;
}

}  // namespace

void DecoderWeights::visit(const DecoderConfig& config,
                           const std::function<void(const std::string& name, at::Tensor&)>& f) {
  for (const Parameter& p : list_parameters(*this, config)) f(p.name, *p.tensor);
}

namespace {

Decoder load(const std::filesystem::path& directory, at::Device device, at::ScalarType dtype,
             std::shared_ptr<const ShardGroup> group) {
  Decoder decoder{load_decoder_config(directory), {}, std::move(group)};
  DecoderConfig config = decoder.config;
  if (decoder.group) {
    config = shard_config(config, decoder.group->rank(), decoder.group->count());
    decoder.key_copies = key_copies(decoder.config, decoder.group->count());
  }
  const bool keeps = dtype == kAsStored && !decoder.group;
  // For int8, tensors are read as fp32, so that nothing is rounded twice.
  const at::ScalarType read_as = dtype == at::kChar ? at::kFloat : side_dtype(dtype, config);
  const SafetensorsDirectory files(directory);
  const std::unique_ptr<FileParameters> source =
      make_parameters(files, decoder.config, {device, read_as, keeps ? &decoder.weights : nullptr});
  with_context(directory.string(), [&] {
    require_tied_head(files, decoder.config);
    require_quantised(files, decoder.config.quantisation);
    fill(decoder, device, dtype, *source);
    if (keeps) finish_quantised(decoder, device);
    source->check_all_read();
  });
  if (source->widened() > 0)
    log(LogLevel::kWarn, directory.string() + ": " + std::to_string(source->widened()) +
                             " quantised matrices take the memory of 16 bits, since the kernels do not read their "
                             "groups, scales or order of inputs");
  if (source->narrowed_some())
    log(LogLevel::kWarn,
        directory.string() + ": fp32 tensors are narrowed to " + dtype_name(read_as) + "; --dtype fp32 keeps them");
  config.dtype = side_dtype(dtype, config);
  if (!keeps) config.quantisation = {};
  decoder.config = std::move(config);
  return decoder;
}

// Reads only the parameters for which needed(tensor, decoder) returns true.
template <class Needed>
Decoder load_part(const std::filesystem::path& directory, at::Device device, at::ScalarType dtype,
                  const Needed& needed) {
  Decoder decoder{load_decoder_config(directory), {}};
  const SafetensorsDirectory files(directory);
  with_context(directory.string(), [&] {
    require_tied_head(files, decoder.config);
    require_quantised(files, decoder.config.quantisation);
    DecoderWeights& weights = decoder.weights;
    const std::unique_ptr<FileParameters> source = make_parameters(files, decoder.config, {device, dtype});
    for (const Parameter& p : list_parameters(weights, decoder.config)) {
      if (!needed(p.tensor, decoder)) continue;
      *p.tensor = at::empty(p.shape, at::TensorOptions(device).dtype(dtype));
      source->put(p, own_slice(p, decoder.config, nullptr), *p.tensor);
    }
    if (decoder.config.tie_embeddings) weights.lm_head = weights.embed;
    weights.layers.clear();
  });
  decoder.config.dtype = dtype;
  decoder.config.quantisation = {};
  return decoder;
}

}  // namespace

Decoder load_decoder(const std::filesystem::path& directory, at::Device device, at::ScalarType dtype) {
  return load(directory, device, dtype, nullptr);
}

Decoder load_shard(const std::filesystem::path& directory, at::Device device, at::ScalarType dtype,
                   std::shared_ptr<const ShardGroup> group) {
  return load(directory, device, dtype, std::move(group));
}

Decoder trainable_copy(const Decoder& decoder, at::ScalarType dtype) {
  Decoder out = decoder;
  for (const Parameter& p : list_parameters(out.weights, out.config)) {
    const at::Tensor from =
        kernels::is_block_quantised(*p.tensor) ? kernels::dequantise_blocks(*p.tensor, p.shape[1]) : p.tensor->detach();
    *p.tensor = from.to(dtype, /*non_blocking=*/false, /*copy=*/true);
  }
  if (out.config.tie_embeddings) out.weights.lm_head = out.weights.embed;
  out.config.dtype = dtype;
  out.config.quantisation = {};
  return out;
}

Decoder shard_of(const Decoder& whole, std::shared_ptr<const ShardGroup> group) {
  const int64_t copies = key_copies(whole.config, group->count());
  Decoder own{shard_config(whole.config, group->rank(), group->count()), {}, group, copies, whole.exact, whole.library};
  DecoderWeights from = whole.weights;
  const std::vector<Parameter> theirs = list_parameters(from, whole.config),
                               ours = list_parameters(own.weights, whole.config);
  for (size_t i = 0; i < ours.size(); ++i)
    *ours[i].tensor = narrowed(*theirs[i].tensor, own_slice(ours[i], whole.config, group.get())).contiguous();
  if (whole.config.tie_embeddings) own.weights.lm_head = own.weights.embed;
  return own;
}

Decoder load_embedding(const std::filesystem::path& directory, at::Device device, at::ScalarType dtype) {
  return load_part(directory, device, dtype,
                   [](const at::Tensor* tensor, Decoder& decoder) { return tensor == &decoder.weights.embed; });
}

Decoder load_without_layers(const std::filesystem::path& directory, at::Device device, at::ScalarType dtype) {
  return load_part(directory, device, dtype, [](const at::Tensor* tensor, Decoder& decoder) {
    const DecoderWeights& weights = decoder.weights;
    return tensor == &weights.embed || tensor == &weights.norm || tensor == &weights.lm_head;
  });
}

Decoder load_head(const std::filesystem::path& directory, at::Device device, at::ScalarType dtype) {
  return load_part(directory, device, dtype, [](const at::Tensor* tensor, Decoder& decoder) {
    DecoderWeights& weights = decoder.weights;
    return tensor == &weights.norm || tensor == (decoder.config.tie_embeddings ? &weights.embed : &weights.lm_head);
  });
}

void reduce_head(Decoder& decoder) {
  at::Tensor& head = decoder.weights.lm_head;
  if (decoder.config.draft_vocab.empty()) return;
  const at::Tensor index = decoder.weights.draft_ids = draft_vocab_index(decoder.config.draft_vocab, head.device());
  const int64_t k = decoder.config.hidden_size;
  switch (head.scalar_type()) {
    case at::kChar:
      // Quantising dequantised rows restores the same bits. Done on the CPU: all rows in fp32 may not fit on a GPU.
      head = kernels::quantise_int8(kernels::dequantise_int8(head.cpu(), k).index_select(0, index.cpu()))
                 .to(head.device());
      break;
    case at::ScalarType::Bits8:
      throw Error(ErrorKind::kInternal, "a head of a GGUF file has no draft vocabulary");
    case at::kByte:
      head = kernels::pack(kernels::unpack(head, k, decoder.config.dtype).index_select(0, index));
      break;
    default:
      head = head.index_select(0, index);
  }
}

void pack_matrices(Decoder& decoder) {
  const at::ScalarType dtype = decoder.weights.embed.scalar_type();
  if (!decoder.weights.embed.is_cpu() || (dtype != at::kFloat && dtype != at::kBFloat16)) return;
  for (const Parameter& p : list_parameters(decoder.weights, decoder.config)) {
    if (!p.in_products || p.tensor->scalar_type() != dtype || p.tensor->size(1) % 2 != 0) continue;
    *p.tensor = p.tensor->view(at::kByte).copy_(kernels::pack(*p.tensor));
  }
}

void join_projections(Decoder& decoder) {
  const auto join = [](at::Tensor& q, at::Tensor& k, at::Tensor& v) {
    if (!q.defined() || q.scalar_type() == at::kByte) return;
    const bool kept = kernels::packing_of(q) != kernels::Packing::kPlain;
    for (const at::Tensor* other : {&k, &v})
      if (other->scalar_type() != q.scalar_type() || other->sizes().slice(1) != q.sizes().slice(1)) return;
    if (kept && (q.size(0) % kernels::cpu::kPackOutputs != 0 || k.size(0) % kernels::cpu::kPackOutputs != 0)) return;
    // Codes are concatenated as bytes, because ATen may not support concatenation of their dtype.
    const auto bytes = [kept](const at::Tensor& t) { return kept ? t.view(at::kByte) : t; };
    const at::Tensor joined = at::cat({bytes(q), bytes(k), bytes(v)}),
                     all = kept ? joined.view(q.scalar_type()) : joined;
    const std::vector<at::Tensor> parts = all.split_with_sizes({q.size(0), k.size(0), v.size(0)});
    q = parts[0], k = parts[1], v = parts[2];
  };
  for (LayerWeights& w : decoder.weights.layers) {
    join(w.q, w.k, w.v);
    join(w.q_bias, w.k_bias, w.v_bias);
  }
}

namespace {

std::shared_ptr<const Decoder> prepared(Decoder decoder, Role role, bool exact) {
  decoder.exact = exact;
  if (role == Role::kTarget) decoder.config.draft_vocab.clear();
  reduce_head(decoder);
  if (!decoder.group) pack_matrices(decoder);  // passes of a shard read unpacked matrices
  if (decoder.weights.embed.is_cuda()) join_projections(decoder);
  return std::make_shared<const Decoder>(std::move(decoder));
}

}  // namespace

std::shared_ptr<const Decoder> load_for_decoding(const std::filesystem::path& directory, at::Device device,
                                                 at::ScalarType dtype, Role role, bool exact) {
  return prepared(load_decoder(directory, device, dtype), role, exact);
}

std::shared_ptr<const Decoder> load_shard_for_decoding(const std::filesystem::path& directory, at::Device device,
                                                       at::ScalarType dtype, std::shared_ptr<const ShardGroup> group,
                                                       bool exact) {
  return prepared(load_shard(directory, device, dtype, std::move(group)), Role::kTarget, exact);
}

constexpr std::pair<const char*, at::ScalarType> kDtypeFlags[] = {
    {"fp32", at::kFloat}, {"bf16", at::kBFloat16}, {"fp16", at::kHalf}, {"int8", at::kChar}};

at::ScalarType resolve_dtype(const std::string& flag, const DecoderConfig& config) {
  if (flag == "auto") return config.dtype;
  for (const auto& [word, dtype] : kDtypeFlags) {
    if (flag == word) return dtype;
  }
  throw Error(ErrorKind::kUsage, "--dtype: expected auto, fp32, bf16, fp16 or int8, found '" + flag + "'");
}

at::ScalarType resolve_decoding_dtype(const std::string& flag, const DecoderConfig& config, at::Device device,
                                      int ranks) {
  const at::ScalarType dtype = resolve_dtype(flag, config);
  const Quantisation::Method method = config.quantisation.method;
  const bool runs = method == Quantisation::Method::kGguf
                        ? device.is_cpu() && dtype != at::kHalf
                        : method != Quantisation::Method::kNone && device.is_cuda() && dtype != at::kFloat;
  const bool keeps = flag == "auto" && ranks == 1 && runs;
  return keeps ? kAsStored : dtype;
}

std::string dtype_flag(at::ScalarType dtype) {
  if (dtype == kAsStored) return "stored";
  for (const auto& [word, known] : kDtypeFlags) {
    if (dtype == known) return word;
  }
  throw Error(ErrorKind::kInternal,
              "dtype_flag: " + std::to_string(static_cast<int>(dtype)) + " is no dtype of a decoder");
}

at::ScalarType dtype_of(const Decoder& decoder) {
  if (decoder.config.quantisation.method != Quantisation::Method::kNone) return kAsStored;
  return decoder.weights.lm_head.scalar_type() == at::kChar ? at::kChar : decoder.weights.embed.scalar_type();
}

at::ScalarType side_dtype(at::ScalarType dtype, const DecoderConfig& config) {
  if (dtype == kAsStored) return config.dtype;
  if (dtype != at::kChar) return dtype;
  return config.dtype == at::kBFloat16 ? at::kBFloat16 : at::kFloat;
}

at::Device resolve_device(const std::string& flag) {
  if (flag == "cpu") return at::kCPU;
  if (flag == "auto") return kernels::cuda_device_count() > 0 ? at::Device(at::kCUDA, 0) : at::Device(at::kCPU);
  int index = 0;
  const bool indexed = flag.starts_with("cuda:") && flag.size() > 5 && flag.size() < 9 &&
                       flag.find_first_not_of("0123456789", 5) == std::string::npos;
  if (indexed) index = std::stoi(flag.substr(5));
  if (flag != "cuda" && !indexed)
    throw Error(ErrorKind::kUsage, "--device: expected auto, cpu, cuda or cuda:<i>, found '" + flag + "'");
  std::string reason;
  const int count = kernels::cuda_device_count(&reason);
  if (count == 0) throw Error(ErrorKind::kDevice, "no CUDA device: " + reason + "; use --device cpu");
  if (index >= count) throw Error(ErrorKind::kDevice, kernels::no_such_device(index, count));
  return at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(index));
}

namespace {

class RandomParameters final : public ParameterSource {
 public:
  RandomParameters(const DecoderConfig& config, uint64_t seed) : config_(config), seed_(seed) {}
  at::Tensor whole(const Parameter& p) override {
    const uint32_t stream = stream_++;
    if (p.shape.size() == 2) return normal_tensor(p.shape, 0.02, seed_, stream);
    return at::full(p.shape, p.name.ends_with("norm.weight") ? 1 - config_.norm_offset : 0.0, at::kFloat);
  }

 private:
  const DecoderConfig& config_;
  uint64_t seed_;
  uint32_t stream_ = 0;
};

}  // namespace

Decoder random_decoder(const DecoderConfig& config, uint64_t seed, at::Device device, at::ScalarType dtype) {
  Decoder decoder{config, {}};
  decoder.config.dtype = side_dtype(dtype, config);
  RandomParameters source(config, seed);
  fill(decoder, device, dtype, source);
  return decoder;
}

void save_decoder(const Decoder& decoder, const std::filesystem::path& directory) {
  DecoderWeights weights = decoder.weights;
  std::vector<at::Tensor> kept, parts;
  std::vector<TensorToWrite> tensors;
  DecoderConfig config = decoder.config;
  config.dtype = weights.embed.scalar_type();
  for (const Parameter& p : list_parameters(weights, config)) {
    if (!p.tensor->defined() || p.tensor->sizes() != at::IntArrayRef(p.shape) ||
        p.tensor->scalar_type() != config.dtype)
      throw Error(ErrorKind::kInternal, "tensor " + p.name + " does not fit its config");
    parts.push_back(p.tensor->detach().to(at::kCPU).contiguous());
    if (p.row + p.shape[0] < p.stored_rows) continue;
    kept.push_back(parts.size() == 1 ? parts.front() : at::cat(parts, 0));
    parts.clear();
    tensors.push_back(to_write(p.stored, kept.back()));
  }
  write_safetensors(directory / "model.safetensors", tensors);
  write_file_atomic(directory / "config.json", to_json(config).dump(2) + "\n");
}

}  // namespace specdec::model
