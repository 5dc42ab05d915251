// Runs the kernels of engine/kernels/cuda/rows.cu on fibers and compares them with their twins (the same in plain C++),
// over sizes that end within a warp, a block or a vector.
#include <gtest/gtest.h>

#include <functional>

#include "engine/kernels/cuda/launch.h"
#include "tests/kernels/fibers/arrays.h"
#include "tests/kernels/fibers/fibers.h"

namespace specdec::fibers {
namespace {

namespace cuda = kernels::cuda;
namespace twins = kernels::twins;

constexpr float kEps = 1e-5f;

// A kernel with one set of inputs. run() returns a description of wrong results, or nothing, and stores their bytes.
struct Case {
  std::string name;
  std::function<std::string(std::vector<uint8_t>& bytes)> run;
};

Case rms_norm_case(CudaDtype dtype, size_t rows, size_t n) {
  return {name_of(dtype) + " rms_norm " + std::to_string(rows) + " x " + std::to_string(n),
          [=](std::vector<uint8_t>& bytes) {
            const Values x = random_values(dtype, rows * n, n, 3), weight = random_values(dtype, n, 2);
            Array in(dtype, x), scale(dtype, weight), out(dtype, x.size());
            if (cuda::launch_rms_norm(dtype, in.data(), scale.data(), kEps, static_cast<int64_t>(rows),
                                      static_cast<int64_t>(n), out.data(), stream()) != 0)
              return std::string("not launched");
            bytes = out.bytes();
            return difference(dtype, out.values(), twins::rms_norm(dtype, x, weight, static_cast<double>(kEps)));
          }};
}

Case silu_mul_case(CudaDtype dtype, size_t n) {
  return {name_of(dtype) + " silu_mul " + std::to_string(n), [=](std::vector<uint8_t>& bytes) {
            const Values gate = random_values(dtype, n, n, 8), up = random_values(dtype, n, 3);
            Array g(dtype, gate), u(dtype, up), out(dtype, n);
            if (cuda::launch_silu_mul(dtype, g.data(), u.data(), static_cast<int64_t>(n), out.data(), stream()) != 0)
              return std::string("not launched");
            bytes = out.bytes();
            return difference(dtype, out.values(), twins::silu_mul(dtype, gate, up));
          }};
}

Case rope_case(CudaDtype dtype, size_t rows, size_t heads, size_t d) {
  return {name_of(dtype) + " rope " + std::to_string(rows) + " x " + std::to_string(heads) + " x " + std::to_string(d),
          [=](std::vector<uint8_t>& bytes) {
            const Values x = random_values(dtype, rows * heads * d, d);
            Values cosines, sines;
            for (size_t i = 0; i < rows * d / 2; ++i) {
              cosines.push_back(twins::rounded(CudaDtype::kFloat, std::cos(static_cast<double>(i))));
              sines.push_back(twins::rounded(CudaDtype::kFloat, std::sin(static_cast<double>(i))));
            }
            Array in(dtype, x), c(CudaDtype::kFloat, cosines), s(CudaDtype::kFloat, sines), out(dtype, x.size());
            if (cuda::launch_rope(dtype, in.data(), c.as<float>(), s.as<float>(), static_cast<int64_t>(rows),
                                  static_cast<int64_t>(heads), static_cast<int64_t>(d), out.data(), stream()) != 0)
              return std::string("not launched");
            bytes = out.bytes();
            return difference(dtype, out.values(), twins::rope(dtype, x, cosines, sines, d));
          }};
}

Case gather_rows_case(CudaDtype dtype, size_t rows, size_t n) {
  return {name_of(dtype) + " gather_rows " + std::to_string(rows) + " x " + std::to_string(n),
          [=](std::vector<uint8_t>& bytes) {
            const Values table = random_values(dtype, rows * n, n);
            const std::vector<int32_t> ids = self_test::gathered_ids(rows);
            Array in(dtype, table), out(dtype, table.size());
            DeviceMemory<int32_t> chosen(ids);
            if (cuda::launch_gather_rows(dtype, in.data(), chosen.data(), static_cast<int64_t>(rows),
                                         static_cast<int64_t>(n), out.data(), stream()) != 0)
              return std::string("not launched");
            bytes = out.bytes();
            return difference(dtype, out.values(), twins::gather_rows(table, ids, n));
          }};
}

void expect_twin(const Case& one) {
  std::vector<uint8_t> first, again;
  for (const uint64_t seed : {1, 2, 3}) {
    settings().seed = seed;
    EXPECT_EQ(one.run(seed == 1 ? first : again), "") << one.name << ", order " << seed;
    if (seed > 1) EXPECT_EQ(first, again) << one.name << ": the order of threads changes the bits";
  }
}

TEST(Rows, RmsNormEqualsItsTwin) {
  for (const CudaDtype dtype : kDtypes)
    for (const size_t n : {1, 3, 31, 32, 33, 255, 256, 257, 1000, 4096, 4104, 4101})
      for (const size_t rows : {1, 3}) expect_twin(rms_norm_case(dtype, rows, n));
}

TEST(Rows, SiluMulEqualsItsTwin) {
  for (const CudaDtype dtype : kDtypes)
    for (const size_t n : {1, 31, 255, 256, 257, 1000}) expect_twin(silu_mul_case(dtype, n));
}

TEST(Rows, RopeEqualsItsTwin) {
  for (const CudaDtype dtype : kDtypes)
    for (const size_t d : {2, 6, 64, 128})
      for (const size_t heads : {1, 3})
        for (const size_t rows : {1, 5}) expect_twin(rope_case(dtype, rows, heads, d));
}

TEST(Rows, GatherRowsEqualsItsTwin) {
  for (const CudaDtype dtype : kDtypes)
    for (const size_t n : {1, 255, 257, 600})
      for (const size_t rows : {1, 5}) expect_twin(gather_rows_case(dtype, rows, n));
}

TEST(Rows, NothingIsLaunchedForNoRows) {
  const int64_t before = settings().launches;
  float none = 0;
  EXPECT_EQ(cuda::launch_rms_norm(CudaDtype::kFloat, &none, &none, kEps, 0, 8, &none, stream()), 0);
  EXPECT_EQ(cuda::launch_silu_mul(CudaDtype::kFloat, &none, &none, 0, &none, stream()), 0);
  EXPECT_EQ(cuda::launch_rope(CudaDtype::kFloat, &none, &none, &none, 0, 2, 8, &none, stream()), 0);
  const int32_t id = 0;
  EXPECT_EQ(cuda::launch_gather_rows(CudaDtype::kFloat, &none, &id, 0, 8, &none, stream()), 0);
  EXPECT_EQ(settings().launches, before);
  EXPECT_NE(cuda::launch_silu_mul(static_cast<CudaDtype>(9), &none, &none, 1, &none, stream()), 0);
}

// Leaves out each barrier that the kernels reach, one at a time, and expects that a result changes.
TEST(Rows, NoBarrierCanBeLeftOut) {
  const std::vector<Case> cases = {rms_norm_case(CudaDtype::kFloat, 3, 257)};
  settings() = {.barriers = {}};
  std::vector<uint8_t> bytes;
  for (const Case& one : cases) EXPECT_EQ(one.run(bytes), "");
  const std::vector<Site> barriers = settings().barriers;
  EXPECT_EQ(barriers.size(), 1u);
  for (const Site& barrier : barriers) {
    settings().without = barrier;
    bool noticed = false;
    for (const Case& one : cases) noticed |= !one.run(bytes).empty();
    EXPECT_TRUE(noticed) << "nothing changes without the barrier of line " << barrier.line;
  }
  settings() = {};
}

// Each move reads the slot that the next move overwrites, so moves in another order would lose tokens.
TEST(Rows, MoveSlotsKeepsWhatIsStillToBeRead) {
  constexpr size_t kPlanes = 3, kWidth = 100, kSlots = kernels::kPagedSlots;
  std::vector<uint16_t> values(kPlanes * kSlots * kWidth);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<uint16_t>(i);
  DeviceMemory<uint16_t> block(values);
  kernels::SlotMoves moves = {};
  moves.planes = kPlanes, moves.d = kWidth;
  for (const auto& [from, to] : {std::pair{5, 3}, {6, 5}, {7, 6}, {63, 7}}) {
    moves.from[moves.count] = from, moves.to[moves.count] = to;
    moves.from_block[moves.count] = moves.to_block[moves.count] = reinterpret_cast<uint64_t>(block.data());
    ++moves.count;
  }
  std::vector<uint16_t> expected = values;
  for (size_t plane = 0; plane < kPlanes; ++plane)
    for (const auto& [from, to] : {std::pair<size_t, size_t>{5, 3}, {6, 5}, {7, 6}, {63, 7}})
      for (size_t i = 0; i < kWidth; ++i)
        expected[(plane * kSlots + to) * kWidth + i] = values[(plane * kSlots + from) * kWidth + i];
  ASSERT_EQ(cuda::launch_move_slots(moves, stream()), 0);
  EXPECT_EQ(block.read(), expected);
}

}  // namespace
}  // namespace specdec::fibers
