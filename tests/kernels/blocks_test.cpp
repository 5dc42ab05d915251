// Tests products with the block-quantised matrices of GGUF files on every instruction set that this machine has.
#include "base/gguf/blocks.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "base/philox.h"
#include "engine/kernels/block_quantised.h"
#include "engine/kernels/cpu/block_matrix.h"
#include "tests/kernels/cpu_kernels.h"

namespace specdec::kernels::cpu {
namespace {

constexpr const char* kNames[] = {"Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K"};

// A matrix as a file stores it, with random codes and scales of a few thousandths, some of them negative.
struct Stored {
  BlockKind kind;
  int64_t k, n;
  std::vector<uint8_t> bytes;
  std::vector<float> wide;  // [n, k], as base/gguf dequantises them

  Stored(const std::string& name, int64_t n, int64_t k) : kind(*block_kind(name)), k(k), n(n) {
    const gguf::TensorType& type = *gguf::find_type(name);
    const int64_t blocks = n * k / type.block_values;
    bytes.resize(static_cast<size_t>(blocks * type.block_bytes));
    PhiloxStream random(11, static_cast<uint64_t>(k));
    for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random.below(256));
    for (int64_t b = 0; b < blocks; ++b) {
      uint8_t* block = bytes.data() + b * type.block_bytes;
      const auto put_half = [&](int64_t at) {  // fp16 with an exponent of 2^-9 and a random sign and mantissa
        const auto half = static_cast<uint16_t>((random.below(2) << 15) | (6u << 10) | random.below(1024));
        std::memcpy(block + at, &half, sizeof half);
      };
      put_half(name == "Q6_K" ? 208 : 0);
      if (name.ends_with("_1") || name == "Q4_K" || name == "Q5_K") put_half(2);
    }
    wide.resize(static_cast<size_t>(n * k));
    gguf::dequantise(type, std::as_bytes(std::span(bytes)), wide);
  }

