#include "base/safetensors.h"

#include <sys/resource.h>

#include "base/philox.h"
#include "base/safetensors_writer.h"
#include "tests/base/scratch.h"

namespace specdec {
namespace {

using testing::expect_error;
using testing::put;

std::string with_length(uint64_t length, const std::string& rest) {
  std::string bytes(8, '\0');
  for (size_t i = 0; i < 8; ++i) bytes[i] = static_cast<char>(length >> (8 * i));
  return bytes + rest;
}
std::string file_of(const std::string& header, size_t data_bytes) {
  return with_length(header.size(), header + std::string(data_bytes, 'w'));
}
std::string tensor(const std::string& name, const std::string& body) { return "{\"" + name + "\":{" + body + "}}"; }
std::string entry(const std::string& name, int begin, int end) {
  return "\"" + name + "\":{\"dtype\":\"U8\",\"shape\":[" + std::to_string(end - begin) + "],\"data_offsets\":[" +
         std::to_string(begin) + "," + std::to_string(end) + "]}";
}

TEST(Safetensors, RoundTripOfEveryDtypeAndShape) {
  const testing::Scratch dir;
  std::vector<std::byte> data(4096);
  for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<std::byte>(i * 31);
  std::vector<TensorToWrite> tensors;
  for (const char* dtype : {"F64", "F32", "F16", "BF16", "I64", "I32", "I16", "I8", "U64", "U32", "U16", "U8", "BOOL",
                            "F8_E4M3", "F8_E5M2"})
    tensors.push_back({std::string("t.") + dtype,
                       dtype,
                       {3, 5},
                       std::span<const std::byte>(data).first(15u * static_cast<size_t>(dtype_bytes(dtype)))});
  tensors.push_back({"scalar", "F32", {}, std::span<const std::byte>(data).first(4)});
  tensors.push_back({"empty", "F32", {0, 7}, {}});
  tensors.push_back({"größe", "U8", {1, 1, 1, 1, 1, 1, 1, 2}, std::span<const std::byte>(data).first(2)});
  write_safetensors(dir / "m.safetensors", tensors);
  const SafetensorsFile file(dir / "m.safetensors");
  EXPECT_EQ(file.metadata(), (std::map<std::string, std::string>{{"format", "pt"}}));
  ASSERT_EQ(file.tensors().size(), tensors.size());
  for (const TensorToWrite& t : tensors) {
    const TensorEntry& e = file.tensors().at(t.name);
    EXPECT_EQ(e.dtype, t.dtype);
    EXPECT_EQ(e.shape, t.shape);
    EXPECT_EQ(e.offset % static_cast<uint64_t>(dtype_bytes(t.dtype)), 0u) << t.name;
    std::vector<std::byte> out(e.bytes);
    file.read(e, out);
    EXPECT_TRUE(std::equal(out.begin(), out.end(), t.data.begin(), t.data.end())) << t.name;
  }
  const std::string bytes = testing::get(dir / "m.safetensors");
  EXPECT_EQ(static_cast<unsigned char>(bytes[0]) % 8, 0) << "the data starts at a multiple of 8";
}

TEST(Safetensors, EveryRuleFires) {
  const testing::Scratch dir;
  const std::string ok = "\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]";
  std::string deep = "{\"a\":{\"dtype\":\"U8\",\"shape\":", long_name(1025, 'n');
  deep += std::string(100'000, '[');
  const std::vector<std::pair<std::string, std::string>> bad = {
      {"", "truncated"},
      {"1234567", "truncated"},
      {with_length(0, "{}"), "header length 0"},
      {with_length(1ull << 63, "{}"), "header length"},
      {with_length(~0ull, "{}"), "header length"},
      {with_length(100'000'001, "{}"), "header length"},
      {with_length(3, "{}"), "truncated"},
      {file_of("[]", 0), "does not start with '{'"},
      {file_of(" {}", 0), "does not start with '{'"},
      {std::string("\x80\x02}q\x01", 5), "a pickle/zip checkpoint: convert to safetensors"},
      {"PK\x03\x04 and more", "a pickle/zip checkpoint: convert to safetensors"},
      {"GGUF....", "GGUF"},
      {"version https://git-lfs.github.com/spec/v1\n", "Git LFS"},
      {file_of("{\"a\":\"\xff\"}", 0), "header"},
      {file_of("{", 0), "not valid JSON"},
      {file_of("{} x", 0), "not valid JSON"},
      {file_of(std::string("{}\0", 3), 0), "NUL"},
      {file_of(deep, 4), "unexpected array"},
      {file_of("{\"a\":[]}", 0), "unexpected array"},
      {file_of("{\"a\":3}", 0), "unexpected number"},
      {file_of("{\"a\":null}", 0), "unexpected null"},
      {file_of("{" + entry("a", 0, 4) + "," + entry("a", 4, 8) + "}", 8), "duplicate tensor name"},
      {file_of("{" + entry(long_name, 0, 4) + "}", 4), "1025 bytes"},
      {file_of(tensor("a\\u0000b", ok), 4), "control character"},
      {file_of(tensor("a", "\"dtype\":\"U9\",\"shape\":[4],\"data_offsets\":[0,4]"), 4), "unknown dtype 'U9'"},
      {file_of(tensor("a", "\"dtype\":7,\"shape\":[4],\"data_offsets\":[0,4]"), 4), "unexpected number"},
      {file_of(tensor("a", "\"shape\":[4],\"data_offsets\":[0,4]"), 4), "needs dtype, shape and data_offsets"},
      {file_of(tensor("a", ok + ",\"x\":1"), 4), "unexpected key 'x'"},
      {file_of(tensor("a", ok + ",\"dtype\":\"U8\""), 4), "duplicate key dtype"},
      {file_of(tensor("a", "\"dtype\":\"U8\",\"shape\":[-4],\"data_offsets\":[0,4]"), 4), "found -4"},
      {file_of(tensor("a", "\"dtype\":\"U8\",\"shape\":[4.0],\"data_offsets\":[0,4]"), 4), "found 4.0"},
      {file_of(tensor("a", "\"dtype\":\"U8\",\"shape\":\"4\",\"data_offsets\":[0,4]"), 4), "expected an array"},
      {file_of(tensor("a", "\"dtype\":\"U8\",\"shape\":[9223372036854775808],\"data_offsets\":[0,4]"), 4),
       "out of range"},
      {file_of(tensor("a", "\"dtype\":\"U8\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,0]"), 0),
       "overflows"},
      // The product of the dimensions wraps to 4 in 64 bits. Such an overflow was once reported for safetensors-cpp.
      {file_of(tensor("a", "\"dtype\":\"U8\",\"shape\":[4194305,4194305,211106198978564],\"data_offsets\":[0,4]"), 4),
       "overflows"},
      {file_of(tensor("a", "\"dtype\":\"U8\",\"shape\":[1,1,1,1,1,1,1,1,4],\"data_offsets\":[0,4]"), 4),
       "more than 8 dimensions"},
      {file_of(tensor("a", "\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[4,0]"), 4), "end is before the begin"},
      {file_of(tensor("a", "\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0]"), 4), "expected 2 numbers"},
      {file_of(tensor("a", "\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4,8]"), 4), "expected 2 numbers"},
      {file_of(tensor("a", "\"dtype\":\"U8\",\"shape\":[5],\"data_offsets\":[0,4]"), 4),
       "span 4 bytes, dtype and shape need 5"},
      {file_of(tensor("a", "\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,3]"), 3), "span 3 bytes"},
      {file_of("{" + entry("a", 0, 4) + "," + entry("b", 2, 6) + "}", 6), "'b': overlaps"},
      {file_of("{" + entry("a", 0, 4) + "," + entry("b", 6, 8) + "}", 8), "hole of 2 bytes"},
      {file_of("{" + entry("a", 1, 4) + "}", 4), "hole of 1 bytes"},
      {file_of("{" + entry("a", 0, 5) + "}", 4), "truncated"},
      {file_of("{" + entry("a", 0, 4) + "}", 5), "1 trailing bytes"},
      {file_of("{}", 1), "1 trailing bytes"},
      {file_of("{\"__metadata__\":{\"a\":1}}", 0), "unexpected number"},
      {file_of("{\"__metadata__\":[]}", 0), "unexpected array"},
      {file_of("{\"__metadata__\":{\"a\":\"1\",\"a\":\"2\"}}", 0), "duplicate key in __metadata__"},
      {file_of("{\"__metadata__\":{},\"__metadata__\":{}}", 0), "duplicate __metadata__"},
      {file_of("{\"a\":{\"dtype\":{}}}", 0), "unexpected object"},
  };
  for (const auto& [bytes, reason] : bad) {
    put(dir / "bad.safetensors", bytes);
    expect_error(ErrorKind::kModel, {"bad.safetensors", reason},
                 [&] { SafetensorsFile file(dir / "bad.safetensors"); });
  }
  EXPECT_NO_THROW((put(dir / "ok.safetensors", file_of("{" + entry("a", 0, 4) + "," + entry("b", 4, 4) + "}  ", 4)),
                   SafetensorsFile(dir / "ok.safetensors")));
}

TEST(Safetensors, MoreThanAMillionTensorsAreRefused) {
  const testing::Scratch dir;
  std::string header = "{";
  for (int i = 0; i <= 1'000'000; ++i)
    header += (i ? ",\"" : "\"") + std::to_string(i) + "\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}";
  put(dir / "many.safetensors", file_of(header + "}", 0));
  expect_error(ErrorKind::kModel, {"more than 1000000 tensors"},
               [&] { SafetensorsFile file(dir / "many.safetensors"); });
}

TEST(Safetensors, HugeSparseFileIsRefusedWithoutReadingIt) {
  const testing::Scratch dir;
  put(dir / "huge.safetensors", file_of("{" + entry("a", 0, 4) + "}", 4));
  fs::resize_file(dir / "huge.safetensors", uint64_t{1} << 40);
  expect_error(ErrorKind::kModel, {"trailing bytes"}, [&] { SafetensorsFile file(dir / "huge.safetensors"); });
}

// A valid file with flipped bits, a truncated end or duplicated parts either loads or is refused with an Error.
TEST(Safetensors, MutatedFilesLoadOrAreRefused) {
  const testing::Scratch dir;
  testing::write_tiny_model(dir / "m", {.vocab = 4, .hidden = 2});
  const std::string good = testing::get(dir / "m" / "model.safetensors");
  PhiloxStream random(1, 1);
  int refused = 0;
  constexpr int kRuns = 3000;
  for (int run = 0; run < kRuns; ++run) {
    std::string bytes = good;
    for (uint64_t n = 1 + random.below(3); n > 0; --n) {
      const size_t at = random.below(std::min<size_t>(bytes.size(), 400));
      const uint64_t how = random.below(4);
      if (how == 0) bytes[at] = static_cast<char>(bytes[at] ^ (1 << random.below(8)));
      if (how == 1) bytes[at] = static_cast<char>(random.below(256));
      if (how == 2) bytes.resize(at + 1);
      if (how == 3) bytes.insert(at, bytes.substr(at, random.below(20)));
    }
    put(dir / "x.safetensors", bytes);
    try {
      const SafetensorsFile file(dir / "x.safetensors");
      for (const auto& [name, e] : file.tensors()) {
        std::vector<std::byte> out(e.bytes);
        file.read(e, out);
      }
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::kModel) << e.what();
      ++refused;
    }
  }
  EXPECT_GT(refused, kRuns / 2);
  EXPECT_LT(refused, kRuns);
}

TEST(SafetensorsDirectory, ReadsShardsLikeOneFile) {
  const testing::Scratch dir;
  testing::write_tiny_model(dir / "one", {.layers = 3});
  testing::write_tiny_model(dir / "three", {.layers = 3, .shards = 3});
  const SafetensorsDirectory one(dir / "one"), three(dir / "three");
  ASSERT_EQ(one.names(), three.names());
  for (const std::string& name : one.names()) {
    std::vector<std::byte> a(one.entry(name).bytes), b(three.entry(name).bytes);
    one.read(name, a);
    three.read(name, b);
    EXPECT_EQ(a, b) << name;
    EXPECT_EQ(one.entry(name).shape, three.entry(name).shape);
  }
  EXPECT_TRUE(one.contains("model.norm.weight"));
  EXPECT_FALSE(one.contains("lm_head.weight"));
  expect_error(ErrorKind::kModel, {"lm_head.weight", "missing"}, [&] { one.entry("lm_head.weight"); });
}

TEST(SafetensorsDirectory, EveryRuleFires) {
  const testing::Scratch dir;
  const auto refuse = [&](const std::string& reason) {
    expect_error(ErrorKind::kModel, {reason}, [&] { SafetensorsDirectory tensors(dir.root()); });
  };
  refuse("no model.safetensors");
  put(dir / "pytorch_model.bin", "x");
  refuse("pytorch_model.bin is a pickle/zip checkpoint: convert to safetensors");
  const auto index = [&](const std::string& map) {
    put(dir / "model.safetensors.index.json", "{\"weight_map\":" + map + "}");
  };
  put(dir / "a.safetensors", file_of("{" + entry("a", 0, 4) + "," + entry("x", 4, 8) + "}", 8));
  put(dir / "b.safetensors", file_of("{" + entry("b", 0, 4) + "," + entry("x", 4, 8) + "}", 8));
  for (const char* name :
       {"../a.safetensors", "/etc/a.safetensors", "sub/a.safetensors", "..safetensors", "a.bin", ""}) {
    index("{\"a\":\"" + std::string(name) + "\"}");
    refuse("expected the name of a .safetensors file");
  }
  index("{\"a\":7}");
  refuse("expected a file name");
  index("[]");
  refuse("weight_map");
  index("{\"a\":\"c.safetensors\"}");
  refuse("c.safetensors: cannot open");
  index("{\"a\":\"a.safetensors\"}");
  refuse("'x' is not in");
  index("{\"a\":\"a.safetensors\",\"b\":\"b.safetensors\",\"x\":\"a.safetensors\"}");
  refuse("'x' belongs in another shard");
  put(dir / "b.safetensors", file_of("{" + entry("b", 0, 4) + "}", 4));
  EXPECT_NO_THROW(SafetensorsDirectory(dir.root()));
  index("{\"a\":\"a.safetensors\",\"b\":\"b.safetensors\",\"x\":\"a.safetensors\",\"y\":\"b.safetensors\"}");
  refuse("'y' is missing");
}

TEST(Safetensors, WriterRefusesWhatItCannotWrite) {
  const testing::Scratch dir;
  const std::vector<std::byte> data(4);
  const auto write = [&](std::vector<TensorToWrite> tensors) {
    expect_error(ErrorKind::kInternal, {"cannot be written"}, [&] { write_safetensors(dir / "w", tensors); });
    EXPECT_FALSE(fs::exists(dir / "w"));
  };
  write({{"a", "F32", {2}, data}});
  write({{"a", "XX", {4}, data}});
  write({{"a", "U8", {4}, data}, {"a", "U8", {4}, data}});
  write({{"", "U8", {4}, data}});
}

TEST(Safetensors, ValuesMayComeInPieces) {
  const testing::Scratch dir;
  const std::string bytes = "ab12345678";
  const auto values = std::as_bytes(std::span(bytes));
  write_safetensors(dir / "whole", {{"b", "U8", {2}, values.first(2)}, {"a", "F32", {2}, values.last(8)}});
  SafetensorsWriter writer(dir / "pieces", {{"b", "U8", {2}}, {"a", "F32", {2}}});
  EXPECT_EQ(writer.order()[0].name, "a");
  writer.write(values.subspan(2, 3));
  writer.write(values.subspan(5));
  writer.write(values.first(2));
  expect_error(ErrorKind::kInternal, {"more values"}, [&] { writer.write(values.first(1)); });
  writer.finish();
  EXPECT_EQ(testing::get(dir / "whole"), testing::get(dir / "pieces"));
  {
    SafetensorsWriter early(dir / "early", {{"a", "U8", {1}}});
    expect_error(ErrorKind::kInternal, {"fewer values"}, [&] { early.finish(); });
  }
  EXPECT_FALSE(fs::exists(dir / "early")) << "a file that is not whole is removed";
}

TEST(Safetensors, HeaderLengthsThatBeginAsAPickle) {
  const testing::Scratch dir;
  std::set<size_t> lengths;
  for (size_t n = 0; n < 1500; n += 8) {
    write_safetensors(dir / "x.safetensors", {{"w", "U8", {0}, {}}}, {{"format", "pt"}, {"pad", std::string(n, 'x')}});
    uint64_t length = 0;
    std::memcpy(&length, testing::get(dir / "x.safetensors").data(), 8);
    lengths.insert(length);
    EXPECT_NO_THROW(SafetensorsFile(dir / "x.safetensors")) << length;
  }
  EXPECT_TRUE(lengths.count(0x0280) && lengths.count(0x0580));
}

}  // namespace
}  // namespace specdec
