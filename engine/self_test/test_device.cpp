#include "engine/self_test/test_device.h"

#include <algorithm>

#include "base/error.h"
#include "engine/kernels/cuda_errors.h"

namespace specdec::self_test {

namespace {
constexpr uint8_t kFill = 0xFF;  // four such bytes are NaN in fp32, two in bf16 and fp16
}

void finish(const TestDevice& device, int32_t code) {
  if (code != 0) kernels::throw_cuda_error(code, "it could not be launched", device.library.error_text(code));
  const int32_t later = device.library.synchronize(device.index);
  if (later != 0) kernels::throw_cuda_error(later, "it failed", device.library.error_text(later));
}

DeviceBytes::DeviceBytes(const TestDevice& device, size_t bytes)
    : memory_(device.memory), size_(bytes), start_(static_cast<uint8_t*>(device.memory.allocate(bytes + 2 * kBorder))) {
  const std::vector<uint8_t> fill(bytes + 2 * kBorder, kFill);
  memory_.upload(start_, fill.data(), fill.size());
}

void DeviceBytes::write(const void* from) {
  if (size_ > 0) memory_.upload(data(), from, size_);
}

std::vector<uint8_t> DeviceBytes::read() const {
  std::vector<uint8_t> all(size_ + 2 * kBorder);
  memory_.download(all.data(), start_, all.size());
  const auto begin = all.begin() + kBorder, end = begin + static_cast<std::ptrdiff_t>(size_);
  const auto written = [](uint8_t byte) { return byte != kFill; };
  if (std::any_of(all.begin(), begin, written) || std::any_of(end, all.end(), written))
    throw Error(ErrorKind::kDevice, "it wrote outside of an array of " + std::to_string(size_) + " bytes");
  return {begin, end};
}

}  // namespace specdec::self_test
