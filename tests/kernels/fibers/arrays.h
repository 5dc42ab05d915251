// Arrays of numbers for kernels that run on fibers.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "engine/self_test/numbers.h"
#include "tests/kernels/fibers/device_memory.h"

namespace specdec::fibers {

using kernels::CudaDtype;
using kernels::twins::Values;
using self_test::bits_of;
using self_test::difference;
using self_test::kDtypes;
using self_test::kHalves;
using self_test::name_of;
using self_test::random_values;

// An array of a 16-bit or 32-bit type in memory that kernels on fibers may use.
class Array {
 public:
  Array(CudaDtype dtype, size_t n) : dtype_(dtype), memory_(n * self_test::bytes_of(dtype)) {}
  Array(CudaDtype dtype, const Values& values) : Array(dtype, values.size()) {
    const std::vector<uint8_t> bytes = self_test::memory_of(dtype, values);
    if (!bytes.empty()) std::memcpy(memory_.data(), bytes.data(), bytes.size());
  }
  void* data() { return memory_.data(); }
  template <class T>
  T* as() {
    return reinterpret_cast<T*>(memory_.data());
  }
  std::vector<uint8_t> bytes() { return memory_.read(); }
  Values values() { return self_test::values_in(dtype_, bytes()); }

 private:
  CudaDtype dtype_;
  DeviceMemory<uint8_t> memory_;
};

}  // namespace specdec::fibers
