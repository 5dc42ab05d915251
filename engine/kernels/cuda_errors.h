// Turns CUDA's error codes into specdec's errors. Codes are cudaError_t; negative ones are those of CudaLibrary
// (cuda.h).
#pragma once

#include <cstdint>
#include <string>

namespace specdec::kernels {

// Returns whether no call to CUDA can succeed in this process after this error (CUDA's documentation of cudaError_t:
// "the process must be terminated and relaunched").
bool is_lasting(int32_t code);

// Throws DeviceLost if the error is lasting, else Error(kDevice), with "what: text".
[[noreturn]] void throw_cuda_error(int32_t code, const std::string& what, const std::string& text);

}  // namespace specdec::kernels
