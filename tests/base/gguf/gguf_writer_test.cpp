#include "base/gguf/gguf_writer.h"

#include "tests/base/scratch.h"

namespace specdec::gguf {
namespace {

using testing::error_of;

std::vector<std::byte> some_bytes(size_t count, int first) {
  std::vector<std::byte> bytes(count);
  for (size_t i = 0; i < count; ++i) bytes[i] = static_cast<std::byte>(first + static_cast<int>(i) * 7);
  return bytes;
}

TEST(GgufWriter, RoundTripOfEveryTypeOfValueAndOfPieces) {
  const testing::Scratch dir;
  const fs::path path = dir / "m.gguf";
  const std::vector<TensorToStore> tensors = {{"odd", find_type("F32"), {3}},
                                              {"matrix", find_type("F16"), {2, 5}},
                                              {"blocks", find_type("Q8_0"), {3, 64}},
                                              {"four", find_type("Q4_0"), {2, 1, 3, 32}}};
  EXPECT_EQ(tensors[2].bytes(), 3u * 2 * 34);
  GgufWriter writer(path,
                    {{"general.architecture", std::string("llama")},
                     {"yes", true},
                     {"u32", uint32_t{4000000000}},
                     {"i32", int32_t{-5}},
                     {"u64", uint64_t{1} << 40},
                     {"f32", 0.25f},
                     {"flags", std::vector<bool>{true, false, true}},
                     {"counts", std::vector<uint32_t>{1, 2}},
                     {"types", std::vector<int32_t>{-1, 3}},
                     {"scores", std::vector<float>{-0.5f, 2}},
                     {"texts", std::vector<std::string>{"", "größe", std::string("a\0b", 3)}}},
                    tensors);
  std::vector<std::vector<std::byte>> data;
  for (size_t i = 0; i < tensors.size(); ++i) {
    data.push_back(some_bytes(tensors[i].bytes(), static_cast<int>(i)));
    const std::span<const std::byte> all(data.back());
    writer.write(all.first(1));  // in pieces of odd sizes
    writer.write(all.subspan(1, 4));
    writer.write(all.subspan(5));
  }
  writer.finish();
  const GgufFile file(path);
  EXPECT_EQ(file.text("general.architecture"), "llama");
  EXPECT_TRUE(file.flag("yes", false));
  EXPECT_EQ(file.integer("u32", 0, INT64_MAX), 4000000000);
  EXPECT_EQ(file.integer("i32", -9, 9), -5);
  EXPECT_EQ(file.integer("u64", 0, INT64_MAX), int64_t{1} << 40);
  EXPECT_EQ(file.number("f32", 0, 1), 0.25);
  EXPECT_EQ(std::get<std::vector<bool>>(file.metadata().at("flags")), (std::vector<bool>{true, false, true}));
  EXPECT_EQ(file.integers("counts"), (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(file.integers("types"), (std::vector<int64_t>{-1, 3}));
  EXPECT_EQ(file.numbers("scores"), (std::vector<double>{-0.5, 2}));
  EXPECT_EQ(file.texts("texts"), (std::vector<std::string>{"", "größe", std::string("a\0b", 3)}));
  ASSERT_EQ(file.tensors().size(), tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    const Tensor& tensor = file.tensor(tensors[i].name);
    EXPECT_EQ(tensor.type, tensors[i].type);
    EXPECT_EQ(tensor.shape, tensors[i].shape);
    EXPECT_EQ(tensor.offset % 32, 0u);
    std::vector<std::byte> read(tensor.bytes);
    file.read(tensor, 0, read);
    EXPECT_EQ(read, data[i]) << tensors[i].name;
  }
  EXPECT_EQ(fs::file_size(path) % 32, 0u) << "llama.cpp expects padding behind the last tensor, too";
}

TEST(GgufWriter, RefusesWhatReadersRefuse) {
  const testing::Scratch dir;
  const auto refused = [&](const Metadata& metadata, const std::vector<TensorToStore>& tensors) {
    return error_of([&] { const GgufWriter writer(dir / "m.gguf", metadata, tensors); }, ErrorKind::kInternal);
  };
  const TensorType* f32 = find_type("F32");
  EXPECT_NE(refused({{"a", true}, {"a", true}}, {}).find("'a'"), std::string::npos);
  EXPECT_NE(refused({{"", true}}, {}).find("empty"), std::string::npos);
  EXPECT_NE(refused({}, {{"t", f32, {1}}, {"t", f32, {1}}}).find("twice"), std::string::npos);
  EXPECT_NE(refused({}, {{"t", f32, {}}}).find("dimensions"), std::string::npos);
  EXPECT_NE(refused({}, {{"t", f32, {1, 1, 1, 1, 1}}}).find("dimensions"), std::string::npos);
  EXPECT_NE(refused({}, {{"t", f32, {2, 0}}}).find("empty dimension"), std::string::npos);
  EXPECT_NE(refused({}, {{"t", find_type("Q8_0"), {32, 33}}}).find("blocks"), std::string::npos);
}

TEST(GgufWriter, CountsTheBytes) {
  const testing::Scratch dir;
  const std::vector<TensorToStore> tensors = {{"t", find_type("F32"), {2}}, {"u", find_type("F32"), {1}}};
  const std::vector<std::byte> bytes(12);
  {
    GgufWriter writer(dir / "m.gguf", {}, tensors);
    EXPECT_NE(error_of([&] { writer.write(bytes); }, ErrorKind::kInternal).find("more bytes"), std::string::npos)
        << "a piece does not go over the border of two tensors";
    writer.write(std::span(bytes).first(8));
    EXPECT_NE(error_of([&] { writer.finish(); }, ErrorKind::kInternal).find("fewer bytes"), std::string::npos);
  }
  EXPECT_FALSE(fs::exists(dir / "m.gguf")) << "a file that was not finished is removed";
}

}  // namespace
}  // namespace specdec::gguf
