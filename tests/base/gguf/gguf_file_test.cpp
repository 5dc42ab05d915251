#include "base/gguf/gguf_file.h"

#include <algorithm>
#include <functional>
#include <limits>

#include "base/gguf/header_reader.h"
#include "base/sha256.h"
#include "tests/base/gguf/sample_gguf.h"
#include "tests/base/scratch.h"

namespace specdec::gguf {
namespace {

using testing::expect_error;
using testing::gguf_string;
using testing::le;
using testing::put;
using testing::SampleGguf;

// A file with a tensor of two rows and one of Q8_0.
SampleGguf sample() {
  SampleGguf file;
  file.add_text("general.architecture", "llama");
  file.add_f32("a", {3, 2}, 'a');
  file.tensors.push_back({"b", {32}, 8, "two bytes and 32 other characters.", {}});
  return file;
}

class GgufFileTest : public ::testing::Test {
 protected:
  GgufFile open(const SampleGguf& file) {
    put(path_, file.bytes());
    return GgufFile(path_);
  }
  // Requires that a file with these bytes is refused, in one line that names the file and says each of `parts`.
  void refused(const std::string& bytes, std::vector<std::string> parts) {
    put(path_, bytes);
    parts.push_back(path_.string() + ": ");
    const std::string message = testing::error_of([&] { GgufFile file(path_); }, ErrorKind::kModel);
    for (const std::string& part : parts)
      EXPECT_NE(message.find(part), std::string::npos) << "'" << part << "' not in: " << message;
    EXPECT_EQ(std::count_if(message.begin(), message.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; }), 0)
        << message;
  }
  // The same for sample(), changed by `change`.
  void refused(const std::function<void(SampleGguf&)>& change, const std::vector<std::string>& parts) {
    SampleGguf file = sample();
    change(file);
    refused(file.bytes(), parts);
  }

