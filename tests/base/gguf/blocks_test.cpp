#include "base/gguf/blocks.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <set>
#include <vector>

#include "base/base64.h"
#include "base/file.h"
#include "base/json.h"
#include "base/small_float.h"
#include "tests/base/scratch.h"
#include "tests/source_folder.h"

namespace specdec::gguf {
namespace {

std::vector<std::byte> from_hex(const std::string& text) {
  std::vector<std::byte> bytes;
  for (size_t i = 0; i < text.size(); i += 2)
    bytes.push_back(static_cast<std::byte>(std::stoi(text.substr(i, 2), nullptr, 16)));
  return bytes;
}
template <class T>
std::string base64_of(const std::vector<T>& values) {
  return base64({reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)});
}
Json golden(const char* part) {
  return Json::parse(read_file(fs::path(source_folder()) / "tests/base/gguf/golden/blocks.json"))[part];
}
const TensorType& type_of(std::string_view name) {
  const TensorType* type = find_type(name);
  if (!type) throw Error(ErrorKind::kInternal, std::string(name));
  return *type;
}
std::vector<std::byte> quantised(std::string_view name, const std::vector<float>& values) {
  const TensorType& type = type_of(name);
  std::vector<std::byte> bytes(values.size() / static_cast<size_t>(type.block_values) *
                               static_cast<size_t>(type.block_bytes));
  quantise(type, values, bytes);
  return bytes;
}

// Every bit equals what gguf-py computes (blocks_golden.py).
TEST(GgufBlocks, DequantiseEqualsGgufPy) {
  std::set<std::string> types;
  for (const Json& c : golden("dequantise")) {
    const TensorType& type = type_of(c["type"].get<std::string>());
    const auto bytes = from_hex(c["bytes"]);
    std::vector<float> values(bytes.size() / static_cast<size_t>(type.block_bytes) *
                              static_cast<size_t>(type.block_values));
    dequantise(type, bytes, values);
    EXPECT_EQ(base64_of(values), c["values"].get<std::string>()) << type.name << ", case " << types.size();
    types.insert(type.name);
  }
  EXPECT_EQ(types.size(), 11u);
}

TEST(GgufBlocks, QuantiseEqualsGgufPy) {
  std::set<std::string> types;
  for (const Json& c : golden("quantise")) {
    const auto raw = from_hex(c["values"]);
    std::vector<float> values(raw.size() / 4);
    std::memcpy(values.data(), raw.data(), raw.size());
    EXPECT_EQ(base64_of(quantised(c["type"].get<std::string>(), values)), c["bytes"].get<std::string>()) << c["type"];
    types.insert(c["type"]);
  }
  EXPECT_EQ(types.size(), 5u);
}

// The scale underflows so far that its inverse is infinite. The block still stands for zeros.
TEST(GgufBlocks, QuantisesTheSmallestNumbersToZero) {
  for (const char* name : {"Q8_0", "Q4_0"}) {
    std::vector<float> values(32, 0.0f), back(32, 1.0f);
    values[5] = std::numeric_limits<float>::denorm_min();
    values[6] = -40 * values[5];
    dequantise(type_of(name), quantised(name, values), back);
    for (float x : back) EXPECT_EQ(x, 0.0f) << name;
  }
}

TEST(GgufBlocks, QuantiseRefusesWhatDoesNotFit) {
  const auto with = [](float x) {
    std::vector<float> values(32, 0.25f);
    values[7] = x;
    return values;
  };
  for (const char* name : {"F32", "F16", "BF16", "Q8_0", "Q4_0"})
    for (float x : {INFINITY, -INFINITY, std::numeric_limits<float>::quiet_NaN()})
      testing::expect_error(ErrorKind::kModel, {"value 7", name}, [&] { quantised(name, with(x)); });
  // fp16 rounds 65520 to infinity, and the scales are fp16.
  const std::vector<std::pair<const char*, float>> ends = {
      {"F16", 65520.0f}, {"Q8_0", 127 * 65520.0f}, {"Q4_0", 8 * 65520.0f}};
  for (const auto& [name, end] : ends) {
    testing::expect_error(ErrorKind::kModel, {"value 7", name}, [&] { quantised(name, with(-end)); });
    std::vector<float> back(32);
    dequantise(type_of(name), quantised(name, with(-std::nextafterf(end, 0))), back);
    EXPECT_TRUE(std::isfinite(back[7])) << name;
  }
  testing::expect_error(ErrorKind::kModel, {"value 7", "BF16"},
                        [&] { quantised("BF16", with(std::numeric_limits<float>::max())); });
}

TEST(GgufBlocks, RefusesOtherTypesAndSizes) {
  for (const char* name : {"Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K"})
    testing::expect_error(ErrorKind::kInternal, {name}, [&] { quantised(name, std::vector<float>(256)); });
  std::vector<std::byte> bytes(34);
  std::vector<float> values(32);
  const std::span all(values);
  testing::expect_error(ErrorKind::kInternal, {"Q8_0"}, [&] { dequantise(type_of("Q8_0"), bytes, all.first(31)); });
  testing::expect_error(ErrorKind::kInternal, {"Q8_0"}, [&] { dequantise(type_of("Q8_0"), bytes, all.first(0)); });
  testing::expect_error(ErrorKind::kInternal, {"Q8_0"},
                        [&] { dequantise(type_of("Q8_0"), std::span(bytes).first(33), all); });
  testing::expect_error(ErrorKind::kInternal, {"Q8_0"}, [&] { quantise(type_of("Q8_0"), all.first(16), bytes); });
}

TEST(GgufBlocks, NumbersOf16BitsSurviveTheWayThroughFp32) {
  for (uint32_t code = 0; code < 65536; ++code) {
    const auto half = static_cast<uint16_t>(code);
    const int exponent = half >> 10 & 31, mantissa = half & 1023;
    const float sign = half & 0x8000 ? -1.0f : 1.0f, x = fp16_to_float(half), y = bf16_to_float(half);
    if (exponent == 31) {
      EXPECT_EQ(std::isnan(x), mantissa != 0);
      EXPECT_EQ(std::isinf(x), mantissa == 0);
    } else {
      const float expected = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -24)
                                           : std::ldexp(static_cast<float>(1024 + mantissa), exponent - 25);
      EXPECT_EQ(std::bit_cast<uint32_t>(x), std::bit_cast<uint32_t>(sign * expected)) << code;
    }
    EXPECT_TRUE(std::isnan(x) ? std::isnan(fp16_to_float(float_to_fp16(x))) : float_to_fp16(x) == half) << code;
    EXPECT_TRUE(std::isnan(y) ? std::isnan(bf16_to_float(float_to_bf16(y))) : float_to_bf16(y) == half) << code;
  }
}

}  // namespace
}  // namespace specdec::gguf
