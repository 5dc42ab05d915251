#include "engine/forward/pass_rows.h"

#include <algorithm>

namespace specdec::model {

void PassRows::clear() {
  rows.clear();
  groups.clear();
  positions.clear();
  logit_rows.clear();
  listed_.clear();
  extra_.clear();
  for (auto& [window, seen] : visible) seen.clear();
  longest = 0;
}

void PassRows::fill(std::span<const SequencePart> parts, const DecoderConfig& config, size_t element_bytes) {
  clear();
  for (const SequencePart& part : parts) add(part, config, element_bytes);
  for (const LayerConfig& layer : config.layers) {
    std::vector<kernels::cpu::Visible>& seen = visible[layer.window];
    if (!seen.empty()) continue;
    for (const Listed& l : listed_) {
      const int64_t first = layer.window != 0 ? std::max<int64_t>(0, l.prefix + l.count - layer.window) : 0;
      seen.push_back({l.prefix, extra_.data() + l.extra, l.count, first});
    }
  }
}

void PassRows::add(const SequencePart& part, const DecoderConfig& config, size_t element_bytes) {
  const auto count = static_cast<int64_t>(part.tokens.size());
  const int64_t before = part.cache->length();
  part.cache->reserve(before + count);
  longest = std::max(longest, before + count);
  const at::Tensor mask = part.tree_mask.defined() ? part.tree_mask.to(at::kCPU).contiguous() : at::Tensor();
  const size_t slot_bytes = static_cast<size_t>(config.head_dim) * element_bytes;
  for (int64_t i = 0; i < count; ++i) {
    if (i % kAttendRows == 0) groups.push_back({static_cast<int64_t>(rows.size()), std::min(kAttendRows, count - i)});
    Listed row{before + i + 1, extra_.size(), 0};
    if (mask.defined()) {
      const bool* allowed = mask.const_data_ptr<bool>() + i * count;
      int64_t leading = 0;
      while (leading < count && allowed[leading]) ++leading;
      row.prefix = before + leading;
      for (int64_t j = leading; j < count; ++j) {
        if (allowed[j]) extra_.push_back(static_cast<int32_t>(before + j));
      }
      row.count = static_cast<int64_t>(extra_.size() - row.extra);
    }
    if (i >= count - part.num_logits) logit_rows.push_back(static_cast<int64_t>(rows.size()));
    positions.push_back(part.positions.empty() ? before + i : part.positions[static_cast<size_t>(i)]);
    const auto block = static_cast<size_t>((before + i) / BlockPool::kTokens);
    const auto slot = static_cast<size_t>((before + i) % BlockPool::kTokens);
    rows.push_back({part.cache, part.tokens[static_cast<size_t>(i)],
                    static_cast<std::byte*>(part.cache->blocks()[block]) + slot * slot_bytes});
    listed_.push_back(row);
  }
}

}  // namespace specdec::model
