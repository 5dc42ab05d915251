// Describes a pass over cached sequences for the CUDA kernel paged_attention() (cuda.h): where each row's key is
// written, which keys it sees, and which rows read keys together.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/kernels/cuda.h"

namespace specdec::kernels {

class PagedRows {
 public:
  // The most rows that a sequence may have in a pass, with the cached tokens that a mask names: a row's tail must name
  // all of these that it sees.
  static constexpr int64_t kMaxRows = 64;

  PagedRows(int64_t heads, int64_t kv_heads) : times_(heads / kv_heads) {}

  // Adds `count` rows that continue a sequence of `length` cached tokens. `blocks` are the addresses of its blocks,
  // with room for the new rows. `allowed` is bool [count, before + count], whether a row sees each of the last `before`
  // cached tokens and of the new rows, or empty: then it sees all up to itself. Throws Error(kInternal) for more of
  // these than kMaxRows, too few blocks, a mask of another size, or a row that sees later ones.
  void add(std::span<void* const> blocks, int64_t length, int64_t count, std::span<const bool> allowed = {});
  // Adds absent rows (PagedRow) and empty tiles, up to these numbers of both. Nothing can be added after that.
  void pad(int64_t rows, int64_t tiles);
  void clear();

  const std::vector<PagedRow>& rows() const { return rows_; }
  const std::vector<PagedTile>& tiles() const { return tiles_; }
  const std::vector<uint64_t>& blocks() const { return blocks_; }
  int32_t num_splits() const { return num_splits_; }  // of the tile that has most
  int32_t num_parts() const { return num_parts_; }    // the splits of all tiles

 private:
  int64_t times_;
  std::vector<PagedRow> rows_;
  std::vector<PagedTile> tiles_;
  std::vector<uint64_t> blocks_;
  int32_t num_splits_ = 0, num_parts_ = 0;
};

// The most splits of a row.
inline constexpr int64_t kPagedSplits = 32;
// Returns how many keys one block of threads reads for a row that sees `visible` slots. It depends on nothing else, so
// that a row's sums are divided in the same way in every pass; a row has at most 32 splits.
int32_t paged_split(int64_t visible);

}  // namespace specdec::kernels
