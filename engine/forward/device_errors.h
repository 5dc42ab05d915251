// Translates LibTorch's errors about devices to specdec's errors. All code that computes with models (loading,
// decoding, training) runs within with_device_errors().
#pragma once

#include <c10/core/Device.h>
#include <c10/util/Exception.h>

#include <utility>

namespace specdec::model {

// Must be called while a c10::Error is being handled. Throws DeviceLost for a CUDA error after which this process can
// no longer use CUDA. Throws Error(kDevice) for other errors of CUDA and its libraries, and if the memory of a GPU or
// CPU is exhausted. Rethrows any other c10::Error unchanged.
[[noreturn]] void rethrow_device_error();

// Returns f(); translates errors with rethrow_device_error().
template <class F>
decltype(auto) with_device_errors(F&& f) {
  try {
    return std::forward<F>(f)();
  } catch (const c10::Error&) {
    rethrow_device_error();
  }
}

// Waits until a GPU has finished all work in its current stream. Returns at once on a CPU.
void wait_for_device(c10::Device device);

}  // namespace specdec::model
