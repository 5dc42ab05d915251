#include "engine/kernels/quantised_matrix.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>

#include "base/small_float.h"
#include "engine/kernels/team.h"

namespace specdec::kernels {

namespace {

constexpr int64_t kBlockOutputs = 32, kScaleBytes = 4;

// Returns the bytes that a unit (32 inputs) takes per output.
int64_t unit_bytes(Packing packing) { return packing == Packing::kCodes4 ? 16 : 32; }
at::ScalarType dtype_of(Packing packing) {
  return packing == Packing::kCodes4   ? at::kInt
         : packing == Packing::kCodes8 ? at::kShort
                                       : at::ScalarType::Float8_e4m3fn;
}

// Returns the number that each code stands for, before subtraction of the zero point and multiplication by the scale.
std::array<float, 256> values_of(Packing packing) {
  std::array<float, 256> out;
  for (int code = 0; code < 256; ++code)
    out[static_cast<size_t>(code)] =
        packing == Packing::kE4m3 ? e4m3_to_float(static_cast<uint8_t>(code)) : static_cast<float>(code);
  return out;
}

// The dimensions of a packed matrix.
struct Layout {
  Packing packing;
  int64_t n, k, units;  // units: number of units of 32 inputs per group
  int64_t all_units() const { return (k + kUnitInputs - 1) / kUnitInputs; }
  int64_t groups() const { return (all_units() + units - 1) / units; }
  int64_t group_bytes() const { return units * unit_bytes(packing) + kScaleBytes; }
};

// Runs f(begin, end) over ranges of outputs in parallel. Each range consists of whole blocks.
template <class F>
void over_blocks(const Layout& layout, const F& f) {
  const int64_t threads = std::min<int64_t>(at::get_num_threads(), 1 + layout.n * layout.k / 65536);
  run_team(static_cast<int>(threads), [&](const Member& member) {
    const auto [begin, end] = member.part(layout.n, kBlockOutputs);
    for (int64_t first = begin; first < end; first += kBlockOutputs)
      f(first, std::min<int64_t>(kBlockOutputs, end - first));
  });
}

// Calls f(byte, shift, output, input) for each code of a block. The code is in this byte of the block, shifted left by
// `shift` bits.
template <class F>
void over_codes(const Layout& layout, int64_t first, int64_t outputs, const F& f) {
  constexpr std::array<int64_t, 4> kPlace = {0, 2, 1, 3};
  const bool four = layout.packing == Packing::kCodes4;
  for (int64_t unit = 0; unit < layout.all_units(); ++unit) {
    const int64_t at =
        (unit / layout.units * layout.group_bytes() + unit % layout.units * unit_bytes(layout.packing)) * outputs;
    const int64_t inputs = std::min(kUnitInputs, layout.k - unit * kUnitInputs);
    for (int64_t o = 0; o < outputs; ++o)
      for (int64_t i = 0; i < inputs; ++i) {
        const int64_t t = i % 8, number = at + 16 * (o / 4 * 4 + i / 8) + o % 4 * 4;
        if (four)
          f(number + t % 2 * 2 + t / 4, t / 2 % 2 * 4, first + o, unit * kUnitInputs + i);
        else
          f(number + t / 4 * 16 * outputs + kPlace[static_cast<size_t>(t % 4)], 0, first + o, unit * kUnitInputs + i);
      }
  }
}

// Calls f(byte, output, group) for the 32-bit scale word of each output in each group of a block; `byte` is the word's
// offset in the block.
template <class F>
void over_scales(const Layout& layout, int64_t first, int64_t outputs, const F& f) {
  for (int64_t g = 0; g < layout.groups(); ++g)
    for (int64_t o = 0; o < outputs; ++o)
      f(((g + 1) * layout.group_bytes() - kScaleBytes) * outputs + kScaleBytes * o, first + o, g);
}

// Returns the input indices sorted by group; inputs of one group keep their order.
std::vector<int32_t> sorted(const std::vector<int32_t>& group) {
  std::vector<int32_t> order(group.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int32_t a, int32_t b) { return group[static_cast<size_t>(a)] < group[static_cast<size_t>(b)]; });
  return order;
}

// Returns the number of inputs per group. A single group is rounded up to a multiple of kUnitInputs. Returns 0 if the
// layout cannot represent the groups: all groups but the last must have one size, a multiple of kUnitInputs.
int64_t size_of_groups(const std::vector<int32_t>& group, const std::vector<int32_t>& order) {
  const auto k = static_cast<int64_t>(order.size());
  const auto at = [&](int64_t i) { return group[static_cast<size_t>(order[static_cast<size_t>(i)])]; };
  int64_t size = 0;
  while (size < k && at(size) == at(0)) ++size;
  if (size == k) return (k + kUnitInputs - 1) / kUnitInputs * kUnitInputs;
  if (size % kUnitInputs != 0) return 0;
  for (int64_t i = 1; i < k; ++i)
    if ((at(i) != at(i - 1)) != (i % size == 0)) return 0;
  return size;
}

}  // namespace

