#include "engine/cache/kv_cache.h"

#include <algorithm>

#include "base/error.h"

namespace specdec::model {

namespace {

constexpr int64_t kTokens = BlockPool::kTokens;

int64_t blocks_for(int64_t tokens) { return (tokens + kTokens - 1) / kTokens; }

}  // namespace

KvCache::KvCache(const DecoderConfig& config, at::Device device, at::ScalarType dtype)
    : KvCache(std::make_shared<BlockPool>(config, device, dtype)) {}

KvCache::KvCache(std::shared_ptr<BlockPool> pool) : pool_(std::move(pool)) {}

KvCache::~KvCache() {
  // Releases the last block first, so that the pool also reuses it first: a block is useless without the blocks before
  // it.
  for (; !table_.empty(); table_.pop_back()) pool_->release(table_.back());
}

void KvCache::set(int64_t index, int32_t block) {
  const auto i = static_cast<size_t>(index);
  if (i == table_.size()) table_.push_back(block), addresses_.push_back(nullptr);
  table_[i] = block;
  addresses_[i] = pool_->address(block);
}

void KvCache::own(int64_t index, int64_t num_slots) {
  const int32_t block = table_[static_cast<size_t>(index)];
  if (pool_->holders(block) == 1) return pool_->unpublish(block);
  const int32_t fresh = pool_->take();
  pool_->copy(block, 0, fresh, 0, num_slots);
  set(index, fresh);
  pool_->release(block);
}

void KvCache::truncate(int64_t length) {
  if (length < 0 || length > length_)
    throw Error(ErrorKind::kInternal,
                "cache of " + std::to_string(length_) + " tokens cannot be truncated to " + std::to_string(length));
  length_ = length;
  published_ = std::min(published_, length / kTokens);
  for (const auto stay = static_cast<size_t>(blocks_for(length)); table_.size() > stay;
       table_.pop_back(), addresses_.pop_back())
    pool_->release(table_.back());
}

void KvCache::keep(int64_t length, std::span<const int64_t> places) {
  int64_t last = length - 1;
  for (const int64_t place : places) {
    if (place <= last || place >= length_)
      throw Error(ErrorKind::kInternal, "cache of " + std::to_string(length_) + " tokens: place " +
                                            std::to_string(place) + " cannot be kept after " + std::to_string(last));
    last = place;
  }
  const auto count = static_cast<int64_t>(places.size());
  if (count == 0 || length < 0) return truncate(length);
  for (int64_t block = length / kTokens; block * kTokens < length + count; ++block) own(block, kTokens);
  std::vector<BlockPool::Move> moves;
  for (int64_t i = 0; i < count; ++i) {  // places ascend, so no slot is overwritten before it is read
    const int64_t from = places[static_cast<size_t>(i)], to = length + i;
    if (from == to) continue;
    moves.push_back({.from = table_[static_cast<size_t>(from / kTokens)],
                     .to = table_[static_cast<size_t>(to / kTokens)],
                     .from_slot = static_cast<int32_t>(from % kTokens),
                     .to_slot = static_cast<int32_t>(to % kTokens)});
    if (!tokens_.empty())
      tokens_[static_cast<size_t>(to)] = tokens_[static_cast<size_t>(from)],
      positions_[static_cast<size_t>(to)] = positions_[static_cast<size_t>(from)];
  }
  pool_->move(moves);
  truncate(length + count);
}

KvCache KvCache::prefix(int64_t length) const {
  if (length < 0 || length > length_)
    throw Error(ErrorKind::kInternal,
                "cache of " + std::to_string(length_) + " tokens has no prefix of " + std::to_string(length));
  KvCache out(pool_);
  for (int64_t i = 0; i < blocks_for(length); ++i) {
    pool_->hold(table_[static_cast<size_t>(i)]);
    out.set(i, table_[static_cast<size_t>(i)]);
  }
  const auto recorded = std::min(tokens_.size(), static_cast<size_t>(length));
  out.tokens_.assign(tokens_.begin(), tokens_.begin() + static_cast<std::ptrdiff_t>(recorded));
  out.positions_.assign(positions_.begin(), positions_.begin() + static_cast<std::ptrdiff_t>(recorded));
  out.tenant_ = tenant_;
  out.length_ = length;
  out.rope_rescale_ = rope_rescale_;
  out.published_ = std::min(published_, length / kTokens);
  return out;
}

PrefixKey KvCache::key_of(int64_t block) const {
  return {*tenant_, rope_rescale_, block == 0 ? 0 : pool_->serial(table_[static_cast<size_t>(block - 1)])};
}

int64_t KvCache::adopt(std::span<const int32_t> tokens, uint64_t tenant) {
  if (length_ != 0)
    throw Error(ErrorKind::kInternal,
                "a cache that holds " + std::to_string(length_) + " tokens adopts others: only an empty one can");
  if (!pool_->bounded()) return 0;
  tenant_ = tenant;
  truncate(0);
  for (; tokens.size() >= kTokens; tokens = tokens.subspan(kTokens)) {
    const auto text = tokens.first(kTokens);
    const int32_t block = pool_->adopt(key_of(published_), text);
    if (block < 0) break;
    set(published_++, block);
    record(text, {});
    length_ += kTokens;
  }
  return length_;
}

void KvCache::publish() {
  if (!tenant_) return;
  for (; published_ < length_ / kTokens; ++published_) {
    const int64_t first = published_ * kTokens, last = first + kTokens - 1;
    // Blocks that contain tree nodes are not published. Without tree nodes, a token's position equals its index.
    if (positions_[static_cast<size_t>(last)] != last) return;
    const int32_t block = pool_->publish(table_[static_cast<size_t>(published_)], key_of(published_),
                                         tokens().subspan(static_cast<size_t>(first), kTokens));
    set(published_, block);
    if (pool_->serial(block) == 0) return;
  }
}

void KvCache::set_rope_rescale(int64_t rope_rescale) {
  if (length_ != 0 && rope_rescale != rope_rescale_)
    throw Error(ErrorKind::kInternal, "cache holds tokens of another scaling");
  rope_rescale_ = rope_rescale;
}

void KvCache::record(std::span<const int32_t> tokens, std::span<const int64_t> positions) {
  tokens_.resize(static_cast<size_t>(length_));  // tokens beyond length_ were drafted and dropped
  positions_.resize(static_cast<size_t>(length_));
  tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
  positions_.insert(positions_.end(), positions.begin(), positions.end());
  while (positions_.size() < tokens_.size()) positions_.push_back(static_cast<int64_t>(positions_.size()));
}

void KvCache::reserve(int64_t capacity) {
  if (capacity > length_ && length_ % kTokens != 0) own(length_ / kTokens, length_ % kTokens);
  while (this->capacity() < capacity) set(static_cast<int64_t>(table_.size()), pool_->take());
}

int64_t KvCache::blocks_missing(int64_t count, bool anew) const {
  const auto held = static_cast<int64_t>(table_.size());
  const auto shared = [&](int32_t block) { return pool_->holders(block) > 1; };
  const int64_t copied = anew ? std::ranges::count_if(table_, shared)
                         : length_ % kTokens != 0 && shared(table_[static_cast<size_t>(length_ / kTokens)]) ? 1
                                                                                                            : 0;
  return std::max<int64_t>(0, blocks_for(length_ + count) - held) + copied;
}

std::pair<at::Tensor, at::Tensor> KvCache::append(int64_t layer, const at::Tensor& k, const at::Tensor& v) {
  const int64_t end = length_ + k.size(0);
  reserve(end);
  const auto write = [&](int64_t side, const at::Tensor& rows) {
    for (int64_t at = length_; at < end;) {
      const int64_t count = std::min(end - at, kTokens - at % kTokens);
      pool_->write(table_[static_cast<size_t>(at / kTokens)], at % kTokens, layer, side,
                   rows.narrow(0, at - length_, count));
      at += count;
    }
    return pool_->gather(table_, layer, side, end);
  };
  return {write(0, k), write(1, v)};
}

void KvCache::commit(int64_t num_tokens) {
  if (num_tokens < 0 || length_ + num_tokens > capacity())
    throw Error(ErrorKind::kInternal, "commit of " + std::to_string(num_tokens) + " tokens that were never written");
  length_ += num_tokens;
}

int64_t KvCache::bytes_per_token(const DecoderConfig& config, at::ScalarType dtype) {
  return BlockPool::block_bytes(config, dtype) / kTokens;
}

}  // namespace specdec::model
