#include "engine/kernels/cuda_errors.h"

#include <algorithm>
#include <array>

#include "base/device_lost.h"
#include "base/error.h"

namespace specdec::kernels {

namespace {
constexpr int32_t kMemoryAllocation = 2;  // cudaErrorMemoryAllocation
}

bool is_lasting(int32_t code) {
  // In this order: cudaErrorECCUncorrectable, NvlinkUncorrectable, IllegalAddress, LaunchTimeout, Assert,
  // HardwareStackError, IllegalInstruction, MisalignedAddress, InvalidAddressSpace, InvalidPc, LaunchFailure,
  // TensorMemoryLeak, Unknown.
  constexpr std::array<int32_t, 13> kLasting = {214, 220, 700, 702, 710, 714, 715, 716, 717, 718, 719, 721, 999};
  return std::find(kLasting.begin(), kLasting.end(), code) != kLasting.end();
}

void throw_cuda_error(int32_t code, const std::string& what, const std::string& text) {
  const std::string message = what + ": " + text;
  if (is_lasting(code)) throw DeviceLost(message + " (CUDA error " + std::to_string(code) + ")");
  if (code == kMemoryAllocation) throw Error(ErrorKind::kDevice, what + ": the GPU's memory is used up");
  throw Error(ErrorKind::kDevice, message);
}

}  // namespace specdec::kernels
