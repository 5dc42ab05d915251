#include <ATen/ATen.h>

#include <vector>

#include "engine/forward/device_errors.h"
#include "engine/self_test/gpu_check.h"

namespace specdec::self_test {

namespace {

class TorchMemory final : public TestMemory {
 public:
  explicit TorchMemory(at::Device device) : device_(device) {}

  void* allocate(size_t bytes) override {
    return model::with_device_errors([&] {
      arrays_.push_back(at::empty({static_cast<int64_t>(bytes)}, on(device_)));
      return arrays_.back().mutable_data_ptr();
    });
  }
  void upload(void* to, const void* from, size_t bytes) override { copy_bytes(to, device_, from, at::kCPU, bytes); }
  void download(void* to, const void* from, size_t bytes) override { copy_bytes(to, at::kCPU, from, device_, bytes); }
  void copy(void* to, const void* from, size_t bytes) override { copy_bytes(to, device_, from, device_, bytes); }
  void clear() override { arrays_.clear(); }

 private:
  static at::TensorOptions on(at::Device device) { return at::TensorOptions().dtype(at::kByte).device(device); }
  static void copy_bytes(void* to, at::Device to_device, const void* from, at::Device from_device, size_t bytes) {
    const auto view = [&](void* data, at::Device device) {
      return at::from_blob(data, {static_cast<int64_t>(bytes)}, on(device));
    };
    model::with_device_errors([&] { view(to, to_device).copy_(view(const_cast<void*>(from), from_device)); });
  }

  at::Device device_;
  std::vector<at::Tensor> arrays_;
};

}  // namespace

std::unique_ptr<TestMemory> make_test_memory(int32_t device) {
  return std::make_unique<TorchMemory>(device < 0 ? at::Device(at::kCPU)
                                                  : at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(device)));
}

}  // namespace specdec::self_test
