// Turns what LibTorch reports about a device into specdec's errors. Whatever computes with models does it within
// with_device_errors(): loading, the passes of decoding, training.
#pragma once

#include <c10/core/Device.h>
#include <c10/util/Exception.h>

#include <utility>

namespace specdec::model {

// Throws, in place of the c10::Error that is being handled: DeviceLost for an error of CUDA after which this process
// cannot use CUDA any more, Error(kDevice) for any other error of CUDA and its libraries and for memory that is used
// up, on a GPU or a CPU. Throws any other c10::Error again as it is.
[[noreturn]] void rethrow_device_error();

// Returns f(), with the errors of rethrow_device_error().
template <class F>
decltype(auto) with_device_errors(F&& f) {
  try {
    return std::forward<F>(f)();
  } catch (const c10::Error&) {
    rethrow_device_error();
  }
}

// Waits until a GPU has done all that was queued on its current stream. Returns at once on a CPU, where nothing is
// queued.
void wait_for_device(c10::Device device);

}  // namespace specdec::model
