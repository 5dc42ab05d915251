// Reads and writes single tensors of checkpoints.
#pragma once

#include <ATen/ATen.h>

#include <string>

#include "base/safetensors.h"

namespace specdec::model {

// Converts a tensor to `dtype`. `what` names the tensor in messages. Throws Error(kModel) if a value is not finite or
// does not fit.
at::Tensor converted(const at::Tensor& tensor, at::ScalarType dtype, const std::string& what);

// Reads a tensor of F32, BF16 or F16 and converts it to `dtype`, on the CPU. Throws Error(kModel) if it is missing, has
// another shape or dtype, or holds values that are not finite.
at::Tensor read_tensor(const SafetensorsDirectory& files, const std::string& name, at::IntArrayRef shape,
                       at::ScalarType dtype);

// Describes a contiguous tensor on the CPU (fp32, bf16, fp16, int64 or bool) for write_safetensors(). The tensor must
// outlive the result.
TensorToWrite to_write(const std::string& name, const at::Tensor& tensor);

// Returns an fp32 tensor [...] drawn from Normal(0, deviation) on the CPU. A seed and a stream give the same values on
// every machine (Philox).
at::Tensor normal_tensor(at::IntArrayRef shape, double deviation, uint64_t seed, uint32_t stream);

}  // namespace specdec::model
