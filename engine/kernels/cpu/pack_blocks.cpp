// Packs the blocks of GGUF files into the layout of block_matrix.h, and unpacks them. Compiled without special
// instructions. Source of the files' layouts: ggml's ggml-common.h and ggml-quants.c.
#include <cstring>

#include "base/small_float.h"
#include "engine/kernels/cpu/block_matrix.h"

namespace specdec::kernels::cpu {

namespace {

constexpr int64_t kMostInputs = 256;  // of a super

// A super of one row, as the file says it: a code per input, and its scales. The layouts of files and of products are
// both converted from and to this.
struct Super {
  uint8_t codes[kMostInputs];
  uint16_t scale = 0, min = 0;              // fp16
  uint8_t group_scales[16], group_mins[8];  // of kinds with supers of several groups
};

uint16_t read_half(const uint8_t* p) {
  uint16_t half;
  std::memcpy(&half, p, sizeof half);
  return half;
}
bool is_finite(uint16_t half) { return (half & 0x7c00) != 0x7c00; }

// Reads the low and the high halves of 16 bytes as the codes of 32 inputs.
void read_nibbles(const uint8_t* from, uint8_t* codes) {
  for (int i = 0; i < 16; ++i) {
    codes[i] = from[i] & 15;
    codes[16 + i] = from[i] >> 4;
  }
}

// Adds bit i of `bits` to code i as its fifth bit.
void add_fifth_bits(const uint8_t* bits, uint8_t* codes) {
  for (int i = 0; i < 32; ++i) codes[i] = static_cast<uint8_t>(codes[i] | (bits[i / 8] >> i % 8 & 1) << 4);
}

// Reads the eight 6-bit scales and mins of a K super from 12 bytes. The first four of each lie in the lower six bits of
// bytes 0 to 7. Of the others, the lower four bits lie in bytes 8 to 11 (scale low, min high), the upper two in the
// upper bits of bytes 0 to 3 (scales) and 4 to 7 (mins).
void read_k_scales(const uint8_t* from, Super& out) {
  for (int i = 0; i < 4; ++i) {
    out.group_scales[i] = from[i] & 63;
    out.group_mins[i] = from[4 + i] & 63;
    out.group_scales[4 + i] = static_cast<uint8_t>((from[8 + i] & 15) | from[i] >> 6 << 4);
    out.group_mins[4 + i] = static_cast<uint8_t>(from[8 + i] >> 4 | from[4 + i] >> 6 << 4);
  }
}

void read_q4_k(const uint8_t* from, bool five, Super& out) {
  out.scale = read_half(from), out.min = read_half(from + 2);
  read_k_scales(from + 4, out);
  const uint8_t *upper = from + 16, *low = from + (five ? 48 : 16);
  for (int i = 0; i < 256; ++i) {  // 32 bytes hold 64 inputs: first all lower, then all upper halves
    const int byte = i / 64 * 32 + i % 32, fifth = five ? upper[i % 32] >> i / 32 & 1 : 0;
    out.codes[i] = static_cast<uint8_t>((low[byte] >> (i % 64 < 32 ? 0 : 4) & 15) | fifth << 4);
  }
}

void read_q6_k(const uint8_t* from, Super& out) {
  const uint8_t *low = from, *upper = from + 128;
  std::memcpy(out.group_scales, from + 192, 16);  // signed bytes
  out.scale = read_half(from + 208);
  for (int i = 0; i < 256; ++i) {  // per 128 inputs, 64 bytes of lower and 32 bytes of upper bits
    const int half = i / 128, in = i % 128, byte = half * 64 + in % 64;
    out.codes[i] = static_cast<uint8_t>((low[byte] >> (in < 64 ? 0 : 4) & 15) |
                                        (upper[half * 32 + in % 32] >> in / 32 * 2 & 3) << 4);
  }
}

// Bytes of a super in the file.
int64_t file_bytes(BlockKind kind) {
  switch (kind) {
    case BlockKind::kQ4_0:
      return 18;
    case BlockKind::kQ4_1:
      return 20;
    case BlockKind::kQ5_0:
      return 22;
    case BlockKind::kQ5_1:
      return 24;
    case BlockKind::kQ8_0:
      return 34;
    case BlockKind::kQ4_K:
      return 144;
    case BlockKind::kQ5_K:
      return 176;
    case BlockKind::kQ6_K:
      break;
  }
  return 210;
}

void read_super(BlockKind kind, const uint8_t* from, Super& out) {
  switch (kind) {
    case BlockKind::kQ4_0:
      out.scale = read_half(from);
      return read_nibbles(from + 2, out.codes);
    case BlockKind::kQ4_1:
      out.scale = read_half(from), out.min = read_half(from + 2);
      return read_nibbles(from + 4, out.codes);
    case BlockKind::kQ5_0:
      out.scale = read_half(from);
      read_nibbles(from + 6, out.codes);
      return add_fifth_bits(from + 2, out.codes);
    case BlockKind::kQ5_1:
      out.scale = read_half(from), out.min = read_half(from + 2);
      read_nibbles(from + 8, out.codes);
      return add_fifth_bits(from + 4, out.codes);
    case BlockKind::kQ8_0:
      out.scale = read_half(from);
      for (int i = 0; i < 32; ++i) out.codes[i] = static_cast<uint8_t>(from[2 + i] ^ 0x80);
      return;
    case BlockKind::kQ4_K:
      return read_q4_k(from, false, out);
    case BlockKind::kQ5_K:
      return read_q4_k(from, true, out);
    case BlockKind::kQ6_K:
      return read_q6_k(from, out);
  }
}

void put_half(uint16_t half, uint8_t* to) { std::memcpy(to, &half, sizeof half); }

// Four codes of adjacent inputs, which lie side by side in the layout of products.
uint32_t read_quad(const uint8_t* p) {
  uint32_t quad;
  std::memcpy(&quad, p, sizeof quad);
  return quad;
}

// Writes the codes of a group for output `at` of a block.
template <class L>
void write_codes(const uint8_t* codes, int64_t at, uint8_t* to) {
  const auto put = [&](int64_t plane, uint32_t quad) { std::memcpy(to + (plane * kPackOutputs + at) * 4, &quad, 4); };
  const auto quad = [&](int64_t i) { return read_quad(codes + 4 * i); };
  if constexpr (L::kBits == 8) {
    for (int64_t j = 0; j < 8; ++j) put(j, quad(j));
    return;
  }
  for (int64_t j = 0; j < 4; ++j) put(j, (quad(j) & 0x0f0f0f0fu) | (quad(j + 4) & 0x0f0f0f0fu) << 4);
  if constexpr (L::kBits == 6) {
    for (int64_t j = 0; j < 2; ++j) {
      uint32_t upper = 0;
      for (int64_t i = 0; i < 4; ++i) upper |= (quad(j + 2 * i) >> 4 & 0x03030303u) << 2 * i;
      put(4 + j, upper);
    }
  }
}

// Reads what write_codes() wrote.
template <class L>
void read_codes(const uint8_t* from, int64_t at, uint8_t* codes) {
  const auto plane = [&](int64_t j) { return read_quad(from + (j * kPackOutputs + at) * 4); };
  const auto put = [&](int64_t i, uint32_t quad) { std::memcpy(codes + 4 * i, &quad, 4); };
  for (int64_t j = 0; j < 8; ++j) {
    if constexpr (L::kBits == 8) {
      put(j, plane(j));
    } else {
      uint32_t quad = plane(j % 4) >> (j < 4 ? 0 : 4) & 0x0f0f0f0fu;
      if constexpr (L::kBits == 6) quad |= (plane(4 + j % 2) >> j / 2 * 2 & 0x03030303u) << 4;
      put(j, quad);
    }
  }
}

// Writes a super of output `at` of a block.
template <class L>
void write_super(const Super& in, int64_t at, uint8_t* to) {
  put_half(in.scale, to + 2 * at);
  if constexpr (L::kMins) put_half(in.min, to + 2 * (kPackOutputs + at));
  to += L::kHeadBytes * kPackOutputs;
  for (int64_t g = 0; g < L::kGroups; ++g, to += L::kGroupBytes * kPackOutputs) {
    if constexpr (L::kScales == 2) {
      to[at] = in.group_scales[2 * g], to[kPackOutputs + at] = in.group_scales[2 * g + 1];
    } else if constexpr (L::kGroups > 1) {
      to[at] = in.group_scales[g], to[kPackOutputs + at] = in.group_mins[g];
    }
    write_codes<L>(in.codes + g * kBlockInputs, at, to + L::kGroupScaleBytes * kPackOutputs);
  }
}

// Writes the weights of a super of output `at` of a block in fp32.
template <class L>
void unpack_super(const uint8_t* from, int64_t at, float* out) {
  const float scale = fp16_to_float(read_half(from + 2 * at)),
              min = L::kMins ? fp16_to_float(read_half(from + 2 * (kPackOutputs + at))) : 0.0f;
  from += L::kHeadBytes * kPackOutputs;
  for (int64_t g = 0; g < L::kGroups; ++g, from += L::kGroupBytes * kPackOutputs, out += kBlockInputs) {
    float scales[2] = {scale, scale}, low_end = min;
    if constexpr (L::kScales == 2) {
      for (int half = 0; half < 2; ++half)
        scales[half] = scale * static_cast<float>(static_cast<int8_t>(from[half * kPackOutputs + at]));
    } else if constexpr (L::kGroups > 1) {
      scales[0] = scales[1] = scale * static_cast<float>(from[at]);
      low_end = min * static_cast<float>(from[kPackOutputs + at]);
    }
    uint8_t codes[kBlockInputs];
    read_codes<L>(from + L::kGroupScaleBytes * kPackOutputs, at, codes);
    for (int64_t i = 0; i < kBlockInputs; ++i)
      out[i] = scales[i * 2 / kBlockInputs] * static_cast<float>(codes[i] - L::kOffset) + low_end;
  }
}

}  // namespace

int64_t block_super_bytes(BlockKind kind) {
  return with_layout(kind, []<class L>() { return L::kSuperBytes; });
}
int64_t block_super_inputs(BlockKind kind) {
  return with_layout(kind, []<class L>() { return L::kGroups * kBlockInputs; });
}

bool pack_blocks(BlockKind kind, const uint8_t* rows, const int64_t* order, int64_t k, int64_t n, int64_t begin,
                 int64_t end, Blocks* out) {
  return with_layout(kind, [&]<class L>() {
    const int64_t supers = k / (L::kGroups * kBlockInputs), row_bytes = supers * file_bytes(kind);
    // K kinds subtract their min.
    const uint16_t min_sign = L::kGroups > 1 && L::kMins ? 0x8000 : 0;
    auto* bytes = reinterpret_cast<uint8_t*>(out);
    if (end == n && n % kPackOutputs != 0)  // the outputs beyond n in the last block become zero
      std::memset(bytes + n / kPackOutputs * kPackOutputs * supers * L::kSuperBytes, 0,
                  static_cast<size_t>(kPackOutputs * supers * L::kSuperBytes));
    Super super;
    for (int64_t i = begin; i < end; ++i) {
      const uint8_t* from = rows + (order ? order[i] : i) * row_bytes;
      uint8_t* to = bytes + i / kPackOutputs * kPackOutputs * supers * L::kSuperBytes;
      for (int64_t s = 0; s < supers; ++s, from += file_bytes(kind), to += L::kSuperBytes * kPackOutputs) {
        read_super(kind, from, super);
        if (!is_finite(super.scale) || !is_finite(super.min)) return false;
        super.min = static_cast<uint16_t>(super.min ^ min_sign);
        write_super<L>(super, i % kPackOutputs, to);
      }
    }
    return true;
  });
}

void unpack_blocks(BlockKind kind, const Blocks* w, int64_t k, int64_t begin, int64_t end, float* out) {
  with_layout(kind, [&]<class L>() {
    const int64_t supers = k / (L::kGroups * kBlockInputs);
    const auto* bytes = reinterpret_cast<const uint8_t*>(w);
    for (int64_t i = begin; i < end; ++i) {
      const uint8_t* from = bytes + i / kPackOutputs * kPackOutputs * supers * L::kSuperBytes;
      for (int64_t s = 0; s < supers; ++s, from += L::kSuperBytes * kPackOutputs)
        unpack_super<L>(from, i % kPackOutputs, out + (i - begin) * k + s * L::kGroups * kBlockInputs);
    }
  });
}

}  // namespace specdec::kernels::cpu
