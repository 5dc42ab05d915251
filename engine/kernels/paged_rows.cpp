#include "engine/kernels/paged_rows.h"

#include <algorithm>
#include <bit>
#include <string>

#include "base/error.h"

namespace specdec::kernels {

int32_t paged_split(int64_t visible) {
  constexpr uint64_t kLeast = 128;
  return static_cast<int32_t>(std::max(kLeast, std::bit_ceil(static_cast<uint64_t>(visible)) / kPagedSplits));
}

void PagedRows::clear() {
  rows_.clear();
  tiles_.clear();
  blocks_.clear();
  num_splits_ = num_parts_ = 0;
}

void PagedRows::pad(int64_t rows, int64_t tiles) {
  rows_.resize(static_cast<size_t>(rows), {0, 0, -1});
  tiles_.resize(static_cast<size_t>(tiles), {});
}

void PagedRows::add(std::span<void* const> blocks, int64_t length, int64_t count, std::span<const bool> allowed) {
  const auto table = static_cast<int32_t>(blocks_.size());
  const auto first = static_cast<int64_t>(rows_.size()), named = static_cast<int64_t>(allowed.size());
  const int64_t width = named == 0 || count == 0 ? count : named / count, before = width - count;
  if (count > kMaxRows || width > kMaxRows || length + count > static_cast<int64_t>(blocks.size()) * kPagedSlots ||
      (named != 0 && (before < 0 || before > length || named != count * width)))
    throw Error(ErrorKind::kInternal, "a paged pass of " + std::to_string(count) + " rows after " +
                                          std::to_string(length) + " tokens in " + std::to_string(blocks.size()) +
                                          " blocks, with a mask of " + std::to_string(allowed.size()));
  for (void* const block : blocks) blocks_.push_back(reinterpret_cast<uint64_t>(block));
  for (int64_t i = 0; i < count; ++i) {
    const int64_t slot = length + i;
    uint64_t tail = slot >= 63 ? ~uint64_t{0} : (uint64_t{2} << slot) - 1;  // bit b is set if slot - b exists
    for (int64_t j = 0; j < width && named != 0; ++j) {
      const bool sees = allowed[static_cast<size_t>(i * width + j)];
      const int64_t back = i - (j - before);
      if (sees && back < 0) throw Error(ErrorKind::kInternal, "a row of a paged pass sees a later row");
      if (!sees && back >= 0) tail &= ~(uint64_t{1} << back);
    }
    rows_.push_back({tail, table, static_cast<int32_t>(slot)});
  }
  // Groups consecutive rows into tiles, which read keys together. A tile ends where the next row divides its keys into
  // splits of another size.
  for (int64_t row = 0; row < count;) {
    const int32_t split = paged_split(length + row + 1);
    int64_t end = row + 1;
    while (end < count && paged_split(length + end + 1) == split) ++end;
    const int64_t queries = (end - row) * times_;
    for (int64_t query = 0; query < queries; query += kPagedQueries) {
      const int64_t here = std::min<int64_t>(kPagedQueries, queries - query),
                    slots = length + row + (query + here - 1) / times_ + 1;
      const auto splits = static_cast<int32_t>((slots + split - 1) / split);
      tiles_.push_back({static_cast<int32_t>(first + row), static_cast<int32_t>(query), static_cast<int32_t>(here),
                        static_cast<int32_t>(slots), split, num_parts_});
      num_splits_ = std::max(num_splits_, splits);
      num_parts_ += splits;
    }
    row = end;
  }
}

}  // namespace specdec::kernels