  testing::Scratch dir_;
  const fs::path path_ = dir_ / "m.gguf";
};

TEST_F(GgufFileTest, ReadsTensorsOfVersions2And3) {
  for (uint32_t version : {2, 3}) {
    SampleGguf sample = gguf::sample();
    sample.version = version;
    sample.add_f32("one", {1}, 's');
    const GgufFile file = open(sample);
    ASSERT_EQ(file.tensors().size(), 3u);
    const Tensor& a = file.tensor("a");
    EXPECT_STREQ(a.type->name, "F32");
    EXPECT_EQ(a.shape, (std::vector<int64_t>{2, 3}));
    EXPECT_EQ(a.bytes, 24u);
    EXPECT_EQ(a.offset, (sample.header().size() + 31) / 32 * 32);
    EXPECT_EQ(file.tensor("b").offset, a.offset + 32);
    EXPECT_EQ(file.tensor("b").bytes, 34u);
    EXPECT_EQ(file.tensor("one").shape, std::vector<int64_t>{1});
    std::string bytes(20, '\0');
    file.read(file.tensor("b"), 14, std::as_writable_bytes(std::span(bytes)));
    EXPECT_EQ(bytes, sample.tensors[1].data.substr(14));
    EXPECT_EQ(&file.file_of(a), file.files()[0].get());
    EXPECT_EQ(file.header_digest(), sha256_hex(sample.bytes().substr(0, a.offset)));
    expect_error(ErrorKind::kInternal, {"m.gguf"}, [&] { file.read(a, 5, std::as_writable_bytes(std::span(bytes))); });
    expect_error(ErrorKind::kInternal, {"m.gguf"},
                 [&] { file.read(a, UINT64_MAX, std::as_writable_bytes(std::span(bytes))); });
    expect_error(ErrorKind::kModel, {"m.gguf", "no tensor 'c'"}, [&] { file.tensor("c"); });
  }
}

TEST_F(GgufFileTest, AcceptsWhatWritersMake) {
  SampleGguf no_tensors;
  EXPECT_TRUE(open(no_tensors).tensors().empty());
  no_tensors.add_u32("general.alignment", 64);
  no_tensors.alignment = 64;
  EXPECT_EQ(open(no_tensors).integer("general.alignment", 1, 100), 64);
  // The data may end without padding, be aligned otherwise, and be listed in another order.
  SampleGguf aligned = sample();
  std::string bytes = aligned.bytes();
  put(path_, bytes.substr(0, bytes.size() - 30));
  EXPECT_EQ(GgufFile(path_).tensors().size(), 2u);
  for (uint32_t alignment : {8, 256, 1 << 20}) {
    aligned = sample();
    aligned.alignment = alignment;
    aligned.add_u32("general.alignment", alignment);
    EXPECT_EQ(open(aligned).tensor("b").bytes, 34u);
  }
  SampleGguf reversed = sample();
  reversed.tensors[0].offset = 64;
  reversed.tensors[1].offset = 0;
  EXPECT_EQ(open(reversed).tensor("b").bytes, 34u);
}

TEST_F(GgufFileTest, KnowsEveryType) {
  const std::vector<std::tuple<const char*, uint32_t, int64_t, int64_t>> types = {
      {"F32", 0, 1, 4},       {"F16", 1, 1, 2},       {"Q4_0", 2, 32, 18}, {"Q4_1", 3, 32, 20},
      {"Q5_0", 6, 32, 22},    {"Q5_1", 7, 32, 24},    {"Q8_0", 8, 32, 34}, {"Q4_K", 12, 256, 144},
      {"Q5_K", 13, 256, 176}, {"Q6_K", 14, 256, 210}, {"BF16", 30, 1, 2}};
  SampleGguf file;
  for (const auto& [name, id, values, size] : types) {
    const TensorType* type = find_type(name);
    ASSERT_TRUE(type && type == find_type(id)) << name;
    EXPECT_EQ(type->block_values, values);
    EXPECT_EQ(type->block_bytes, size);
    file.tensors.push_back({name, {512, 3}, id, std::string(static_cast<size_t>(512 * 3 / values * size), 'x'), {}});
  }
  const GgufFile read = open(file);
  for (const auto& [name, id, values, size] : types) EXPECT_STREQ(read.tensor(name).type->name, name);
  EXPECT_EQ(find_type(uint32_t{10}), nullptr);
  EXPECT_EQ(find_type("Q2_K"), nullptr);
}

TEST_F(GgufFileTest, RefusesOtherTypesByName) {
  const std::vector<std::pair<uint32_t, const char*>> types = {
      {10, "Q2_K"},    {11, "Q3_K"},      {15, "Q8_K"},
      {16, "IQ2_XXS"}, {17, "IQ2_XS"},    {18, "IQ3_XXS"},
      {19, "IQ1_S"},   {20, "IQ4_NL"},    {21, "IQ3_S"},
      {22, "IQ2_S"},   {23, "IQ4_XS"},    {24, "I8"},
      {29, "IQ1_M"},   {31, "Q4_0_4_4"},  {34, "TQ1_0"},
      {35, "TQ2_0"},   {39, "MXFP4"},     {40, "NVFP4"},
      {41, "Q1_0"},    {99, "number 99"}, {UINT32_MAX, "number 4294967295"}};
  for (const auto& [id, name] : types)
    refused([id = id](SampleGguf& f) { f.tensors[1].type = id; },
            {"tensor 'b' is stored as " + std::string(name) + ", expected F32"});
}

TEST_F(GgufFileTest, ReadsMetadataOfEveryType) {
  SampleGguf sample;
  sample.metadata = {{"u8", le<uint32_t>(0) + le<uint8_t>(200)},
                     {"i8", le<uint32_t>(1) + le<int8_t>(-3)},
                     {"u16", le<uint32_t>(2) + le<uint16_t>(65535)},
                     {"i16", le<uint32_t>(3) + le<int16_t>(-300)},
                     {"u32", le<uint32_t>(4) + le<uint32_t>(UINT32_MAX)},
                     {"i32", le<uint32_t>(5) + le<int32_t>(-70000)},
                     {"f32", le<uint32_t>(6) + le(0.1f)},
                     {"true", le<uint32_t>(7) + le<uint8_t>(1)},
                     {"false", le<uint32_t>(7) + le<uint8_t>(0)},
                     {"u64", le<uint32_t>(10) + le<uint64_t>(UINT64_MAX)},
                     {"i64", le<uint32_t>(11) + le<int64_t>(INT64_MIN)},
                     {"f64", le<uint32_t>(12) + le(0.1)},
                     {"nan", le<uint32_t>(12) + le(std::numeric_limits<double>::quiet_NaN())}};
  sample.add_text("text", std::string("a\0b", 3));
  sample.add_texts("texts", {"", "x", std::string(300000, 'y')});  // longer than a piece that is read at once
  sample.add_array<int32_t>("ints", 5, {-1, 7});
  sample.add_array<uint8_t>("bytes", 0, {1, 255});
  sample.add_array<uint64_t>("large", 10, {1, UINT64_MAX});
  sample.add_array<float>("floats", 6, {0.5f, -2.0f});
  sample.add_array<uint8_t>("bools", 7, {1, 0, 1});
  sample.add_array<uint8_t>("none", 7, {});
  const GgufFile file = open(sample);
  const auto any = [&](const char* key) { return file.integer(key, INT64_MIN, INT64_MAX); };
  EXPECT_EQ(any("u8"), 200);
  EXPECT_EQ(any("i8"), -3);
  EXPECT_EQ(any("u16"), 65535);
  EXPECT_EQ(any("i16"), -300);
  EXPECT_EQ(any("u32"), 4294967295);
  EXPECT_EQ(any("i32"), -70000);
  EXPECT_EQ(any("i64"), INT64_MIN);
  EXPECT_EQ(file.number("f32", 0, 1), double{0.1f});
  EXPECT_EQ(file.number("f64", 0, 1), 0.1);
  EXPECT_TRUE(file.flag("true", false));
  EXPECT_FALSE(file.flag("false", true));
  EXPECT_EQ(file.text("text"), std::string("a\0b", 3));
  EXPECT_EQ(file.texts("texts"), (std::vector<std::string>{"", "x", std::string(300000, 'y')}));
  EXPECT_EQ(file.integers("ints"), (std::vector<int64_t>{-1, 7}));
  EXPECT_EQ(file.integers("bytes"), (std::vector<int64_t>{1, 255}));
  EXPECT_EQ(file.numbers("floats"), (std::vector<double>{0.5, -2}));
  EXPECT_EQ(std::get<std::vector<bool>>(file.metadata().at("bools")), (std::vector<bool>{true, false, true}));
  EXPECT_TRUE(std::get<std::vector<bool>>(file.metadata().at("none")).empty());
  const std::vector<std::pair<std::vector<std::string>, std::function<void()>>> refusals = {
      {{"'u64'", "18446744073709551615"}, [&] { any("u64"); }},
      {{"'u8'", "200", "from 0 to 199"}, [&] { file.integer("u8", 0, 199); }},
      {{"'i8'", "-3", "from 0 to 9"}, [&] { file.integer("i8", 0, 9, 1); }},
      {{"'f32'", "a float", "an integer"}, [&] { any("f32"); }},
      {{"'gone'", "missing", "from 1 to 2"}, [&] { file.integer("gone", 1, 2); }},
      {{"'f64'", "0.1"}, [&] { file.number("f64", 0.2, 1); }},
      {{"'nan'"}, [&] { file.number("nan", -1e300, 1e300); }},
      {{"'u8'", "an integer", "a float"}, [&] { file.number("u8", 0, 1000); }},
      {{"'gone'", "missing"}, [&] { file.number("gone", 0, 1); }},
      {{"'u8'", "a bool"}, [&] { file.flag("u8", false); }},
      {{"'texts'", "an array of strings", "a string"}, [&] { file.text("texts"); }},
      {{"'gone'", "missing", "a string"}, [&] { file.text("gone"); }},
      {{"'text'", "a string", "an array of strings"}, [&] { file.texts("text"); }},
      {{"'gone'", "missing"}, [&] { file.texts("gone"); }},
      {{"'large'", "18446744073709551615"}, [&] { file.integers("large"); }},
      {{"'bools'", "an array of bools"}, [&] { file.integers("bools"); }},
      {{"'ints'", "an array of integers"}, [&] { file.numbers("ints"); }}};
  for (auto [parts, f] : refusals) {
    parts.push_back("m.gguf: metadata ");
    expect_error(ErrorKind::kModel, parts, f);
  }
  EXPECT_EQ(file.header_digest(), sha256_hex(sample.bytes()));
  EXPECT_EQ(file.integer("gone", 1, 2, 5), 5);
  EXPECT_EQ(file.number("gone", 1, 2, 0.5), 0.5);
  EXPECT_TRUE(file.flag("gone", true));
  EXPECT_EQ(file.text("gone", "d"), "d");
  EXPECT_TRUE(file.integers("gone").empty() && file.numbers("gone").empty() && !file.has("gone") && file.has("u8"));
}

TEST_F(GgufFileTest, RefusesOtherFormats) {
  refused(std::string(), {"expected 'GGUF'"});
  refused(std::string("GG"), {"it begins with 'GG'"});
  refused(std::string("PK\x03\x04zip"), {"it begins with 'PK\?\?', expected 'GGUF'"});
  refused(std::string("GGUF"), {"truncated"});
  for (uint32_t version : {0u, 1u, 4u, 0x03000001u})
    refused([&](SampleGguf& f) { f.version = version; }, {"version " + std::to_string(version) + ", expected 2 or 3"});
  for (uint32_t version : {0x02000000u, 0x03000000u})
    refused([&](SampleGguf& f) { f.version = version; }, {"big-endian"});
  expect_error(ErrorKind::kModel, {(dir_ / "none.gguf").string()}, [&] { GgufFile file(dir_ / "none.gguf"); });
}

// A file that ends anywhere before the last tensor's last byte is refused, and says so.
TEST_F(GgufFileTest, RefusesEveryTruncatedFile) {
  SampleGguf sample = gguf::sample();
  sample.add_texts("texts", {"some", "words"});
  const std::string bytes = sample.bytes();
  for (size_t size = 4; size < bytes.size() - 30; ++size) refused(bytes.substr(0, size), {"truncated"});
}

TEST_F(GgufFileTest, RefusesNumbersBeyondTheLimits) {
  refused([](SampleGguf& f) { f.num_tensors = (1 << 20) + 1; }, {"1048577 tensors, the limit is 1048576"});
  refused([](SampleGguf& f) { f.num_tensors = UINT64_MAX; }, {"18446744073709551615 tensors"});
  refused([](SampleGguf& f) { f.num_tensors = 1 << 20; }, {"the list of tensors", "truncated"});
  refused([](SampleGguf& f) { f.num_metadata = 65537; }, {"65537 metadata values, the limit is 65536"});
  refused([](SampleGguf& f) { f.num_metadata = UINT64_MAX / 14 + 2; }, {"metadata values, the limit is 65536"});
  refused([](SampleGguf& f) { f.num_metadata = 65536; }, {"the metadata", "truncated"});
  const auto array = [](uint32_t type, uint64_t count) { return le<uint32_t>(9) + le(type) + le(count); };
  const auto with = [&](const std::string& value) {
    return [value](SampleGguf& f) { f.metadata.emplace_back("k", value); };
  };
  refused(with(array(0, (1 << 22) + 1)), {"metadata 'k': 4194305 elements, the limit is 4194304"});
  refused(with(array(10, UINT64_MAX / 8 + 2)), {"metadata 'k'", "elements, the limit is"});
  for (uint32_t type : {0, 7, 8, 10}) refused(with(array(type, 1 << 22)), {"metadata 'k'", "truncated"});
  refused(with(array(9, 1)), {"metadata 'k': an array of arrays"});
  refused(with(array(13, 1)), {"metadata 'k': elements of type 13"});
  refused(with(le<uint32_t>(13)), {"metadata 'k': type 13"});
  refused(with(le<uint32_t>(UINT32_MAX)), {"metadata 'k': type 4294967295"});
  refused(with(le<uint32_t>(7) + le<uint8_t>(2)), {"metadata 'k': a bool is 2"});
  refused(with(le<uint32_t>(8) + le<uint64_t>((64 << 20) + 1)),
          {"metadata 'k'", "67108865 bytes, the limit is 67108864"});
  refused(with(le<uint32_t>(8) + le<uint64_t>(UINT64_MAX)), {"metadata 'k'", "18446744073709551615 bytes"});
  refused(with(le<uint32_t>(8) + le<uint64_t>(64 << 20)), {"metadata 'k'", "truncated"});
}

// The arrays of a file that is mostly a hole take no more than 2^24 elements in all.
TEST_F(GgufFileTest, RefusesTooManyElementsInAll) {
  SampleGguf sample;
  for (int i = 0; i < 5; ++i) sample.add_array("k" + std::to_string(i), 0, std::vector<uint8_t>(1 << 22));
  refused(sample.bytes(), {"metadata 'k4': the arrays have more than 16777216 elements"});
  sample.metadata.pop_back();
  EXPECT_EQ(open(sample).integers("k3").size(), size_t{1} << 22);
}

// The limits hold for all headers of a split model together.
TEST_F(GgufFileTest, HeadersShareWhatTheyMayTake) {
  SampleGguf sample = gguf::sample();
  sample.add_array<uint8_t>("k", 0, {1, 2, 3});
  put(path_, sample.bytes());
  const InputFile file(path_);
  const uint64_t bytes = (sample.header().size() + 31) / 32 * 32;  // with the padding
  HeaderAllowance left{2 * bytes + 10, 4, 6};
  Sha256 digest;
  for (int i = 0; i < 2; ++i) EXPECT_EQ(read_header(file, left, digest).tensors.size(), 2u);
  EXPECT_EQ(left.bytes, 10u);
  EXPECT_EQ(left.tensors, 0u);
  EXPECT_EQ(left.elements, 0u);
  const auto refused = [&](HeaderAllowance allowance, const std::string& part) {
    expect_error(ErrorKind::kModel, {part}, [&] { read_header(file, allowance, digest); });
  };
  refused({bytes - 1, 2, 3}, "the headers take more than 512 MiB");
  refused({left.bytes, 2, 3}, "the headers take more than 512 MiB");
  refused({bytes, 1, 3}, "2 tensors, the limit is 1048576");
  refused({bytes, 2, 2}, "the arrays have more than 16777216 elements");
}

TEST_F(GgufFileTest, RefusesBadNames) {
  refused([](SampleGguf& f) { f.add_text("general.architecture", "qwen2"); },
          {"two metadata values have the name 'general.architecture'"});
  refused([](SampleGguf& f) { f.add_f32("a", {1}); }, {"two tensors have the name 'a'"});
  refused([](SampleGguf& f) { f.add_u32("", 1); }, {"the name of a metadata value is empty"});
  refused([](SampleGguf& f) { f.add_f32("", {1}); }, {"the name of a tensor is empty"});
  refused([](SampleGguf& f) { f.add_u32("x\n\x1b[31m", 1); }, {"control character in 'x\?\?[31m'"});
  refused([](SampleGguf& f) { f.add_f32(std::string("x\0", 2), {1}); }, {"control character in 'x?'"});
  refused([](SampleGguf& f) { f.add_u32(std::string(1025, 'k'), 1); }, {"1025 bytes, the limit is 1024"});
  refused([](SampleGguf& f) { f.add_f32(std::string(1025, 'k'), {1}); }, {"1025 bytes, the limit is 1024"});
  SampleGguf longest = sample();
  longest.add_f32(std::string(1024, 'k'), {1});
  EXPECT_EQ(open(longest).tensors().size(), 3u);
}

TEST_F(GgufFileTest, RefusesBadShapes) {
  const auto with = [](std::vector<uint64_t> dimensions, uint32_t type = 0) {
    return [=](SampleGguf& f) {
      f.tensors[1].dimensions = dimensions;
      f.tensors[1].type = type;
    };
  };
  refused(with({1, 1, 1, 1, 1}), {"tensor 'b': 5 dimensions, expected 1 to 4"});
  refused(with({4, 0}), {"tensor 'b': a dimension is 0"});
  refused(with({uint64_t{1} << 63}), {"tensor 'b': a dimension is 9223372036854775808"});
  refused(with({UINT64_MAX}), {"tensor 'b': a dimension is 18446744073709551615"});
  const uint64_t k32 = uint64_t{1} << 32;
  refused(with({k32, k32}), {"tensor 'b': the product of its dimensions overflows"});
  refused(with({4, k32, k32}), {"overflows"});
  refused(with({k32, k32, k32, k32}), {"overflows"});  // the product is 0 modulo 2^64
  refused(with({1, k32, k32, k32}, 8), {"rows of 1 values, expected a multiple of 32 for Q8_0"});
  refused(with({INT64_MAX}), {"overflows"});
  refused(with({INT64_MAX - 31}, 8), {"overflows"});
  refused(with({INT64_MAX / 256 * 256, 1}, 14), {"tensor 'b'", "truncated"});  // 7.5e18 bytes
  refused(with({}, 8), {"tensor 'b': 0 dimensions, expected 1 to 4"});
  refused(with({48}, 8), {"rows of 48 values"});
  refused(with({128}, 12), {"rows of 128 values, expected a multiple of 256 for Q4_K"});
  refused(with({64}, 8), {"tensor 'b': 68 bytes at byte 32 of the data, which have 96 (truncated?)"});
}

TEST_F(GgufFileTest, RefusesBadLayouts) {
  const auto at = [](uint64_t offset) { return [=](SampleGguf& f) { f.tensors[1].offset = offset; }; };
  refused(at(0), {"overlaps the tensor before it"});
  refused(at(40), {"its offset 40 is not a multiple of the alignment 32"});
  refused(at(64), {"truncated"});
  refused(at(UINT64_MAX - 31), {"tensor 'b'", "truncated"});
  refused(
      [](SampleGguf& f) {
        f.tensors[1].offset = 64;
        f.tensors[0].data += std::string(32, '\0');
      },
      {"tensor 'b': hole of 40 bytes before it"});
  refused(
      [](SampleGguf& f) {
        f.tensors[0].offset = 32;
        f.tensors[1].offset = 64;
        f.tensors[1].data += std::string(32, '\0');
      },
      {"tensor 'a': hole of 32 bytes before it"});
  refused(sample().bytes() + std::string(32, '\0'), {"62 bytes after the last tensor"});
  refused(SampleGguf().bytes() + std::string(32, '\0'), {"32 bytes after the last tensor"});
}

TEST_F(GgufFileTest, RefusesOtherAlignments) {
  for (uint32_t alignment : {0u, 1u, 4u, 24u, 33u, 1u << 21, 1u << 31, UINT32_MAX})
    refused([=](SampleGguf& f) { f.add_u32("general.alignment", alignment); },
            {"general.alignment is " + std::to_string(alignment) + ", expected a power of two from 8 to 1048576"});
  refused([=](SampleGguf& f) { f.add_text("general.alignment", "32"); },
          {"general.alignment is not an unsigned integer"});
  refused([=](SampleGguf& f) { f.metadata.emplace_back("general.alignment", le<uint32_t>(5) + le<int32_t>(-32)); },
          {"general.alignment is not an unsigned integer"});
}

// Writes and reads split models.
class SplitGgufTest : public ::testing::Test {
 protected:
  SampleGguf part(uint16_t number, uint16_t count, int32_t num_tensors, const std::vector<std::string>& names) {
    SampleGguf file;
    file.metadata = {{"split.no", le<uint32_t>(2) + le(number)},
                     {"split.count", le<uint32_t>(2) + le(count)},
                     {"split.tensors.count", le<uint32_t>(5) + le(num_tensors)}};
    file.add_u32("number", number);
    for (const std::string& name : names) file.add_f32(name, {4}, name[0]);
    return file;
  }
  fs::path path_of(int number) { return dir_ / ("m-0000" + std::to_string(number) + "-of-00003.gguf"); }
  void put_parts() {
    put(path_of(1), part(0, 3, 3, {}).bytes());  // llama-gguf-split can make a first part without tensors
    put(path_of(2), part(1, 3, 3, {"a", "b"}).bytes());
    put(path_of(3), part(2, 3, 3, {"c"}).bytes());
  }
  void refused(const std::vector<std::string>& parts, int first = 1) {
    expect_error(ErrorKind::kModel, parts, [&] { GgufFile file(path_of(first)); });
  }

