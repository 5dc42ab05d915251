#include "engine/kernels/tensor_block.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <string>

#include "base/error.h"

namespace specdec::model {

TensorBlock::TensorBlock(size_t bytes) : bytes_(bytes) {
  constexpr size_t kHugePage = size_t{2} << 20;
  const bool large = bytes >= 2 * kHugePage;  // for less, rounding up to huge pages wastes more than it gains
  const size_t alignment = large ? kHugePage : 64,
               size = (std::max<size_t>(bytes, 1) + alignment - 1) / alignment * alignment;
  void* memory = std::aligned_alloc(alignment, size);
  if (!memory) throw Error(ErrorKind::kDevice, "out of memory: " + std::to_string(size) + " bytes asked for");
  if (large) madvise(memory, size, MADV_HUGEPAGE);  // advice to the system; failure is harmless
  memory_ = std::shared_ptr<std::byte>(static_cast<std::byte*>(memory), [](std::byte* p) { std::free(p); });
}

at::Tensor TensorBlock::take(at::IntArrayRef shape, at::ScalarType dtype) {
  size_t bytes = c10::elementSize(dtype);
  for (const int64_t n : shape) bytes *= static_cast<size_t>(n);
  if (padded(bytes) > bytes_ - used_) throw Error(ErrorKind::kInternal, "tensor block: more taken than planned");
  void* at = memory_.get() + used_;
  used_ += padded(bytes);
  return at::from_blob(at, shape, [keep = memory_](void*) {}, at::TensorOptions(dtype));
}

}  // namespace specdec::model
