// Gives access to the rows of logits [T, V] in host memory, in any float dtype, as fp32 one at a time. With a large
// vocabulary an fp32 copy of all rows would cost more than the computation on them.
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
  // Returns row `index`, [V]. It is written to `room` unless the logits are fp32 already.
  const float* row(int64_t index, float* room) const;

 private:
  at::Tensor logits_;
};

// Fills logits [T, V] of any float dtype row by row.
class RowWriter {
 public:
  explicit RowWriter(const at::Tensor& out) : out_(out) {}  // contiguous, on the CPU
  // Returns where to compute a row in fp32: in place, or in `room`, from which put() narrows it.
  float* begin(int64_t index, float* room) const;
  void put(int64_t index, const float* row) const;
  void zero(int64_t index) const;

 private:
  at::Tensor out_;
};

}  // namespace specdec::distill
