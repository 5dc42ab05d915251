// Rows of logits [T, V] in host memory, in any float dtype, as fp32 one at a time: an fp32 copy of all of them would
// cost more than what is computed from it where the vocabulary is large.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace specdec::distill {

class LogitRows {
 public:
  LogitRows() = default;
  explicit LogitRows(const at::Tensor& logits);  // [T, V] on the CPU

  int64_t count() const { return logits_.size(0); }
  int64_t width() const { return logits_.size(1); }
  // [V]; written to `room` unless the row is fp32 already.
  const float* row(int64_t index, float* room) const;

 private:
  at::Tensor logits_;
};

// The other way round: [T, V] of a dtype, filled row by row.
class RowWriter {
 public:
  explicit RowWriter(const at::Tensor& out) : out_(out) {}  // contiguous, on the CPU
  // Where to compute a row in fp32: in place, or in `room`; put() then narrows it.
  float* begin(int64_t index, float* room) const;
  void put(int64_t index, const float* row) const;
  void zero(int64_t index) const;

 private:
  at::Tensor out_;
};

}  // namespace specdec::distill
