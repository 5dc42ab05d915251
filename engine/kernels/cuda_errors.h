// Turns CUDA error codes into specdec's errors. A code is a cudaError_t or, if negative, a code of CudaLibrary
// (cuda.h).
#pragma once

#include <cstdint>
#include <string>

namespace specdec::kernels {

// Returns whether, after this error, every later CUDA call of this process fails. The CUDA documentation says for such
// errors: "the process must be terminated and relaunched".
bool is_lasting(int32_t code);

// Throws DeviceLost if the error is lasting, else Error(kDevice). The message is "what: text".
[[noreturn]] void throw_cuda_error(int32_t code, const std::string& what, const std::string& text);

}  // namespace specdec::kernels
