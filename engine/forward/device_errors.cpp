#include "engine/forward/device_errors.h"

#include <string>
#include <string_view>

#include "base/error.h"
#include "engine/kernels/cuda.h"
#include "engine/kernels/cuda_errors.h"

namespace specdec::model {

namespace {

// Returns the first line of a LibTorch message; the other lines contain advice and a stack trace.
std::string first_line(std::string_view text) { return std::string(text.substr(0, text.find('\n'))); }

bool mentions(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

}  // namespace

void rethrow_device_error() {
  try {
    throw;
  } catch (const c10::OutOfMemoryError& e) {
    throw Error(ErrorKind::kDevice, "the GPU's memory is used up: " + first_line(e.what_without_backtrace()));
  } catch (const c10::AcceleratorError& e) {
    kernels::throw_cuda_error(e.get_error_code(), "the GPU failed", first_line(e.what_without_backtrace()));
  } catch (const c10::Error& e) {
    const std::string text = first_line(e.what_without_backtrace());
    if (mentions(text, "CUBLAS_STATUS_ALLOC_FAILED") || mentions(text, "DefaultCPUAllocator: "))
      throw Error(ErrorKind::kDevice, "out of memory: " + text);
    for (const char* library : {"CUDA error", "cuDNN error", "NCCL error", "CUDA driver error"})
      if (mentions(text, library)) throw Error(ErrorKind::kDevice, "the GPU failed: " + text);
    throw;
  }
}

void wait_for_device(c10::Device device) {
  if (!device.is_cuda()) return;
  const kernels::CudaLibrary& cuda = kernels::cuda_library();
  const int32_t code = cuda.synchronize(device.index());
  if (code != 0) kernels::throw_cuda_error(code, "the GPU failed", cuda.error_text(code));
}

}  // namespace specdec::model
