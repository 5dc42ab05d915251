#include "engine/model/forward_cuda.h"

#include <algorithm>
#include <cmath>

#include "engine/kernels/coded.h"
#include "engine/kernels/cuda_errors.h"
#include "engine/kernels/ops.h"
#include "engine/model/angle_table.h"
#include "engine/model/rope.h"

namespace specdec::model {

namespace {

using kernels::CudaDtype;
using kernels::PagedRows;

const RopeConfig& rope_of(const DecoderConfig& config, size_t which) {
  return which == 0 ? config.rope : config.local_rope;
}

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

bool is_causal(const at::Tensor& mask) {
  if (!mask.defined()) return true;
  const at::Tensor rows = mask.to(at::kCPU).contiguous();
  const bool* sees = rows.const_data_ptr<bool>();
  const int64_t n = rows.size(0);
  for (int64_t i = 0; i < n; ++i)
    if (std::any_of(sees + i * n + i + 1, sees + (i + 1) * n, [](bool x) { return x; })) return false;
  return true;
}

const void* data(const at::Tensor& tensor) { return tensor.defined() ? tensor.const_data_ptr() : nullptr; }

// Returns whether `next` lies right behind `first` in memory, so that a kernel can read them as one.
bool adjoin(const at::Tensor& first, const at::Tensor& next) {
  return first.is_contiguous() && next.is_contiguous() && first.scalar_type() == next.scalar_type() &&
         first.sizes().slice(1) == next.sizes().slice(1) &&
         static_cast<const char*>(data(first)) + first.nbytes() == data(next);
}

}  // namespace

const kernels::CudaLibrary* cuda_pass_library(const Decoder& decoder) {
  const bool on_gpu = decoder.weights.embed.is_cuda();
  if ((!on_gpu && !decoder.library) || kernels::reference_forced() || !covers(decoder)) return nullptr;
  return decoder.library ? decoder.library : &kernels::cuda_library();
}

bool cuda_pass_applies(const Decoder& decoder, std::span<const SequencePart> parts) {
  if (!cuda_pass_library(decoder)) return false;
  int64_t rows = 0;
  for (const SequencePart& part : parts) {
    const auto count = static_cast<int64_t>(part.tokens.size());
    if (count > PagedRows::kMaxRows || part.cache->dtype() != decoder.weights.embed.scalar_type() ||
        !is_causal(part.tree_mask))
      return false;
    rows += count;
  }
  return rows <= kernels::kMaxProductRows;
}

CudaPass::CudaPass(const Decoder& decoder)
    : decoder_(decoder),
      config_(decoder.config),
      library_(*cuda_pass_library(decoder)),
      dtype_(decoder.weights.embed.scalar_type() == at::kHalf ? CudaDtype::kHalf : CudaDtype::kBFloat16),
      device_(decoder.weights.embed.is_cpu() ? 0 : decoder.weights.embed.get_device()),
      rows_(config_.num_heads, config_.num_kv_heads) {
  static_assert(BlockPool::kTokens == kernels::kPagedSlots);
  for (const LayerConfig& layer : config_.layers) {
    turns_[0] |= layer.rope == LayerRope::kGlobal;
    turns_[1] |= layer.rope == LayerRope::kLocal;
  }
}

void CudaPass::add(const Rows& rows) {
  const auto count = static_cast<int64_t>(rows.tokens.size());
  rows_.add(rows.cache->blocks(), rows.length, count, rows.allowed);
  for (int64_t i = 0; i < count; ++i) {
    if (i >= count - rows.num_logits) logit_rows_.push_back(static_cast<int32_t>(ids_.size()));
    ids_.push_back(rows.tokens[static_cast<size_t>(i)]);
    const int64_t position = rows.positions.empty() ? rows.length + i : rows.positions[static_cast<size_t>(i)];
    for (const size_t which : {0, 1}) {
      if (!turns_[which]) continue;
      const RopeConfig& rope = rope_of(config_, which);
      AngleTable& table = angle_table(rope, config_.head_dim, rope_varies(rope) ? rows.cache->rope_rescale() : 0);
      const size_t at = cos_[which].size(), half = static_cast<size_t>(table.half());
      cos_[which].resize(at + half);
      sin_[which].resize(at + half);
      table.copy(position, cos_[which].data() + at, sin_[which].data() + at);
    }
  }
}

void CudaPass::describe(DeviceUpload& upload) {
  at_.ids = upload.add(ids_);
  at_.logit_rows = upload.add(logit_rows_);
  at_.rows = upload.add(rows_.rows());
  at_.tiles = upload.add(rows_.tiles());
  at_.blocks = upload.add(rows_.blocks());
  for (const size_t which : {0, 1}) {
    at_.cos[which] = upload.add(cos_[which]);
    at_.sin[which] = upload.add(sin_[which]);
  }
}

void CudaPass::check(int32_t code, const char* what) const {
  if (code != 0)
    kernels::throw_cuda_error(code, std::string(what) + " could not be launched", library_.error_text(code));
}

void CudaPass::norm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& out) const {
  check(library_.rms_norm(dtype_, device_, data(x), data(weight), static_cast<float>(config_.rms_norm_eps), x.size(0),
                          x.size(1), out.mutable_data_ptr()),
        "rms_norm");
}

