// Inputs of the kernel paged_attention() and its reference results: sequences whose keys and values lie in blocks,
// passes over them, and the expected attention.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/kernels/paged_rows.h"
#include "engine/self_test/numbers.h"

namespace specdec::self_test {

struct PagedShape {
  CudaDtype dtype;
  size_t heads, kv_heads, d;
  double scale = 0.4, soft_cap = 0;  // scale is large, so that a single key changes the result
  int window = 0;
  size_t times() const { return heads / kv_heads; }
};

// There are two layers. The second is tested, so that a kernel that reads the wrong layer is noticed.
inline constexpr size_t kPagedLayers = 2, kPagedLayer = 1;

// Element [i][j] tells whether row i of a part sees row j of the same part.
using Mask = std::vector<std::vector<bool>>;
Mask causal_mask(size_t rows);
// Returns the mask of a tree in which node i follows node parents[i], or the text if parents[i] is negative.
Mask tree_mask(const std::vector<int>& parents);

// A sequence. The constructor generates the keys, values and queries of all its slots; they lie between -1 and 1.
class PagedSequence {
 public:
  PagedSequence(const PagedShape& shape, size_t slots, uint64_t stream);
  size_t slots() const { return slots_; }
  size_t num_blocks() const { return (slots_ + kernels::kPagedSlots - 1) / kernels::kPagedSlots; }
  size_t block_numbers() const { return kPagedLayers * 2 * shape_.kv_heads * shape_.d * kernels::kPagedSlots; }
  // Calls put(block, place, value) for each number of the keys and values in the slots below `length`. `place` is the
  // number's index within the block.
  template <class F>
  void for_each_cached(size_t length, const F& put) const {
    for (size_t slot = 0; slot < length; ++slot)
      for (size_t side = 0; side < 2; ++side)
        for (size_t head = 0; head < shape_.kv_heads; ++head)
          for (size_t i = 0; i < shape_.d; ++i)
            put(slot / kernels::kPagedSlots, place_of(slot, side, head, i), value(side, slot, head, i));
  }
  // Returns the expected contents of the sequence's blocks when only the slots below `length` have been written.
  std::vector<Values> blocks(size_t length) const;
  // Returns the expected attention [heads, d] of the row at `slot`. The row sees the slots below `length` and the slots
  // in `also`.
  Values expected(size_t slot, size_t length, const std::vector<size_t>& also) const;
  // queries() returns [count, heads, d]. side() returns keys (which = 0) or values (which = 1), [count, kv_heads, d].
  // Both begin at `slot`.
  Values queries(size_t slot, size_t count) const { return rows_of(queries_, shape_.heads, slot, count); }
  Values side(size_t which, size_t slot, size_t count) const {
    return rows_of(values_[which], shape_.kv_heads, slot, count);
  }

 private:
  size_t place_of(size_t slot, size_t side, size_t head, size_t i) const {
    return (((kPagedLayer * 2 + side) * shape_.kv_heads + head) * kernels::kPagedSlots + slot % kernels::kPagedSlots) *
               shape_.d +
           i;
  }
  double value(size_t side, size_t slot, size_t head, size_t i) const {
    return values_[side][(slot * shape_.kv_heads + head) * shape_.d + i];
  }
  Values rows_of(const Values& all, size_t heads, size_t slot, size_t count) const;

  PagedShape shape_;
  size_t slots_;
  Values values_[2], queries_;
};

// The rows of a sequence in a pass. They follow the sequence's first `length` slots, which are cached.
struct PagedPart {
  const PagedSequence* sequence;
  std::vector<void*> blocks;  // device addresses of the sequence's blocks
  size_t length;
  Mask mask;
  size_t rows() const { return mask.size(); }
};

// The inputs of a pass for the kernel paged_attention().
struct PagedInputs {
  kernels::PagedRows rows;
  Values q, k, v;
};
PagedInputs paged_inputs(const PagedShape& shape, const std::vector<PagedPart>& parts);
// Returns the expected attention of a pass, [rows of all parts, heads, d].
Values expected_attention(const std::vector<PagedPart>& parts);
// The allowed error of attention: half the spacing of the type at 1. The softmax weights are rounded to the type before
// they multiply values of at most 1, and the result is rounded, too.
inline double attention_error(CudaDtype dtype) { return kernels::twins::spacing(dtype, 1.0) / 2; }

}  // namespace specdec::self_test
