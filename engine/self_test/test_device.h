// Describes the device on which kernels are tested, and manages arrays in its memory.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "engine/kernels/cuda.h"
#include "engine/self_test/numbers.h"

namespace specdec::self_test {

// Memory of a device. Its functions throw the errors that engine/forward/device_errors.h describes.
class TestMemory {
 public:
  virtual ~TestMemory() = default;
  // Returns memory aligned to at least 16 bytes, which lives until clear().
  virtual void* allocate(size_t bytes) = 0;
  virtual void upload(void* to, const void* from, size_t bytes) = 0;
  virtual void download(void* to, const void* from, size_t bytes) = 0;
  virtual void copy(void* to, const void* from, size_t bytes) = 0;  // within the device; may be asynchronous
  virtual void clear() = 0;
};

struct TestDevice {
  const kernels::CudaLibrary& library;
  int32_t index;
  TestMemory& memory;
};

// Waits for a kernel whose launch returned `code`. If the launch or the kernel failed, throws as throw_cuda_error()
// does.
void finish(const TestDevice& device, int32_t code);

// An array in device memory between two guard areas. The array and the guard areas are first filled with bytes that are
// NaN in every type, so results are NaN if a kernel reads outside the array or reads elements that were never written.
class DeviceBytes {
 public:
  DeviceBytes(const TestDevice& device, size_t bytes);
  void* data() const { return start_ + kBorder; }
  size_t size() const { return size_; }
  void write(const void* from);
  // Copies the array to the host. Throws Error(kDevice) if a kernel wrote into a guard area.
  std::vector<uint8_t> read() const;

 private:
  static constexpr size_t kBorder = 1024;
  TestMemory& memory_;
  size_t size_;
  uint8_t* start_;
};

// An array of plain C++ structs or numbers in device memory.
template <class T>
class DeviceArray {
 public:
  DeviceArray(const TestDevice& device, size_t count) : bytes_(device, count * sizeof(T)) {}
  DeviceArray(const TestDevice& device, const std::vector<T>& values) : DeviceArray(device, values.size()) {
    bytes_.write(values.data());
  }
  T* data() const { return static_cast<T*>(bytes_.data()); }
  std::vector<T> read() const {
    const std::vector<uint8_t> bytes = bytes_.read();
    std::vector<T> out(bytes.size() / sizeof(T));
    if (!out.empty()) std::memcpy(static_cast<void*>(out.data()), bytes.data(), bytes.size());
    return out;
  }

 private:
  DeviceBytes bytes_;
};

// An array of numbers of a CudaDtype in device memory.
class DeviceValues {
 public:
  DeviceValues(const TestDevice& device, CudaDtype dtype, size_t count)
      : dtype_(dtype), bytes_(device, count * bytes_of(dtype)) {}
  DeviceValues(const TestDevice& device, CudaDtype dtype, const Values& values)
      : DeviceValues(device, dtype, values.size()) {
    bytes_.write(memory_of(dtype, values).data());
  }
  void* data() const { return bytes_.data(); }
  const float* floats() const { return static_cast<const float*>(bytes_.data()); }
  Values read() const { return values_in(dtype_, bytes_.read()); }

 private:
  CudaDtype dtype_;
  DeviceBytes bytes_;
};

}  // namespace specdec::self_test
