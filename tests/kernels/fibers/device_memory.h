// Memory that stands in for a GPU's, with a border on both sides that kernels must not touch. With the address
// sanitizer the borders are poisoned, so the first access to them ends the test with a report. In every build they hold
// bytes that are NaN in every type, so that reading them spoils the result, and check_borders() notices writes. The
// elements start with the same bytes, so that memory which a kernel reads before anyone wrote it is NaN, too.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/kernels/fibers/fibers.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

namespace specdec::fibers {

template <class T>
class DeviceMemory {
 public:
  explicit DeviceMemory(size_t count) : count_(count), bytes_(new (kAlignment) std::byte[count * sizeof(T) + kBoth]) {
    std::memset(bytes_, kFill, count * sizeof(T) + kBoth);
    poison(true);
  }
  explicit DeviceMemory(const std::vector<T>& values) : DeviceMemory(values.size()) {
    if (!values.empty()) std::memcpy(data(), values.data(), values.size() * sizeof(T));
  }
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;
  ~DeviceMemory() {
    poison(false);
    ::operator delete[](bytes_, kAlignment);
  }

  T* data() { return reinterpret_cast<T*>(bytes_ + kBorder); }
  size_t size() const { return count_; }
  T& operator[](size_t i) { return data()[i]; }

  // Copies the elements to the host. Throws if a kernel wrote into a border.
  std::vector<T> read() {
    check_borders();
    return {data(), data() + count_};
  }

  void check_borders() {
    poison(false);
    const auto written = [](std::byte b) { return b != std::byte{kFill}; };
    const std::byte* const end = bytes_ + kBorder + count_ * sizeof(T);
    const bool spoiled =
        std::any_of(bytes_, bytes_ + kBorder, written) || std::any_of(end, end + kBoth - kBorder, written);
    poison(true);
    if (spoiled) throw std::runtime_error("a kernel wrote outside of a buffer of " + std::to_string(count_));
  }

 private:
  static constexpr size_t kBorder = 4096, kBoth = 2 * kBorder;
  static constexpr int kFill = 0xFF;                  // a NaN as fp32, bf16 and fp16
  static constexpr std::align_val_t kAlignment{256};  // the alignment of cudaMalloc

  // Poisons the borders, or ends that if `on` is false. Never poisons them while a barrier is left out: the kernel may
  // then use unwritten indices, and its test must survive to compare the results.
  void poison([[maybe_unused]] bool on) {
    on &= settings().without.line == 0;
#if defined(__SANITIZE_ADDRESS__)
    const auto set = [on](const std::byte* at, size_t bytes) {
      on ? __asan_poison_memory_region(at, bytes) : __asan_unpoison_memory_region(at, bytes);
    };
    set(bytes_, kBorder);
    set(bytes_ + kBorder + count_ * sizeof(T), kBorder);
#endif
  }

  size_t count_;
  std::byte* bytes_;
};

}  // namespace specdec::fibers
