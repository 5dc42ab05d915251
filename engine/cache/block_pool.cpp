#include "engine/cache/block_pool.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <string>

#include "base/error.h"
#include "engine/kernels/cuda_errors.h"
#include "engine/kernels/tensor_block.h"

namespace specdec::model {

int64_t BlockPool::block_bytes(const DecoderConfig& config, at::ScalarType dtype) {
  return kTokens * 2 * config.num_layers * config.num_kv_heads * config.head_dim *
         static_cast<int64_t>(c10::elementSize(dtype));
}

BlockPool::BlockPool(const DecoderConfig& config, at::Device device, at::ScalarType dtype, int64_t budget_bytes)
    : device_(device),
      dtype_(dtype),
      shape_{config.num_layers, 2, config.num_kv_heads, kTokens, config.head_dim},
      block_bytes_(block_bytes(config, dtype)) {
  if (budget_bytes == 0) return;
  max_blocks_ = std::min<int64_t>(budget_bytes / block_bytes_, std::numeric_limits<int32_t>::max());
  if (max_blocks_ < 1)
    throw Error(ErrorKind::kConfig, "a KV cache of " + std::to_string(budget_bytes) + " bytes holds no block of " +
                                        std::to_string(kTokens) + " tokens, which takes " +
                                        std::to_string(block_bytes_) + ": give it more memory");
  index_.resize(static_cast<size_t>(max_blocks_));
  grow(max_blocks_);
}

void BlockPool::grow(int64_t count) {
  const auto first = static_cast<int32_t>(num_blocks());
  std::vector<int64_t> shape = {count};
  shape.insert(shape.end(), shape_.begin(), shape_.end());
  const bool host = device_.is_cpu();
  const at::Tensor memory =
      host ? TensorBlock(TensorBlock::padded(static_cast<size_t>(count * block_bytes_))).take(shape, dtype_)
           : at::empty(shape, at::TensorOptions(device_).dtype(dtype_));
  blocks_.resize(static_cast<size_t>(first + count));
  free_.reserve(blocks_.size());
  // Blocks are pushed in descending order, so that take() returns lower block numbers first.
  for (auto block = static_cast<int32_t>(first + count - 1); block >= first; --block) {
    at(block).slab = static_cast<int32_t>(slabs_.size());
    at(block).address = static_cast<std::byte*>(memory.mutable_data_ptr()) + (block - first) * block_bytes_;
    free_.push_back(block);
  }
  slabs_.push_back({first, memory});
}

int64_t BlockPool::available() const {
  return bounded() ? static_cast<int64_t>(free_.size()) + num_kept_ : std::numeric_limits<int64_t>::max();
}

int32_t BlockPool::take() {
  // The pool grows by half of its present size, so that little memory stays unused.
  if (free_.empty() && !bounded()) grow(std::max<int64_t>(4, num_blocks() / 2));
  int32_t block = oldest_;
  if (!free_.empty()) {
    block = free_.back();
    free_.pop_back();
  } else if (block >= 0) {
    unkeep(block);
    index_.erase(block);
  } else {
    throw Error(ErrorKind::kDevice, "the KV cache is full: sequences hold all of its " + std::to_string(num_blocks()) +
                                        " blocks of " + std::to_string(kTokens) +
                                        " tokens; end some or give it more memory");
  }
  at(block).holders = 1;
  return block;
}

void BlockPool::hold(int32_t block) {
  if (at(block).holders++ == 0) unkeep(block);
}

void BlockPool::release(int32_t block) {
  if (at(block).holders < 1)
    throw Error(ErrorKind::kInternal,
                "block " + std::to_string(block) + " of the KV cache is released, but nobody holds it");
  if (--at(block).holders > 0) return;
  bounded() && serial(block) != 0 ? keep(block) : free_.push_back(block);
}

void BlockPool::keep(int32_t block) {
  at(block).older = newest_;
  at(block).newer = -1;
  (newest_ < 0 ? oldest_ : at(newest_).newer) = block;
  newest_ = block;
  ++num_kept_;
}

void BlockPool::unkeep(int32_t block) {
  const auto [older, newer] = std::pair{at(block).older, at(block).newer};
  (older < 0 ? oldest_ : at(older).newer) = newer;
  (newer < 0 ? newest_ : at(newer).older) = older;
  --num_kept_;
}

int32_t BlockPool::adopt(const PrefixKey& key, std::span<const int32_t> tokens) {
  const int32_t block = index_.find(key, tokens);
  if (block >= 0) hold(block);
  return block;
}

int64_t BlockPool::find(uint64_t tenant, int64_t rope_rescale, std::span<const int32_t> tokens) const {
  int64_t found = 0;
  for (PrefixKey key{tenant, rope_rescale, 0}; bounded() && tokens.size() >= kTokens;
       tokens = tokens.subspan(kTokens), found += kTokens) {
    const int32_t block = index_.find(key, tokens.first(kTokens));
    if (block < 0) break;
    key = {tenant, rope_rescale, serial(block)};
  }
  return found;
}

int32_t BlockPool::publish(int32_t block, const PrefixKey& key, std::span<const int32_t> tokens) {
  const int32_t there = adopt(key, tokens);
  if (there >= 0) {
    release(block);
    return there;
  }
  index_.insert(block, key, tokens);
  return block;
}

void BlockPool::unpublish(int32_t block) {
  if (bounded()) index_.erase(block);
}

at::Tensor BlockPool::slots(int32_t block, int64_t first, int64_t count) const {
  const Slab& slab = slabs_[static_cast<size_t>(at(block).slab)];
  return slab.memory.select(0, block - slab.first).narrow(3, first, count);
}

void BlockPool::write(int32_t block, int64_t slot, int64_t layer, int64_t side, const at::Tensor& rows) {
  slots(block, slot, rows.size(0)).select(0, layer).select(0, side).copy_(rows.transpose(0, 1));
}

void BlockPool::copy(int32_t from, int64_t from_slot, int32_t to, int64_t to_slot, int64_t count) {
  if (!device_.is_cpu()) {
    slots(to, to_slot, count).copy_(slots(from, from_slot, count));
    return;
  }
  const auto* source = static_cast<const std::byte*>(address(from));
  auto* target = static_cast<std::byte*>(address(to));
  const int64_t stride = block_bytes_ / (shape_[0] * shape_[1] * shape_[2]),
                row = stride / kTokens;  // stride: bytes of a kv head's keys in one layer of a block; row: of one key
  for (int64_t at = 0; at < block_bytes_; at += stride)
    std::memcpy(target + at + to_slot * row, source + at + from_slot * row, static_cast<size_t>(count * row));
}

kernels::SlotMoves BlockPool::slot_moves(std::span<const Move> moves) const {
  kernels::SlotMoves out = {};
  out.count = static_cast<int32_t>(moves.size());
  out.planes = static_cast<int32_t>(shape_[0] * shape_[1] * shape_[2]);
  out.d = static_cast<int32_t>(shape_.back());
  for (size_t i = 0; i < moves.size(); ++i) {
    out.from[i] = moves[i].from_slot, out.to[i] = moves[i].to_slot;
    out.from_block[i] = reinterpret_cast<uint64_t>(address(moves[i].from));
    out.to_block[i] = reinterpret_cast<uint64_t>(address(moves[i].to));
  }
  return out;
}

void BlockPool::move(std::span<const Move> moves) {
  if (!device_.is_cuda() || c10::elementSize(dtype_) != 2) {
    for (const Move& m : moves) copy(m.from, m.from_slot, m.to, m.to_slot, 1);
    return;
  }
  const kernels::CudaLibrary& library = kernels::cuda_library();
  for (; !moves.empty(); moves = moves.subspan(std::min<size_t>(moves.size(), kernels::SlotMoves::kMost))) {
    const kernels::SlotMoves some = slot_moves(moves.first(std::min<size_t>(moves.size(), kernels::SlotMoves::kMost)));
    if (const int32_t code = library.move_slots(device_.index(), &some))
      kernels::throw_cuda_error(code, "a compaction could not be launched", library.error_text(code));
  }
}

at::Tensor BlockPool::gather(std::span<const int32_t> blocks, int64_t layer, int64_t side, int64_t length) const {
  std::vector<at::Tensor> runs;  // one view [G, blocks, kTokens, D] per run of adjacent blocks
  for (size_t i = 0; i < blocks.size();) {
    const Block& start = at(blocks[i]);
    const Slab& slab = slabs_[static_cast<size_t>(start.slab)];
    int64_t run = 1;
    while (i + static_cast<size_t>(run) < blocks.size() && blocks[i + static_cast<size_t>(run)] == blocks[i] + run &&
           at(blocks[i + static_cast<size_t>(run)]).slab == start.slab)
      ++run;
    runs.push_back(slab.memory.narrow(0, blocks[i] - slab.first, run).select(1, layer).select(1, side).transpose(0, 1));
    i += static_cast<size_t>(run);
  }
  const int64_t heads = shape_[2], d = shape_[4];
  if (runs.empty()) return at::empty({heads, 0, d}, at::TensorOptions(device_).dtype(dtype_));
  return (runs.size() == 1 ? runs.front() : at::cat(runs, 1)).reshape({heads, -1, d}).narrow(1, 0, length);
}

}  // namespace specdec::model
