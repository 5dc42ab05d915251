// Messages about GPUs that this process cannot use. CUDA numbers only the devices that CUDA_VISIBLE_DEVICES lets a
// process see, whole GPUs or MIG instances, and nothing in specdec counts them in another way.
#pragma once

#include <string>

namespace specdec::kernels {

// Returns "CUDA_VISIBLE_DEVICES=1,2" with the variable's value, or "CUDA_VISIBLE_DEVICES is not set".
std::string visible_devices_text();

// Returns the message for a device with a number that does not exist, in one line.
std::string no_such_device(int index, int count);

}  // namespace specdec::kernels