// out = x weightᵀ + bias, with what RowsProduct adds to it. n and out_column are given for a part of a wider `out`.
struct CudaPass::Product {
  const at::Tensor &x, &weight, &bias, &out;
  const at::Tensor* order = nullptr;  // of the inputs, if the weights are codes
  const at::Tensor *up = nullptr, *up_bias = nullptr, *residual = nullptr;
  int64_t n = 0, out_column = 0;
};
void CudaPass::multiply(const Product& p) const {
  const auto size = static_cast<int64_t>(p.out.element_size());
  const kernels::RowsProduct call = {
      .rows = p.x.size(0),
      .n = p.n != 0 ? p.n : p.weight.size(0),
      .k = p.x.size(1),
      .x = data(p.x),
      .weight = data(p.weight),
      .bias = data(p.bias),
      .up = p.up ? data(*p.up) : nullptr,
      .up_bias = p.up_bias ? data(*p.up_bias) : nullptr,
      .residual = p.residual ? data(*p.residual) : nullptr,
      .out = static_cast<char*>(p.out.mutable_data_ptr()) + p.out_column * size,
      .stride = p.out.size(1),
      .packing = kernels::packing_of(p.weight),
      .group = kernels::coded_group(p.weight),
      .order = p.order && kernels::is_coded(p.weight) ? static_cast<const int32_t*>(data(*p.order)) : nullptr,
  };
  check(library_.rows_product(dtype_, device_, &call), "a product");
}

// Writes queries, keys and values side by side, in one product if the weights lie one after the other.
void CudaPass::project(const at::Tensor& x, const LayerWeights& w, const at::Tensor& out) const {
  constexpr int64_t kBlock = 32;  // outputs that packed weights are packed by (kernels/cpu/cpu.h, kernels/coded.h)
  const bool biased = w.q_bias.defined(), packed = kernels::packing_of(w.q) != kernels::Packing::kPlain;
  const bool one = adjoin(w.q, w.k) && adjoin(w.k, w.v) &&
                   (!biased || (adjoin(w.q_bias, w.k_bias) && adjoin(w.k_bias, w.v_bias))) &&
                   (!packed || (w.q.size(0) % kBlock == 0 && w.k.size(0) % kBlock == 0));
  const at::Tensor* order = &w.attention_order;
  if (one) return multiply({.x = x, .weight = w.q, .bias = w.q_bias, .out = out, .order = order, .n = out.size(1)});
  multiply({.x = x, .weight = w.q, .bias = w.q_bias, .out = out, .order = order});
  multiply({.x = x, .weight = w.k, .bias = w.k_bias, .out = out, .order = order, .out_column = w.q.size(0)});
  multiply(
      {.x = x, .weight = w.v, .bias = w.v_bias, .out = out, .order = order, .out_column = w.q.size(0) + w.k.size(0)});
}

// Adds x weightᵀ + bias to `sum`. With ranks, which divide the matrix's columns, it is the sum of their products, and
// `work`, which has the shape of `sum`, is overwritten.
void CudaPass::add_product(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                           const at::Tensor& order, const at::Tensor& sum, const at::Tensor& work) const {
  if (!decoder_.group)
    return multiply({.x = x, .weight = weight, .bias = bias, .out = sum, .order = &order, .residual = &sum});
  multiply({.x = x, .weight = weight, .bias = at::Tensor(), .out = work});
  sum.add_(decoder_.group->sum(work).to(sum.scalar_type()));
  if (bias.defined()) sum.add_(bias);
}

