// Creates single tensors and describes them for writing; tensor_reader.h reads them.
#pragma once

#include <ATen/ATen.h>

#include <string>

#include "base/safetensors.h"

namespace specdec::model {

// Describes a contiguous tensor on the CPU (fp32, bf16, fp16, int64 or bool) for write_safetensors(). The tensor must
// outlive the result.
TensorToWrite to_write(const std::string& name, const at::Tensor& tensor);

// Returns an fp32 tensor [...] drawn from Normal(0, deviation) on the CPU. A seed and a stream give the same values on
// every machine (Philox).
at::Tensor normal_tensor(at::IntArrayRef shape, double deviation, uint64_t seed, uint32_t stream);

}  // namespace specdec::model
