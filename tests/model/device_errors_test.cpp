#include "engine/forward/device_errors.h"

#include <gtest/gtest.h>

#include <functional>
#include <stdexcept>

#include "base/device_lost.h"
#include "base/error.h"

namespace specdec::model {
namespace {

// Runs f() as code on a device. Returns the kind of the error that it throws, and its message.
std::string failure_of(const std::function<void()>& f) {
  try {
    with_device_errors(f);
  } catch (const DeviceLost& e) {
    return "lost: " + e.what();
  } catch (const Error& e) {
    return (e.kind() == ErrorKind::kDevice ? "device: " : "other: ") + std::string(e.what());
  } catch (const std::exception& e) {
    return std::string("foreign: ") + e.what();
  }
  return "none";
}

std::string cuda_failure(int32_t code, const std::string& text) {
  return failure_of([&] { throw c10::AcceleratorError({"f", "file.cpp", 1}, code, text); });
}

TEST(DeviceErrors, AnErrorThatLastsIsALostDevice) {
  EXPECT_EQ(cuda_failure(700, "CUDA error: an illegal memory access was encountered\nFor debugging consider …"),
            "lost: the GPU failed: CUDA error: an illegal memory access was encountered (CUDA error 700)");
  for (const int32_t code : {214, 220, 702, 710, 714, 715, 716, 717, 718, 719, 721, 999})
    EXPECT_TRUE(cuda_failure(code, "CUDA error").starts_with("lost: ")) << code;
  for (const int32_t code : {1, 2, 9, 98, 101, 701, -1})
    EXPECT_TRUE(cuda_failure(code, "CUDA error").starts_with("device: ")) << code;
}

TEST(DeviceErrors, MemoryThatIsUsedUpIsSaidInOneLine) {
  EXPECT_EQ(cuda_failure(2, "CUDA error: out of memory"), "device: the GPU failed: the GPU's memory is used up");
  EXPECT_EQ(failure_of([] {
              throw c10::OutOfMemoryError({"f", "file.cpp", 1},
                                          "CUDA out of memory. Tried to allocate 2.00 GiB.\nGPU 0");
            }),
            "device: the GPU's memory is used up: CUDA out of memory. Tried to allocate 2.00 GiB.");
  EXPECT_EQ(failure_of([] { TORCH_CHECK(false, "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate"); }),
            "device: out of memory: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate");
  EXPECT_TRUE(failure_of([] {
                TORCH_CHECK(false, "DefaultCPUAllocator: can't allocate memory");
              }).starts_with("device: out of memory: "));
}

TEST(DeviceErrors, WhatIsNoFailureOfADeviceStaysAsItIs) {
  EXPECT_EQ(failure_of([] { TORCH_CHECK(false, "cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"); }),
            "device: the GPU failed: cuDNN error: CUDNN_STATUS_EXECUTION_FAILED");
  EXPECT_TRUE(
      failure_of([] { TORCH_CHECK(false, "shapes do not match"); }).starts_with("foreign: shapes do not match"));
  EXPECT_EQ(failure_of([] { throw Error(ErrorKind::kModel, "no such file"); }), "other: no such file");
  EXPECT_EQ(failure_of([] { throw std::runtime_error("else"); }), "foreign: else");
  EXPECT_EQ(failure_of([] {}), "none");
  EXPECT_EQ(with_device_errors([] { return 7; }), 7);
  wait_for_device(c10::kCPU);
}

}  // namespace
}  // namespace specdec::model