QuantisedMatrix QuantisedMatrix::outputs(int64_t first, int64_t count) const {
  const auto narrowed = [&](const at::Tensor& t) { return t.defined() ? t.narrow(1, first, count).contiguous() : t; };
  return {packing, codes.narrow(0, first, count), narrowed(scales), narrowed(zeros), group};
}

at::Tensor dequantise(const QuantisedMatrix& matrix) {
  const int64_t n = matrix.codes.size(0), k = matrix.codes.size(1);
  const std::array<float, 256> values = values_of(matrix.packing);
  const at::Tensor out = at::empty({n, k}, at::kFloat), codes = matrix.codes.contiguous();
  const uint8_t *code = codes.const_data_ptr<uint8_t>(),
                *zeros = matrix.zeros.defined() ? matrix.zeros.const_data_ptr<uint8_t>() : nullptr;
  const float* scales = matrix.scales.const_data_ptr<float>();
  float* to = out.data_ptr<float>();
  over_blocks({matrix.packing, n, k, 1}, [&](int64_t first, int64_t outputs) {
    for (int64_t o = first; o < first + outputs; ++o)
      for (int64_t i = 0; i < k; ++i) {
        const int64_t at = matrix.group[static_cast<size_t>(i)] * n + o;
        to[o * k + i] = scales[at] * (values[code[o * k + i]] - (zeros ? static_cast<float>(zeros[at]) : 0.0f));
      }
  });
  return out;
}

std::optional<PackedCodes> pack_codes(const QuantisedMatrix& matrix) {
  const int64_t n = matrix.codes.size(0), k = matrix.codes.size(1);
  const at::Tensor halves = matrix.scales.to(at::kHalf);
  if (n % 4 != 0 || (matrix.zeros.defined() && !at::equal(halves.to(at::kFloat), matrix.scales))) return {};
  const std::vector<int32_t> order = sorted(matrix.group);
  const int64_t size = size_of_groups(matrix.group, order);
  if (size == 0) return {};
  const Layout layout{matrix.packing, n, k, size / kUnitInputs};
  const at::Tensor bytes = at::zeros({n, layout.groups(), layout.group_bytes()}, at::kByte),
                   codes = matrix.codes.contiguous();
  const uint8_t *code = codes.const_data_ptr<uint8_t>(),
                *zeros = matrix.zeros.defined() ? matrix.zeros.const_data_ptr<uint8_t>() : nullptr;
  const float* scales = matrix.scales.const_data_ptr<float>();
  const auto* half = static_cast<const uint16_t*>(halves.const_data_ptr());
  over_blocks(layout, [&](int64_t first, int64_t outputs) {
    uint8_t* block = bytes.data_ptr<uint8_t>() + first * layout.groups() * layout.group_bytes();
    over_codes(layout, first, outputs, [&](int64_t byte, int64_t shift, int64_t o, int64_t i) {
      block[byte] = static_cast<uint8_t>(block[byte] | code[o * k + order[static_cast<size_t>(i)]] << shift);
    });
    over_scales(layout, first, outputs, [&](int64_t byte, int64_t o, int64_t g) {
      const int64_t at = matrix.group[static_cast<size_t>(order[static_cast<size_t>(g * size)])] * n + o;
      const uint32_t word = zeros ? static_cast<uint32_t>(half[at]) | static_cast<uint32_t>(zeros[at]) << 16
                                  : std::bit_cast<uint32_t>(scales[at]);
      std::memcpy(block + byte, &word, sizeof(word));
    });
  });
  PackedCodes out{bytes.view(dtype_of(matrix.packing)), {}};
  if (!std::is_sorted(order.begin(), order.end())) out.order = at::tensor(order, at::kInt);
  return out;
}

