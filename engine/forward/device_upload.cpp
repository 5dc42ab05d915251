#include "engine/forward/device_upload.h"

#include <algorithm>

namespace specdec::model {

namespace {
constexpr size_t kAlignment = 16, kLeast = 1 << 16;
}

size_t DeviceUpload::room(size_t bytes) {
  const size_t place = used_, end = used_ + (bytes + kAlignment - 1) / kAlignment * kAlignment;
  if (!staged_.defined() || static_cast<size_t>(staged_.numel()) < end) {
    const auto size = static_cast<int64_t>(std::max(kLeast, 2 * end));
    const at::Tensor larger = at::empty({size}, at::TensorOptions(at::kByte).pinned_memory(device_.is_cuda()));
    if (used_ > 0) std::memcpy(larger.mutable_data_ptr(), host(), used_);
    staged_ = larger;
  }
  std::memset(host() + place, 0, end - place);
  used_ = end;
  return place;
}

void DeviceUpload::send() {
  if (used_ == 0) return;
  if (!sent_.defined() || sent_.numel() < staged_.numel())
    sent_ = at::empty({staged_.numel()}, at::TensorOptions(device_).dtype(at::kByte));
  for (const auto& [pointer, target] : links_) {
    char* const address = at<char>(target);
    std::memcpy(host() + pointer, &address, sizeof address);
  }
  const auto bytes = static_cast<int64_t>(used_);
  sent_.narrow(0, 0, bytes).copy_(staged_.narrow(0, 0, bytes), /*non_blocking=*/true);
}

at::Tensor DeviceUpload::tensor(size_t place, int64_t count, at::ScalarType dtype) const {
  const auto bytes = count * static_cast<int64_t>(c10::elementSize(dtype));
  return sent_.narrow(0, static_cast<int64_t>(place), bytes).view(dtype);
}

}  // namespace specdec::model
