#include "engine/forward/forward_cuda.h"

#include <algorithm>

#include "engine/forward/paged_attention.h"
#include "engine/kernels/ops.h"

namespace specdec::model {

namespace {

bool covers(const LayerConfig& layer) {
  return layer.input_norm && layer.mlp_norm && !layer.attention_out_norm && !layer.mlp_out_norm && !layer.experts &&
         layer.qk_norm != QkNorm::kProjection;
}

bool covers(const Decoder& decoder) {
  const DecoderConfig& c = decoder.config;
  const at::ScalarType dtype = decoder.weights.embed.scalar_type();
  return (dtype == at::kBFloat16 || dtype == at::kHalf) && c.head_dim % 8 == 0 &&
         c.head_dim <= kernels::kMaxPagedHead && c.norm_offset == 0 && !c.norm_rounds_last &&
         c.activation == Activation::kSilu && c.embedding_scale == 1 && c.final_soft_cap == 0 &&
         std::all_of(c.layers.begin(), c.layers.end(), [](const LayerConfig& layer) { return covers(layer); });
}

}  // namespace

const kernels::CudaLibrary* cuda_pass_library(const Decoder& decoder) {
  const bool on_gpu = decoder.weights.embed.is_cuda();
  if ((!on_gpu && !decoder.library) || kernels::reference_forced() || !covers(decoder)) return nullptr;
  return decoder.library ? decoder.library : &kernels::cuda_library();
}

bool few_causal_rows(std::span<const SequencePart> parts, at::ScalarType dtype) {
  int64_t rows = 0;
  for (const SequencePart& part : parts) {
    if (!PagedAttention::takes(part, dtype)) return false;
    rows += static_cast<int64_t>(part.tokens.size());
  }
  return rows <= kernels::kMaxProductRows;
}

bool cuda_pass_applies(const Decoder& decoder, std::span<const SequencePart> parts) {
  return cuda_pass_library(decoder) && few_causal_rows(parts, decoder.weights.embed.scalar_type());
}

void CudaPass::describe(DeviceUpload& upload, PassGraphs* graphs, int32_t live, bool may_rest) {
  num_rows_ = rows_.num_rows();
  graphs_ = graphs && graphs->takes(rows_) ? graphs : nullptr;
  if (graphs_) graphs_->pad(rows_);
  rows_.describe(upload, live, may_rest);
}

at::Tensor CudaPass::run(const DeviceUpload& upload, const HiddenObserver& observer,
                         const std::vector<int64_t>& layers) const {
  if (graphs_ && (!observer || !layers.empty())) {
    const PassGraphs::Result result = graphs_->run(rows_, upload, observer ? layers : std::vector<int64_t>());
    for (size_t i = 0; i < result.taps.size(); ++i) observer(layers[i], result.taps[i].narrow(0, 0, num_rows_));
    return rows_.with_logits(result.logits.narrow(0, 0, num_rows_), upload);
  }
  return run_alone(upload, observer, layers);
}

at::Tensor CudaPass::run_alone(const DeviceUpload& upload, const HiddenObserver& observer,
                               const std::vector<int64_t>& layers) const {
  const Decoder& decoder = layers_.decoder();
  const at::TensorOptions options = decoder.weights.embed.options();
  const at::Tensor sums =
      at::empty({CudaRows::part_values(decoder.config, rows_.paged().num_parts())}, options.dtype(at::kFloat));
  const CudaLayers::Room room = layers_.make_room(rows_.num_rows());
  HiddenObserver copied;
  if (observer) copied = [&](int64_t layer, const at::Tensor& x) { observer(layer, x.clone()); };
  const CudaPassInputs inputs = rows_.inputs(rows_.piece(upload), sums);
  layers_.run(inputs, room, copied, layers);
  const int64_t scored = decoder.group ? decoder.config.vocab_size : decoder.weights.lm_head.size(0),
                count = rows_.num_logits();
  if (count == 0) return at::empty({0, scored}, options);
  const at::Tensor x = rows_.with_logits(room.x, upload),
                   logits = at::empty({count, decoder.weights.lm_head.size(0)}, options);
  layers_.score(x, room.h.narrow(0, 0, count), logits, inputs.paged.live);
  return decoder.group ? decoder.group->join(logits, scored) : logits;
}

at::Tensor cuda_pass(const Decoder& decoder, std::span<const SequencePart> parts, const HiddenObserver& observer,
                     const std::vector<int64_t>& layers) {
  CudaPass pass(decoder);
  for (const SequencePart& part : parts) add_part(part, part.num_logits, pass);
  DeviceUpload upload(decoder.weights.embed.device());
  pass.describe(upload);
  upload.send();
  const at::Tensor logits = pass.run(upload, observer, layers).to(at::kFloat);
  for (const SequencePart& part : parts) part.cache->commit(static_cast<int64_t>(part.tokens.size()));
  return logits;
}

}  // namespace specdec::model
