// Describes a pass over cached sequences for the CUDA kernel paged_attention() (cuda.h): the slot that each row's key
// is written to, the keys that each row sees, and the tiles, which are groups of rows that read keys together.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/kernels/cuda.h"

namespace specdec::kernels {

class PagedRows {
 public:
  // The maximum number of rows of one sequence in a pass plus the cached tokens that the mask `allowed` covers. It is
  // the number of bits in PagedRow::tail.
  static constexpr int64_t kMaxRows = 64;

  PagedRows(int64_t heads, int64_t kv_heads) : times_(heads / kv_heads) {}

  // Adds `count` rows that continue a sequence of `length` cached tokens. `blocks` are the addresses of the sequence's
  // blocks, with room for the new rows. `allowed` is bool [count, before + count]: whether a row sees each of the last
  // `before` cached tokens and of the new rows. If `allowed` is empty, a row sees everything up to itself. Throws
  // Error(kInternal) if before + count exceeds kMaxRows, there are too few blocks, `allowed` has another size, or a row
  // sees a later row.
  void add(std::span<void* const> blocks, int64_t length, int64_t count, std::span<const bool> allowed = {});
  // Adds rows and tiles (groups of rows) that compute nothing until there are `rows` rows and `tiles` tiles. After
  // that, no row can be added.
  void pad(int64_t rows, int64_t tiles);
  void clear();

  const std::vector<PagedRow>& rows() const { return rows_; }
  const std::vector<PagedTile>& tiles() const { return tiles_; }
  const std::vector<uint64_t>& blocks() const { return blocks_; }
  int32_t num_splits() const { return num_splits_; }  // largest number of splits of a tile
  int32_t num_parts() const { return num_parts_; }    // sum of the tiles' numbers of splits

 private:
  int64_t times_;
  std::vector<PagedRow> rows_;
  std::vector<PagedTile> tiles_;
  std::vector<uint64_t> blocks_;
  int32_t num_splits_ = 0, num_parts_ = 0;
};

// Attention divides the keys of a row into at most this many splits, which run in parallel.
inline constexpr int64_t kPagedSplits = 32;
// Returns how many keys one block of threads reads for a row that sees `visible` slots. The result depends on nothing
// else, so a row's sums are split in the same way in every pass. A row has at most 32 splits.
int32_t paged_split(int64_t visible);

}  // namespace specdec::kernels
