#include "base/gguf/blocks.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <string>

#include "base/cpu_clones.h"
#include "base/error.h"
#include "base/small_float.h"

namespace specdec::gguf {

namespace {

using Byte = unsigned char;

// The float arithmetic below has the order of gguf-py's quants.py. Its products are exact, because a scale has 11 bits
// and its factors have at most 13 bits together, so only the sum or difference at the end is rounded.

inline float fp16_at(const Byte* bytes) { return fp16_to_float(static_cast<uint16_t>(bytes[0] | bytes[1] << 8)); }

SPECDEC_CLONES("avx2", "default")
void from_f16(const Byte* bytes, size_t count, float* out) {
  for (size_t i = 0; i < count; ++i) out[i] = fp16_at(bytes + 2 * i);
}

SPECDEC_CLONES("avx2", "default")
void from_bf16(const Byte* bytes, size_t count, float* out) {
  for (size_t i = 0; i < count; ++i)
    out[i] = bf16_to_float(static_cast<uint16_t>(bytes[2 * i] | bytes[2 * i + 1] << 8));
}

// fp16 d, 32 × int8 q: d·q.
SPECDEC_CLONES("avx2", "default")
void from_q8_0(const Byte* bytes, size_t blocks, float* out) {
  for (size_t b = 0; b < blocks; ++b, bytes += 34, out += 32) {
    const float d = fp16_at(bytes);
    for (size_t i = 0; i < 32; ++i) out[i] = static_cast<float>(static_cast<int8_t>(bytes[2 + i])) * d;
  }
}

// fp16 d, 16 bytes of two q each (values i and i + 16): d·(q − 8).
SPECDEC_CLONES("avx2", "default")
void from_q4_0(const Byte* bytes, size_t blocks, float* out) {
  for (size_t b = 0; b < blocks; ++b, bytes += 18, out += 32) {
    const float d = fp16_at(bytes);
    for (size_t i = 0; i < 16; ++i) {
      out[i] = d * static_cast<float>((bytes[2 + i] & 15) - 8);
      out[i + 16] = d * static_cast<float>((bytes[2 + i] >> 4) - 8);
    }
  }
}

// fp16 d, fp16 m, 16 bytes as in Q4_0: d·q + m.
SPECDEC_CLONES("avx2", "default")
void from_q4_1(const Byte* bytes, size_t blocks, float* out) {
  for (size_t b = 0; b < blocks; ++b, bytes += 20, out += 32) {
    const float d = fp16_at(bytes), m = fp16_at(bytes + 2);
    for (size_t i = 0; i < 16; ++i) {
      out[i] = d * static_cast<float>(bytes[4 + i] & 15) + m;
      out[i + 16] = d * static_cast<float>(bytes[4 + i] >> 4) + m;
    }
  }
}

inline uint32_t word_at(const Byte* bytes) {
  uint32_t word;
  std::memcpy(&word, bytes, 4);
  return word;
}

// fp16 d, 32 bits (bit i is the fifth bit of q_i), 16 bytes as in Q4_0: d·(q − 16).
SPECDEC_CLONES("avx2", "default")
void from_q5_0(const Byte* bytes, size_t blocks, float* out) {
  for (size_t b = 0; b < blocks; ++b, bytes += 22, out += 32) {
    const float d = fp16_at(bytes);
    const uint32_t high = word_at(bytes + 2);
    for (uint32_t i = 0; i < 16; ++i) {
      const uint32_t low = bytes[6 + i];
      out[i] = d * static_cast<float>(static_cast<int>((low & 15) | (high >> i & 1) << 4) - 16);
      out[i + 16] = d * static_cast<float>(static_cast<int>(low >> 4 | (high >> (i + 16) & 1) << 4) - 16);
    }
  }
}

// fp16 d, fp16 m, and the rest as in Q5_0: d·q + m.
SPECDEC_CLONES("avx2", "default")
void from_q5_1(const Byte* bytes, size_t blocks, float* out) {
  for (size_t b = 0; b < blocks; ++b, bytes += 24, out += 32) {
    const float d = fp16_at(bytes), m = fp16_at(bytes + 2);
    const uint32_t high = word_at(bytes + 4);
    for (uint32_t i = 0; i < 16; ++i) {
      const uint32_t low = bytes[8 + i];
      out[i] = d * static_cast<float>(static_cast<int>((low & 15) | (high >> i & 1) << 4)) + m;
      out[i + 16] = d * static_cast<float>(static_cast<int>(low >> 4 | (high >> (i + 16) & 1) << 4)) + m;
    }
  }
}

// Unpacks the 6-bit scale and minimum of part `i` (0 to 7) of a block of Q4_K or Q5_K from 12 bytes: parts 0 to 3 lie
// in the low 6 bits of bytes i and i + 4; the others have their low 4 bits in byte i + 4 and their high 2 bits in the
// high bits of bytes i − 4 and i.
inline void unpack_scale(const Byte* packed, size_t i, int& scale, int& minimum) {
  if (i < 4) {
    scale = packed[i] & 63;
    minimum = packed[i + 4] & 63;
  } else {
    scale = (packed[i + 4] & 15) | (packed[i - 4] >> 2 & 48);
    minimum = packed[i + 4] >> 4 | (packed[i] >> 2 & 48);
  }
}

// fp16 d, fp16 dmin, 12 bytes of scales, 128 bytes of two q each. Part i has 32 values, (d·scale_i)·q − dmin·minimum_i;
// parts 2·j and 2·j + 1 share 32 bytes.
SPECDEC_CLONES("avx2", "default")
void from_q4_k(const Byte* bytes, size_t blocks, float* out) {
  for (size_t b = 0; b < blocks; ++b, bytes += 144, out += 256) {
    const float d = fp16_at(bytes), dmin = fp16_at(bytes + 2);
    for (size_t part = 0; part < 8; ++part) {
      int scale, minimum;
      unpack_scale(bytes + 4, part, scale, minimum);
      const float factor = d * static_cast<float>(scale), less = dmin * static_cast<float>(minimum);
      const Byte* low = bytes + 16 + part / 2 * 32;
      const int shift = part % 2 == 0 ? 0 : 4;
      for (size_t i = 0; i < 32; ++i) out[part * 32 + i] = factor * static_cast<float>(low[i] >> shift & 15) - less;
    }
  }
}

// As Q4_K, with 32 bytes before the 128, whose bit `part` of byte i is the fifth bit of value i of the part.
SPECDEC_CLONES("avx2", "default")
void from_q5_k(const Byte* bytes, size_t blocks, float* out) {
  for (size_t b = 0; b < blocks; ++b, bytes += 176, out += 256) {
    const float d = fp16_at(bytes), dmin = fp16_at(bytes + 2);
    const Byte* high = bytes + 16;
    for (size_t part = 0; part < 8; ++part) {
      int scale, minimum;
      unpack_scale(bytes + 4, part, scale, minimum);
      const float factor = d * static_cast<float>(scale), less = dmin * static_cast<float>(minimum);
      const Byte* low = bytes + 48 + part / 2 * 32;
      const int shift = part % 2 == 0 ? 0 : 4;
      for (size_t i = 0; i < 32; ++i)
        out[part * 32 + i] = factor * static_cast<float>((low[i] >> shift & 15) | (high[i] >> part & 1) << 4) - less;
    }
  }
}

// 128 bytes of low halves, 64 bytes of high 2 bits, 16 × int8 scale, fp16 d: (d·scale)·(q − 32). A scale belongs to 16
// values. Each half of the block has 4 parts of 32 values: parts 0 and 1 have their low halves in the low bits of 64
// bytes, parts 2 and 3 in the high bits of the same bytes; the 4 parts share 32 bytes of high bits.
SPECDEC_CLONES("avx2", "default")
void from_q6_k(const Byte* bytes, size_t blocks, float* out) {
  for (size_t b = 0; b < blocks; ++b, bytes += 210, out += 256) {
    const float d = fp16_at(bytes + 208);
    for (size_t part = 0; part < 16; ++part) {  // 16 values with one scale
      const float factor = d * static_cast<float>(static_cast<int8_t>(bytes[192 + part]));
      const size_t half = part / 8, within = part % 8;
      const Byte* low = bytes + half * 64 + within % 4 * 16;
      const Byte* high = bytes + 128 + half * 32 + within % 2 * 16;
      const int low_shift = within / 4 == 0 ? 0 : 4, high_shift = static_cast<int>(within / 2) * 2;
      for (size_t i = 0; i < 16; ++i)
        out[part * 16 + i] =
            factor * static_cast<float>(((low[i] >> low_shift & 15) | (high[i] >> high_shift & 3) << 4) - 32);
    }
  }
}

void put_fp16(float value, Byte* bytes) {
  const uint16_t code = float_to_fp16(value);
  std::memcpy(bytes, &code, 2);
}

// Returns 1/d, or 0 if that is not finite. Then d is so small that it is 0 in fp16, and the block holds zeros whatever
// the values q are. (gguf-py converts infinite numbers to integers, which has no defined result.)
float inverse(float d) {
  const float inverse = 1.0f / d;
  return std::isfinite(inverse) ? inverse : 0.0f;
}

// d = max |x| / 127, q = x / d rounded to the nearest integer, halves away from zero.
void to_q8_0(const float* values, size_t blocks, Byte* out) {
  for (size_t b = 0; b < blocks; ++b, values += 32, out += 34) {
    float most = 0;
    for (size_t i = 0; i < 32; ++i) most = std::max(most, std::fabs(values[i]));
    const float d = most / 127.0f, factor = inverse(d);
    put_fp16(d, out);
    for (size_t i = 0; i < 32; ++i) out[2 + i] = static_cast<Byte>(static_cast<int8_t>(std::round(values[i] * factor)));
  }
}

// d = x / −8 for the first x with the largest |x|, q = x / d + 8.5 rounded down, at most 15.
void to_q4_0(const float* values, size_t blocks, Byte* out) {
  for (size_t b = 0; b < blocks; ++b, values += 32, out += 18) {
    float most = values[0];
    for (size_t i = 1; i < 32; ++i)
      if (std::fabs(values[i]) > std::fabs(most)) most = values[i];
    const float d = most / -8.0f, factor = inverse(d);
    put_fp16(d, out);
    const auto code = [&](float x) {
      const float scaled = x * factor;
      return std::min(static_cast<int>(scaled + 8.5f), 15);
    };
    for (size_t i = 0; i < 16; ++i) out[2 + i] = static_cast<Byte>(code(values[i]) | code(values[i + 16]) << 4);
  }
}

[[noreturn]] void refuse_type(const TensorType& type, const char* action) {
  throw Error(ErrorKind::kInternal, std::string(action) + ": the type " + type.name + " or the sizes of the buffers");
}

// Returns the number of blocks of `values` values in `bytes` bytes.
size_t count_blocks(const TensorType& type, size_t values, size_t bytes, const char* action) {
  const size_t blocks = values / static_cast<size_t>(type.block_values);
  if (values % static_cast<size_t>(type.block_values) != 0 || blocks != bytes / static_cast<size_t>(type.block_bytes) ||
      bytes % static_cast<size_t>(type.block_bytes) != 0)
    refuse_type(type, action);
  return blocks;
}

}  // namespace

void dequantise(const TensorType& type, std::span<const std::byte> bytes, std::span<float> out) {
  const size_t blocks = count_blocks(type, out.size(), bytes.size(), "dequantise");
  if (blocks == 0) return;
  const auto* from = reinterpret_cast<const Byte*>(bytes.data());
  switch (type.id) {
    case 0:
      return void(std::memcpy(out.data(), from, bytes.size()));
    case 1:
      return from_f16(from, blocks, out.data());
    case 2:
      return from_q4_0(from, blocks, out.data());
    case 3:
      return from_q4_1(from, blocks, out.data());
    case 6:
      return from_q5_0(from, blocks, out.data());
    case 7:
      return from_q5_1(from, blocks, out.data());
    case 8:
      return from_q8_0(from, blocks, out.data());
    case 12:
      return from_q4_k(from, blocks, out.data());
    case 13:
      return from_q5_k(from, blocks, out.data());
    case 14:
      return from_q6_k(from, blocks, out.data());
    case 30:
      return from_bf16(from, blocks, out.data());
    default:
      refuse_type(type, "dequantise");
  }
}

void quantise(const TensorType& type, std::span<const float> values, std::span<std::byte> out) {
  const size_t blocks = count_blocks(type, values.size(), out.size(), "quantise");
  if (blocks == 0) return;
  // The largest finite scales: fp16 rounds 65520 to infinity.
  const float fp16_end = 65520.0f;
  const float end = type.id == 1 ? fp16_end : type.id == 2 ? 8 * fp16_end : type.id == 8 ? 127 * fp16_end : HUGE_VALF;
  for (size_t i = 0; i < values.size(); ++i)
    if (!(std::fabs(values[i]) < end) || (type.id == 30 && std::isinf(bf16_to_float(float_to_bf16(values[i])))))
      throw Error(ErrorKind::kModel, "value " + std::to_string(i) + " is " + std::to_string(values[i]) + ", which " +
                                         type.name + " cannot hold");
  auto* to = reinterpret_cast<Byte*>(out.data());
  switch (type.id) {
    case 0:
      return void(std::memcpy(to, values.data(), out.size()));
    case 1:
      for (size_t i = 0; i < blocks; ++i) put_fp16(values[i], to + 2 * i);
      return;
    case 2:
      return to_q4_0(values.data(), blocks, to);
    case 8:
      return to_q8_0(values.data(), blocks, to);
    case 30:
      for (size_t i = 0; i < blocks; ++i) {
        const uint16_t code = float_to_bf16(values[i]);
        std::memcpy(to + 2 * i, &code, 2);
      }
      return;
    default:
      refuse_type(type, "quantise");
  }
}

}  // namespace specdec::gguf
