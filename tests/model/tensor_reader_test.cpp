#include "engine/weights/tensor_reader.h"

#include <gtest/gtest.h>

#include <limits>

#include "engine/weights/stored_tensor.h"
#include "tests/base/scratch.h"

namespace specdec::model {
namespace {

using namespace specdec::testing;

constexpr at::ScalarType kDtypes[] = {at::kFloat, at::kBFloat16, at::kHalf};

// A checkpoint whose file has one tensor, named `t`.
struct OneTensor {
  Scratch scratch;
  explicit OneTensor(const at::Tensor& tensor) {
    write_safetensors(scratch / "model.safetensors", {to_write("t", tensor)});
  }
  SafetensorsDirectory files() const { return SafetensorsDirectory(scratch.root()); }
};

TEST(TensorReader, PiecesMakeThePartThatWasAskedFor) {
  const at::Tensor values = at::linspace(-3, 3, 23 * 7).view({23, 7});
  for (const auto stored : kDtypes) {
    const OneTensor file(values.to(stored));
    const SafetensorsDirectory files = file.files();
    for (const auto dtype : kDtypes) {
      for (const int64_t piece : {1, 40, 1 << 20}) {
        for (const bool staged : {false, true}) {
          TensorReader reader(files, at::kCPU, {.piece_bytes = piece, .staged = staged});
          EXPECT_TRUE(at::equal(reader.read("t", {23, 7}, dtype), values.to(stored).to(dtype)));
          EXPECT_EQ(reader.bytes_read(), 23 * 7 * static_cast<int64_t>(c10::elementSize(stored))) << "once";
          for (const StoredPart& part : {StoredPart{4, 11, 0, 7}, StoredPart{0, 23, 2, 3}, StoredPart{22, 1, 6, 1}}) {
            const int64_t before = reader.bytes_read();
            const at::Tensor out = at::full({part.rows, part.columns}, 9, dtype);
            reader.read("t", {23, 7}, part, out);
            const at::Tensor expected = values.narrow(0, part.row, part.rows).narrow(1, part.column, part.columns);
            EXPECT_TRUE(at::equal(out, expected.to(stored).to(dtype))) << part.row << " " << part.column;
            EXPECT_EQ(reader.bytes_read() - before, part.rows * 7 * static_cast<int64_t>(c10::elementSize(stored)));
          }
        }
      }
    }
  }
}

TEST(TensorReader, ReadsVectorsAndEmptyTensors) {
  const at::Tensor vector = at::arange(11, at::kFloat);
  const OneTensor file(vector), none(at::empty({0, 4}, at::kFloat));
  const SafetensorsDirectory files = file.files(), empty = none.files();
  TensorReader reader(files, at::kCPU, {.piece_bytes = 8, .staged = true});
  EXPECT_TRUE(at::equal(reader.read("t", {11}, at::kHalf), vector.to(at::kHalf)));
  const at::Tensor end = at::empty({3}, at::kFloat);
  reader.read("t", {11}, {.row = 8, .rows = 3, .columns = 1}, end);
  EXPECT_TRUE(at::equal(end, vector.narrow(0, 8, 3)));
  EXPECT_EQ(TensorReader(empty, at::kCPU).read("t", {0, 4}, at::kFloat).numel(), 0);
}

TEST(TensorReader, ValuesThatAreNotFiniteAreErrorsWhereverTheyAre) {
  for (const auto stored : kDtypes) {
    for (const int64_t place : {0, 13, 34}) {
      for (const double bad : {std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
        at::Tensor values = at::ones({5, 7}, stored);
        values.view({35})[place] = bad;
        const OneTensor file(values);
        const SafetensorsDirectory files = file.files();
        for (const auto dtype : kDtypes) {
          for (const bool staged : {false, true}) {
            TensorReader reader(files, at::kCPU, {.piece_bytes = 30, .staged = staged});
            expect_error(ErrorKind::kModel, {"tensor t holds NaN or infinite values"},
                         [&] { reader.read("t", {5, 7}, dtype); });
          }
        }
      }
    }
  }
  at::Tensor large = at::ones({5, 7}, at::kFloat);
  large.view({35})[20] = 1e6;
  const OneTensor file(large);
  const SafetensorsDirectory files = file.files();
  TensorReader reader(files, at::kCPU, {.piece_bytes = 30});
  expect_error(ErrorKind::kModel, {"tensor t does not fit", "--dtype"}, [&] { reader.read("t", {5, 7}, at::kHalf); });
  EXPECT_EQ(reader.read("t", {5, 7}, at::kBFloat16).numel(), 35);
}

TEST(TensorReader, OtherTensorsAreErrors) {
  const OneTensor file(at::ones({5, 7}, at::kFloat)), ids(at::ones({5}, at::kLong));
  const SafetensorsDirectory files = file.files(), others = ids.files();
  TensorReader reader(files, at::kCPU), of_others(others, at::kCPU);
  expect_error(ErrorKind::kModel, {"tensor u is missing"}, [&] { reader.read("u", {5, 7}, at::kFloat); });
  expect_error(ErrorKind::kModel, {"tensor t has shape [5, 7]", "[7, 5]"},
               [&] { reader.read("t", {7, 5}, at::kFloat); });
  expect_error(ErrorKind::kModel, {"tensor t has dtype I64"}, [&] { of_others.read("t", {5}, at::kFloat); });
}

}  // namespace
}  // namespace specdec::model
