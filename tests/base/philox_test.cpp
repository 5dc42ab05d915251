#include "base/philox.h"

#include <gtest/gtest.h>

#include <cmath>

namespace specdec {
namespace {

using Block = std::array<uint32_t, 4>;

// Known answers of the Random123 distribution (kat_vectors, philox4x32 with 10 rounds).
TEST(Philox, KnownAnswers) {
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, {0, 0}), (Block{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox4x32({~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}), (Block{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Block{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, UniformsAreOpenAndKeyedBySeedStreamAndIndex) {
  EXPECT_EQ(philox_uniform(5, 6, 7), philox_uniform(5, 6, 7));
  EXPECT_NE(philox_uniform(5, 6, 7), philox_uniform(6, 6, 7));
  EXPECT_NE(philox_uniform(5, 6, 7), philox_uniform(5, 7, 7));
  EXPECT_NE(philox_uniform(5, 6, 7), philox_uniform(5, 6, 8));
  EXPECT_NE(philox_uniform(1ull << 40, 0, 0), philox_uniform(0, 0, 0));
  double sum = 0, squares = 0;
  constexpr int kDraws = 100000;
  PhiloxStream stream(3, 4);
  for (int i = 0; i < kDraws; ++i) {
    const double u = stream.uniform();
    ASSERT_GT(u, 0);
    ASSERT_LT(u, 1);
    sum += u;
    squares += u * u;
  }
  EXPECT_EQ(stream.index(), static_cast<uint64_t>(kDraws));
  EXPECT_NEAR(sum / kDraws, 0.5, 4 * std::sqrt(1.0 / 12 / kDraws));
  EXPECT_NEAR(squares / kDraws, 1.0 / 3, 4 * std::sqrt(4.0 / 45 / kDraws));
}

TEST(Philox, BelowCoversItsRange) {
  PhiloxStream stream(9, 9);
  std::array<int, 7> seen{};
  for (int i = 0; i < 7000; ++i) ++seen[stream.below(7)];
  for (int count : seen) EXPECT_NEAR(count, 1000, 150);
}

}  // namespace
}  // namespace specdec