at::Tensor dequantise(const PackedCodes& packed, int64_t k) {
  const at::Tensor bytes = packed.matrix.cpu().contiguous().view(at::kByte),
                   order = packed.order.defined() ? packed.order.cpu() : at::Tensor();
  const Layout layout{packing_of(packed.matrix), bytes.size(0), k, group_size_of(packed.matrix) / kUnitInputs};
  const std::array<float, 256> values = values_of(layout.packing);
  const bool integers = layout.packing != Packing::kE4m3;
  const uint8_t mask = layout.packing == Packing::kCodes4 ? 15 : 255;
  const at::Tensor out = at::empty({layout.n, k}, at::kFloat);
  float* to = out.data_ptr<float>();
  const int32_t* input = order.defined() ? order.const_data_ptr<int32_t>() : nullptr;
  over_blocks(layout, [&](int64_t first, int64_t outputs) {
    const uint8_t* block = bytes.const_data_ptr<uint8_t>() + first * layout.groups() * layout.group_bytes();
    std::vector<std::pair<float, float>> scales(static_cast<size_t>(layout.groups() * outputs));  // scale, zero point
    over_scales(layout, first, outputs, [&](int64_t byte, int64_t o, int64_t g) {
      uint32_t word = 0;
      std::memcpy(&word, block + byte, sizeof(word));
      scales[static_cast<size_t>(g * outputs + o - first)] =
          integers ? std::pair(fp16_to_float(static_cast<uint16_t>(word)), static_cast<float>(word >> 16))
                   : std::pair(std::bit_cast<float>(word), 0.0f);
    });
    over_codes(layout, first, outputs, [&](int64_t byte, int64_t shift, int64_t o, int64_t i) {
      const auto [scale, zero] = scales[static_cast<size_t>(i / kUnitInputs / layout.units * outputs + o - first)];
      to[o * k + (input ? input[i] : i)] = scale * (values[block[byte] >> shift & mask] - zero);
    });
  });
  return out.to(packed.matrix.device());
}

Packing packing_of(const at::Tensor& weight) {
  switch (weight.scalar_type()) {
    case at::kChar:
      return Packing::kInt8;
    case at::kInt:
      return Packing::kCodes4;
    case at::kShort:
      return Packing::kCodes8;
    case at::ScalarType::Float8_e4m3fn:
      return Packing::kE4m3;
    default:
      return Packing::kPlain;
  }
}

int64_t group_size_of(const at::Tensor& weight) {
  if (!is_group_quantised(weight)) return 0;
  const int64_t bytes = weight.size(2) * static_cast<int64_t>(weight.element_size());
  return (bytes - kScaleBytes) / unit_bytes(packing_of(weight)) * kUnitInputs;
}

int64_t packed_row_bytes(Packing packing, int64_t k, int64_t group) {
  if (group % kUnitInputs != 0) return 0;
  Layout layout{packing, 0, k, group / kUnitInputs};
  if (group == 0 || layout.units > layout.all_units()) layout.units = layout.all_units();
  return layout.groups() * layout.group_bytes();
}

}  // namespace specdec::kernels
