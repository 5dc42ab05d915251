#include "engine/model/kv_cache.h"

#include <algorithm>
#include <array>

#include "base/error.h"
#include "engine/model/tensor_block.h"

namespace specdec::model {

KvCache::KvCache(const DecoderConfig& config, at::Device device, at::ScalarType dtype) {
  const at::Tensor empty = at::empty({config.num_kv_heads, 0, config.head_dim}, at::TensorOptions(device).dtype(dtype));
  k_.assign(static_cast<size_t>(config.num_layers), empty);
  v_ = k_;
}

void KvCache::truncate(int64_t length) {
  if (length < 0 || length > length_)
    throw Error(ErrorKind::kInternal, "cache of " + std::to_string(length_) + " tokens cannot be truncated to " + std::to_string(length));
  length_ = length;
}

void KvCache::keep(int64_t length, std::span<const int64_t> places) {
  int64_t last = length - 1;
  for (const int64_t place : places) {
    if (place <= last || place >= length_)
      throw Error(ErrorKind::kInternal, "cache of " + std::to_string(length_) + " tokens: place " + std::to_string(place) + " cannot be kept after " + std::to_string(last));
    last = place;
  }
  const auto count = static_cast<int64_t>(places.size());
  truncate(count > 0 ? length_ : length);
  for (int64_t i = 0; i < count; ++i) {  // never onto a place that is still to be read, since they rise
    const int64_t from = places[static_cast<size_t>(i)], to = length + i;
    if (from == to) continue;
    for (std::vector<at::Tensor>* side : {&k_, &v_})
      for (at::Tensor& layer : *side) layer.select(1, to).copy_(layer.select(1, from));
    if (!tokens_.empty()) tokens_[static_cast<size_t>(to)] = tokens_[static_cast<size_t>(from)], positions_[static_cast<size_t>(to)] = positions_[static_cast<size_t>(from)];
  }
  length_ = length + count;
}

KvCache KvCache::prefix(int64_t length) const {
  KvCache out = *this;
  out.truncate(length);
  out.capacity_ = 0;  // of its own: reserve() copies what is kept, the first write allocates where nothing is
  out.reserve(length);
  return out;
}

void KvCache::set_stretch(int64_t stretch) {
  if (length_ != 0 && stretch != stretch_) throw Error(ErrorKind::kInternal, "cache holds tokens of another scaling");
  stretch_ = stretch;
}

void KvCache::record(std::span<const int32_t> tokens, std::span<const int64_t> positions) {
  tokens_.resize(static_cast<size_t>(length_));  // what lies beyond was drafted and dropped
  positions_.resize(static_cast<size_t>(length_));
  tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
  positions_.insert(positions_.end(), positions.begin(), positions.end());
}

void KvCache::reserve(int64_t capacity) {
  if (capacity <= capacity_) return;
  constexpr int64_t kBlock = 128;
  // Growth by half keeps the copying linear in the final length.
  const int64_t wanted = (std::max(capacity, capacity_ + capacity_ / 2) + kBlock - 1) / kBlock * kBlock;
  const at::IntArrayRef old = k_.front().sizes();
  const std::array<int64_t, 3> shape = {old[0], wanted, old[2]};
  const auto options = k_.front().options();
  const size_t bytes = TensorBlock::padded(static_cast<size_t>(c10::multiply_integers(shape)) * k_.front().element_size());
  TensorBlock block(options.device().is_cpu() ? 2 * k_.size() * bytes : 0);
  for (size_t layer = 0; layer < k_.size(); ++layer) {
    for (at::Tensor* tensor : {&k_[layer], &v_[layer]}) {
      at::Tensor larger = options.device().is_cpu() ? block.take(shape, tensor->scalar_type()) : at::empty(shape, options);
      if (length_ > 0) larger.narrow(1, 0, length_).copy_(tensor->narrow(1, 0, length_));
      *tensor = larger;
    }
  }
  capacity_ = wanted;
}

std::pair<at::Tensor, at::Tensor> KvCache::append(int64_t layer, const at::Tensor& k, const at::Tensor& v) {
  const int64_t count = k.size(0), end = length_ + count;
  reserve(end);
  const auto write = [&](at::Tensor& side, const at::Tensor& rows) {
    side.narrow(1, length_, count).copy_(rows.transpose(0, 1));
    return side.narrow(1, 0, end);
  };
  return {write(k_[static_cast<size_t>(layer)], k), write(v_[static_cast<size_t>(layer)], v)};
}

void KvCache::commit(int64_t num_tokens) {
  if (num_tokens < 0 || length_ + num_tokens > capacity_)
    throw Error(ErrorKind::kInternal, "commit of " + std::to_string(num_tokens) + " tokens that were never written");
  length_ += num_tokens;
}

int64_t KvCache::bytes() const {
  int64_t total = 0;
  for (const at::Tensor& tensor : k_) total += 2 * static_cast<int64_t>(tensor.nbytes());
  return total;
}

int64_t KvCache::bytes_per_token(const DecoderConfig& config, at::ScalarType dtype) {
  return 2 * config.num_layers * config.num_kv_heads * config.head_dim * static_cast<int64_t>(c10::elementSize(dtype));
}

}  // namespace specdec::model