  std::vector<Blocks> packed(const int64_t* order = nullptr) const {
    std::vector<Blocks> out(
        static_cast<size_t>(block_outputs(n) * (k / block_super_inputs(kind)) * block_super_bytes(kind)));
    const int64_t middle = n / 2 / kPackOutputs * kPackOutputs;  // packed in two parts, as by two threads
    EXPECT_TRUE(pack_blocks(kind, bytes.data(), order, k, n, 0, middle, out.data()));
    EXPECT_TRUE(pack_blocks(kind, bytes.data(), order, k, n, middle, n, out.data()));
    return out;
  }
};

// Rounds inputs as split() does: to 1/8191 of the largest of their group of 32.
std::vector<float> split_inputs(std::vector<float> x) {
  for (size_t first = 0; first < x.size(); first += 32) {
    float largest = 0;
    for (size_t i = first; i < first + 32; ++i) largest = std::max(largest, std::abs(x[i]));
    for (size_t i = first; i < first + 32 && largest > 0; ++i)
      x[i] = std::nearbyint(x[i] * (8191.0f / largest)) * (largest / 8191.0f);
  }
  return x;
}

template <class T>
void block_linear(const Kernels<T>& kernels, LinearCall<Blocks, T> call, BlockKind kind) {
  std::vector<SplitInputs> split(static_cast<size_t>(call.rows * call.k / kBlockInputs));
  call.split = split.data(), call.kind = kind;
  kernels.linear_blocks(call);
}

template <class T>
class BlockKernels : public CpuKernels<T> {};
TYPED_TEST_SUITE(BlockKernels, Types);

TEST(Blocks, AreUnpackedToTheValuesOfTheFileInTheGivenOrder) {
  for (const char* name : kNames) {
    for (const int64_t n : {1, 31, 33, 64, 100}) {
      const Stored stored(name, n, 512);
      std::vector<int64_t> order(static_cast<size_t>(n));
      for (int64_t i = 0; i < n; ++i) order[static_cast<size_t>(i)] = n - 1 - i;
      const auto packed = stored.packed(order.data());
      std::vector<float> out(stored.wide.size());
      unpack_blocks(stored.kind, packed.data(), stored.k, 0, n, out.data());
      for (size_t i = 0; i < out.size(); ++i) {
        const float expected = stored.wide[static_cast<size_t>(order[i / 512]) * 512 + i % 512];
        ASSERT_NEAR(out[i], expected, 1e-6f * std::abs(expected) + 1e-6f) << name << " n " << n << " at " << i;
      }
    }
  }
}

TEST(Blocks, WithAScaleThatIsNotFiniteAreRefused) {
  for (const char* name : kNames) {
    Stored stored(name, 33, 512);
    const uint16_t infinite = 0x7c00;
    std::memcpy(stored.bytes.data() + stored.bytes.size() - (std::string(name) == "Q6_K" ? 2 : 0) -
                    (std::string(name) == "Q6_K" ? 0 : static_cast<size_t>(gguf::find_type(name)->block_bytes)),
                &infinite, sizeof infinite);
    std::vector<Blocks> out(1 << 20);
    EXPECT_FALSE(pack_blocks(stored.kind, stored.bytes.data(), nullptr, stored.k, stored.n, 0, stored.n, out.data()))
        << name;
  }
}

TYPED_TEST(BlockKernels, LinearIsTheDotProduct) {
  for (const char* name : kNames) {
    for (const int64_t n : {13, 32, 130}) {
      const Stored stored(name, n, 768);
      const auto packed = stored.packed();
      const int64_t k = stored.k, rows = 9;
      const auto x = random(static_cast<size_t>(rows * k), 1);
      for (int set = 0; set < this->count; ++set) {
        const auto& kernels = *this->all[set];
        const auto bias = narrowed(kernels, random(static_cast<size_t>(n), 3));
        const auto wide_bias = widened(kernels, bias);
        for (const int64_t used : {int64_t{1}, rows}) {
          std::vector<float> out(static_cast<size_t>(rows * n), 0.5f);
          block_linear(kernels, {x.data(), k, used, packed.data(), k, 2, n - 1, bias.data(), out.data(), n, true, n},
                       stored.kind);
          expect_products(out, split_inputs(x), stored.wide, wide_bias, rows, used, k, n, kernels.name, 2e-4);
        }
      }
    }
  }
}

// Instruction sets with a fused multiply-add agree bit for bit.
TYPED_TEST(BlockKernels, RowsDependNeitherOnTheirNumberNorOnTheSet) {
  const int64_t most = 19, n = 101, k = 512;
  for (const char* name : kNames) {
    const Stored stored(name, n, k);
    const auto packed = stored.packed();
    const auto x = random(static_cast<size_t>(most * k), 4);
    std::vector<float> first;
    for (int set = 0; set < this->count; ++set) {
      const auto& kernels = *this->all[set];
      std::vector<float> all(static_cast<size_t>(most * n));
      for (int64_t r = 0; r < most; ++r)
        block_linear(kernels,
                     {x.data() + r * k, k, 1, packed.data(), k, 0, n, nullptr, all.data() + r * n, n, false, n},
                     stored.kind);
      for (const int64_t rows : {2, 3, 4, 5, 6, 7, 8, 16, 19}) {
        std::vector<float> out(static_cast<size_t>(rows * n));
        const int64_t cut = rows * 13 % 97;  // split as between two threads
        block_linear(kernels, {x.data(), k, rows, packed.data(), k, 0, cut, nullptr, out.data(), n, false, n},
                     stored.kind);
        block_linear(kernels, {x.data(), k, rows, packed.data(), k, cut, n, nullptr, out.data(), n, false, n},
                     stored.kind);
        EXPECT_EQ(std::memcmp(out.data(), all.data(), out.size() * sizeof(float)), 0)
            << kernels.name << " " << name << " rows " << rows;
      }
      if (set == 0) first = all;
      const bool fused = std::strcmp(kernels.name, "baseline") != 0;
      for (size_t i = 0; i < all.size(); ++i)
        ASSERT_NEAR(all[i], first[i], fused ? 0 : 1e-4) << kernels.name << " " << name;
    }
  }
}

// Tests extreme codes with extreme inputs (a sum that overflowed 16 bits would show), zeros, tiny numbers, and values
// that are not finite.
TYPED_TEST(BlockKernels, ProductsTakeInputsOfAnySize) {
  const int64_t k = 512, n = 32;
  for (const char* name : kNames) {
    Stored stored(name, n, k);
    const gguf::TensorType& type = *gguf::find_type(name);
    for (const uint8_t code : {uint8_t{0xff}, uint8_t{0x7f}, uint8_t{0x80}}) {
      for (size_t b = 0; b < stored.bytes.size(); b += static_cast<size_t>(type.block_bytes))
        for (int64_t i = std::string(name) == "Q6_K" ? 0 : 4; i < type.block_bytes - 2; ++i)
          stored.bytes[b + static_cast<size_t>(i)] = code;
      gguf::dequantise(type, std::as_bytes(std::span(stored.bytes)), stored.wide);
      const auto packed = stored.packed();
      for (const float input : {1.0f, -1.0f, 0.0f, 1e-41f, 1e30f}) {
        // The first input of a group is 8191 of its steps, the others are 8128: high and low bytes of 64 and −64.
        std::vector<float> x(static_cast<size_t>(k), input * (8128.0f / 8191.0f));
        for (size_t i = 0; i < x.size(); i += 32) x[i] = input;
        for (int set = 0; set < this->count; ++set) {
          const auto& kernels = *this->all[set];
          std::vector<float> out(static_cast<size_t>(n));
          block_linear(kernels, {x.data(), k, 1, packed.data(), k, 0, n, nullptr, out.data(), n, false, n},
                       stored.kind);
          for (int64_t o = 0; o < n; ++o) {
            double sum = 0, size = 0;
            for (int64_t i = 0; i < k; ++i) {
              const double product =
                  static_cast<double>(x[static_cast<size_t>(i)]) * stored.wide[static_cast<size_t>(o * k + i)];
              sum += product, size += std::abs(product);
            }
            ASSERT_NEAR(out[static_cast<size_t>(o)], sum, 1e-5 * size + 1e-30) << kernels.name << " " << name;
          }
        }
      }
    }
    const auto packed = stored.packed();
    for (const float broken : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
      std::vector<float> x(static_cast<size_t>(k), 1.0f), out(static_cast<size_t>(n));
      x[300] = broken;
      for (int set = 0; set < this->count; ++set) {
        block_linear(*this->all[set], {x.data(), k, 1, packed.data(), k, 0, n, nullptr, out.data(), n, false, n},
                     stored.kind);
        for (const float value : out) EXPECT_FALSE(std::isfinite(value)) << this->all[set]->name << " " << name;
      }
    }
  }
}

}  // namespace
}  // namespace specdec::kernels::cpu
