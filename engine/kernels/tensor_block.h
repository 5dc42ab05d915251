// One block of host memory that several tensors share, on huge pages if the system offers them. A decode pass reads
// every weight once. With 4 KiB pages, address translation would take as long as reading the data.
#pragma once

#include <ATen/ATen.h>

#include <cstddef>
#include <memory>

namespace specdec::model {

class TensorBlock {
 public:
  explicit TensorBlock(size_t bytes);  // bytes: Σ padded(bytes of each tensor)

  static size_t padded(size_t bytes) { return (bytes + 63) / 64 * 64; }
  // Returns the next tensor of the block: uninitialised, contiguous and aligned to a cache line. The tensor keeps the
  // block alive, but has its own storage and version counter. Throws Error(kInternal) if the block is full.
  at::Tensor take(at::IntArrayRef shape, at::ScalarType dtype);

 private:
  std::shared_ptr<std::byte> memory_;
  size_t bytes_, used_ = 0;
};

}  // namespace specdec::model
