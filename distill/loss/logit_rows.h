// Reads and writes logits [T, V] of any float dtype in host memory, one row at a time as fp32. With a large vocabulary,
// making an fp32 copy of all rows would take longer than the loss itself.
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
  // Returns row `index`, [V]: a pointer into the logits if they are fp32, else `room`, filled with an fp32 copy.
  const float* row(int64_t index, float* room) const;

 private:
  at::Tensor logits_;
};

// Writes logits [T, V] of any float dtype row by row: compute a row in the buffer that begin() returns, then call
// put().
class RowWriter {
 public:
  explicit RowWriter(const at::Tensor& out) : out_(out) {}  // contiguous, on the CPU
  // Returns the buffer for an fp32 row: the output's own row if the output is fp32, else `room`, which put() converts.
  float* begin(int64_t index, float* room) const;
  void put(int64_t index, const float* row) const;
  void zero(int64_t index) const;

 private:
  at::Tensor out_;
};

}  // namespace specdec::distill
