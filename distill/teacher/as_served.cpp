#include "distill/teacher/as_served.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <vector>

#include "engine/cache/kv_cache.h"
#include "engine/config/rope.h"
#include "engine/forward/forward.h"
#include "engine/kernels/block_quantised.h"

namespace specdec::distill {

bool runs_as_served(const std::string& flag, const model::DecoderConfig& config, at::Device device) {
  return config.quantisation.method == model::Quantisation::Method::kGguf && device.is_cpu() &&
         model::resolve_decoding_dtype(flag, config, device) == model::kAsStored;
}

model::Decoder load_teacher(const std::filesystem::path& directory, at::Device device, const std::string& flag) {
  const model::DecoderConfig config = model::load_decoder_config(directory);
  if (!runs_as_served(flag, config, device))
    return model::load_decoder(directory, device, model::resolve_dtype(flag, config));
  model::Decoder target = model::load_decoder(directory, device, model::kAsStored);
  const bool shares_head = target.weights.lm_head.is_same(target.weights.embed);
  target.weights.visit(target.config, [](const std::string&, at::Tensor& t) {
    if (!kernels::is_block_quantised(t)) t = t.to(at::kFloat);
  });
  if (shares_head) target.weights.lm_head = target.weights.embed;
  return target;
}

std::shared_ptr<ServedTarget> ServedTarget::of(std::shared_ptr<const model::Decoder> target) {
  const model::DecoderConfig& config = target->config;
  // Where the rope scaling depends on the length of the text, no text could share the keys of another.
  if (config.quantisation.method != model::Quantisation::Method::kGguf || !target->weights.norm.is_cpu() ||
      model::rope_varies(config.rope))
    return nullptr;
  return std::shared_ptr<ServedTarget>(new ServedTarget(std::move(target)));
}

const std::shared_ptr<model::BlockPool>& ServedTarget::pool_for(size_t tokens) {
  const auto blocks = static_cast<int64_t>(tokens) / model::BlockPool::kTokens + 2;
  const model::DecoderConfig& config = target_->config;
  const at::ScalarType dtype = target_->weights.embed.scalar_type();
  if (!pool_ || pool_->num_blocks() < blocks)
    pool_ = std::make_shared<model::BlockPool>(
        config, at::kCPU, dtype, std::max(kCacheBytes, blocks * model::BlockPool::block_bytes(config, dtype)));
  return pool_;
}

at::Tensor ServedTarget::hidden_rows(const Batch& batch) {
  at::NoGradGuard guard;
  const int64_t width = batch.tokens.size(1), count = batch.rows.numel();
  const auto* const rows = batch.rows.const_data_ptr<int64_t>();
  const at::Tensor out = at::empty({count, target_->config.hidden_size}, at::kFloat),
                   all = batch.tokens.to(at::kInt).contiguous();
  for (int64_t begin = 0, end = 0; begin < count; begin = end) {
    const int64_t text = rows[begin] / width;
    while (end < count && rows[end] / width == text) ++end;
    const std::span<const int32_t> tokens(all.const_data_ptr<int32_t>() + text * width,
                                          static_cast<size_t>(rows[end - 1] % width + 1));
    model::KvCache cache(pool_for(tokens.size()));
    // The states of tokens before the first position in the loss are not needed, so their keys may come from the pool.
    const int64_t known = cache.adopt(tokens.first(static_cast<size_t>(rows[begin] % width)), 0);
    const model::SequencePart part = {
        .cache = &cache, .tokens = tokens.subspan(static_cast<size_t>(known)), .num_logits = 0};
    const auto take = [&](int64_t, const at::Tensor& hidden) {
      out.slice(0, begin, end).copy_(hidden.index_select(0, batch.rows.slice(0, begin, end) - (text * width + known)));
    };
    model::forward(*target_, {&part, 1}, take, {target_->config.num_layers});
    cache.publish();
  }
  return out;
}

}  // namespace specdec::distill