  testing::Scratch dir_;
};

TEST_F(SplitGgufTest, ReadsAllParts) {
  put_parts();
  const GgufFile file(path_of(1));
  ASSERT_EQ(file.tensors().size(), 3u);
  EXPECT_EQ(file.files().size(), 3u);
  EXPECT_EQ(file.integer("number", 0, 9), 0);
  for (const auto& [name, tensor] : file.tensors()) {
    EXPECT_EQ(tensor.file, name == "c" ? 2u : 1u);
    EXPECT_EQ(file.file_of(tensor).path(), path_of(name == "c" ? 3 : 2));
    std::string bytes(16, '\0');
    file.read(tensor, 0, std::as_writable_bytes(std::span(bytes)));
    EXPECT_EQ(bytes, std::string(16, name[0]));
  }
  std::string headers = testing::get(path_of(1));
  for (int number : {2, 3})
    headers += testing::get(path_of(number)).substr(0, file.tensor(number == 2 ? "a" : "c").offset);
  EXPECT_EQ(file.header_digest(), sha256_hex(headers));
}

TEST_F(SplitGgufTest, AModelOfOnePartHasAnyName) {
  put(dir_ / "any.gguf", part(0, 1, 1, {"a"}).bytes());
  EXPECT_EQ(GgufFile(dir_ / "any.gguf").tensors().size(), 1u);
}

TEST_F(SplitGgufTest, RefusesPartsThatDoNotBelongTogether) {
  put_parts();
  refused({path_of(2).string(), "part 2 of a split model", "-00001-of-00003.gguf"}, 2);
  put(dir_ / "other.gguf", testing::get(path_of(1)));
  expect_error(ErrorKind::kModel, {"first of 3 parts", "ends with -00001-of-00003.gguf"},
               [&] { GgufFile file(dir_ / "other.gguf"); });
  const auto with = [&](int number, const SampleGguf& file) {
    put_parts();
    put(path_of(number), file.bytes());
  };
  fs::remove(path_of(3));
  refused({path_of(3).string()});
  with(3, part(1, 3, 3, {"c"}));
  refused({path_of(3).string(), "do not agree"});
  with(3, part(2, 4, 3, {"c"}));
  refused({path_of(3).string(), "do not agree"});
  with(3, part(2, 3, 4, {"c"}));
  refused({path_of(3).string(), "do not agree"});
  with(3, SampleGguf());
  refused({path_of(3).string(), "do not agree"});
  with(3, part(2, 3, 3, {"a"}));
  refused({path_of(3).string(), "two tensors have the name 'a'"});
  with(3, part(2, 3, 3, {"c", "d"}));
  refused({path_of(1).string(), "split.tensors.count is 3, the parts have 4 tensors"});
  with(1, part(0, 1001, 3, {}));
  refused({path_of(1).string(), "split.count is 1001, the limit is 1000"});
  SampleGguf text = part(0, 3, 3, {});
  text.metadata[1].second = le<uint32_t>(8) + gguf_string("3");
  with(1, text);
  refused({path_of(1).string(), "split.count: expected an integer"});
  text.metadata[1].second = le<uint32_t>(11) + le<int64_t>(-3);
  with(1, text);
  refused({path_of(1).string(), "split.count: expected an integer"});
}

}  // namespace
}  // namespace specdec::gguf
