// Converts between fp32 and the blocks in which GGUF files store weights. Source of the layouts: ggml's ggml-common.h;
// of the arithmetic: the functions dequantize_row_* and quantize_row_*_ref of ggml-quants.c. Torch-free.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "base/gguf/gguf_file.h"

namespace specdec::gguf {

// Converts whole blocks to fp32. `bytes` holds out.size() / type.block_values blocks. Every element equals that of
// gguf-py's dequantize(), bit for bit.
void dequantise(const TensorType& type, std::span<const std::byte> bytes, std::span<float> out);

// Converts fp32 to blocks: F32, F16, BF16, Q8_0 or Q4_0, with the bytes of gguf-py's quantize(). Throws
// Error(kInternal) for another type, Error(kModel) if a value is not finite or does not fit the type.
void quantise(const TensorType& type, std::span<const float> values, std::span<std::byte> out);

}  // namespace specdec::gguf
