// Messages about GPUs that this process cannot use. Device numbers are CUDA's: they count only the devices (whole GPUs
// or MIG instances) that CUDA_VISIBLE_DEVICES makes visible to the process.
#pragma once

#include <string>

namespace specdec::kernels {

// Returns "CUDA_VISIBLE_DEVICES=1,2" with the variable's value, or "CUDA_VISIBLE_DEVICES is not set".
std::string visible_devices_text();

// Returns a one-line message that device `index` does not exist among `count` devices.
std::string no_such_device(int index, int count);

}  // namespace specdec::kernels