at::Tensor CudaPass::run(const DeviceUpload& upload, const HiddenObserver& observer) const {
  const DecoderWeights& weights = decoder_.weights;
  const int64_t rows = num_rows(), e = config_.hidden_size, d = config_.head_dim, heads = config_.num_heads,
                kv_heads = config_.num_kv_heads;
  const auto buffer = [&](int64_t width) { return at::empty({rows, width}, weights.embed.options()); };
  const auto narrow = [](int64_t n) { return static_cast<int32_t>(n); };
  const at::Tensor ids = upload.tensor(at_.ids, rows, at::kInt);
  at::Tensor x = decoder_.group ? shared_embedding(decoder_, ids) : weights.embed.index_select(0, ids);
  const at::Tensor h = buffer(e), projected = buffer((heads + 2 * kv_heads) * d), q = buffer(heads * d),
                   attended = buffer(heads * d), inner = buffer(config_.intermediate_size);
  const at::Tensor work = at::empty({rows_.num_parts() * kv_heads * kernels::kPagedQueries * (d + 2)},
                                    weights.embed.options().dtype(at::kFloat));
  const kernels::PagedPass pass = {.rows = upload.at<const kernels::PagedRow>(at_.rows),
                                   .tiles = upload.at<const kernels::PagedTile>(at_.tiles),
                                   .blocks = upload.at<const uint64_t>(at_.blocks),
                                   .parts = work.mutable_data_ptr<float>(),
                                   .num_rows = narrow(rows),
                                   .num_tiles = narrow(static_cast<int64_t>(rows_.tiles().size())),
                                   .num_splits = rows_.num_splits(),
                                   .heads = narrow(heads),
                                   .kv_heads = narrow(kv_heads),
                                   .d = narrow(d)};
  const auto observe = [&](int64_t layer) {
    if (observer) observer(layer, x.clone());  // the next layer changes x in place
  };
  observe(0);
  for (int64_t l = 0; l < config_.num_layers; ++l) {
    const LayerWeights& w = weights.layers[static_cast<size_t>(l)];
    const LayerConfig& flags = config_.layers[static_cast<size_t>(l)];
    const size_t which = flags.rope == LayerRope::kLocal ? 1 : 0;
    const bool turned = flags.rope != LayerRope::kNone;
    norm(x, w.input_norm, h);
    project(h, w, projected);
    const kernels::PagedHeads turn = {.layer = narrow(l),
                                      .rotated = turned ? narrow(rotary_dim(rope_of(config_, which), d)) : 0,
                                      .projected = data(projected),
                                      .q_norm = data(w.q_norm),
                                      .k_norm = data(w.k_norm),
                                      .eps = static_cast<float>(config_.rms_norm_eps),
                                      .cos = upload.at<const float>(at_.cos[which]),
                                      .sin = upload.at<const float>(at_.sin[which]),
                                      .q = q.mutable_data_ptr()};
    check(library_.prepare_heads(dtype_, device_, &pass, &turn), "prepare_heads");
    const kernels::PagedLayer attention = {.layer = narrow(l),
                                           .scale = static_cast<float>(config_.attention_scale()),
                                           .soft_cap = static_cast<float>(config_.attention_soft_cap),
                                           .window = narrow(flags.window),
                                           .q = data(q),
                                           .k = nullptr,
                                           .v = nullptr,
                                           .out = attended.mutable_data_ptr()};
    check(library_.paged_attention(dtype_, device_, &pass, &attention), "attention");
    add_product(attended, w.o, w.o_bias, w.o_order, x, h);
    norm(x, w.mlp_norm, h);
    multiply({.x = h,
              .weight = w.gate,
              .bias = w.gate_bias,
              .out = inner,
              .order = &w.mlp_order,
              .up = &w.up,
              .up_bias = &w.up_bias});
    add_product(inner, w.down, w.down_bias, w.down_order, x, h);
    observe(l + 1);
  }
  const int64_t scored = decoder_.group ? config_.vocab_size : weights.lm_head.size(0);
  if (num_logits() == 0) return at::empty({0, scored}, weights.embed.options());
  if (num_logits() != rows) x = x.index_select(0, upload.tensor(at_.logit_rows, num_logits(), at::kInt));
  const at::Tensor normed = at::empty_like(x),
                   logits = at::empty({num_logits(), weights.lm_head.size(0)}, weights.embed.options());
  norm(x, weights.norm, normed);
  const at::Tensor no_bias;
  multiply({.x = normed, .weight = weights.lm_head, .bias = no_bias, .out = logits});
  return decoder_.group ? decoder_.group->join(logits, scored) : logits;
}

at::Tensor cuda_pass(const Decoder& decoder, std::span<const SequencePart> parts, const HiddenObserver& observer) {
  CudaPass pass(decoder);
  for (const SequencePart& part : parts) {
    const auto count = static_cast<int64_t>(part.tokens.size());
    part.cache->reserve(part.cache->length() + count);
    at::Tensor mask;
    if (part.tree_mask.defined()) mask = part.tree_mask.to(at::kCPU).contiguous();
    const std::span<const bool> allowed =
        mask.defined() ? std::span(mask.const_data_ptr<bool>(), static_cast<size_t>(count * count))
                       : std::span<const bool>();
    pass.add({part.cache, part.cache->length(), part.tokens, part.num_logits, allowed, part.positions});
  }
  DeviceUpload upload(decoder.weights.embed.device());
  pass.describe(upload);
  upload.send();
  const at::Tensor logits = pass.run(upload, observer).to(at::kFloat);
  for (const SequencePart& part : parts) part.cache->commit(static_cast<int64_t>(part.tokens.size()));
  return logits;
}

}  // namespace specdec::model
