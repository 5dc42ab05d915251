// Tests quantised drafts against the formats described in quantise.h, with independent decoders.
#include "deploy/package/quantise.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <set>

#include "tests/package/pair.h"

namespace specdec::deploy {
namespace {

using specdec::testing::contents;
using specdec::testing::expect_error;
using specdec::testing::Pair;
using specdec::testing::put;
using specdec::testing::Scratch;

const std::string kMatrix = "model.layers.0.mlp.down_proj.weight", kStem = "model.layers.0.mlp.down_proj.";

// IEEE half precision. In C++, GCC 12 has _Float16 only on x86.
#ifdef __aarch64__
using Half = __fp16;
#else
using Half = _Float16;
#endif

// A draft model with a single matrix; `values` has shape [rows, columns].
struct Draft {
  Scratch dir;
  Draft(const std::vector<float>& values, int64_t rows, const std::string& dtype = "F32") {
    testing::write_tiny_model(dir / "draft", {.vocab = 16, .hidden = 8});
    const std::vector<float> norm(8, 0.5f);
    std::vector<std::byte> bytes;
    for (const float v : values) {
      const auto bits = std::bit_cast<uint32_t>(v);
      const uint16_t half =
          dtype == "BF16" ? static_cast<uint16_t>(bits >> 16) : std::bit_cast<uint16_t>(static_cast<Half>(v));
      const auto part = dtype == "F32" ? std::as_bytes(std::span(&v, 1)) : std::as_bytes(std::span(&half, 1));
      bytes.insert(bytes.end(), part.begin(), part.end());
    }
    fs::remove(dir / "draft/model.safetensors");
    write_safetensors(dir / "draft/model.safetensors",
                      {{"model.norm.weight", "F32", {8}, std::as_bytes(std::span(norm))},
                       {kMatrix, dtype, {rows, static_cast<int64_t>(values.size()) / rows}, bytes}});
  }
  QuantisedDraft make(const std::string& format) const {
    return quantise_draft(dir / "draft", format, dir / format, {});
  }
};

template <class T>
std::vector<T> tensor(const fs::path& directory, const std::string& name, const std::string& dtype) {
  const SafetensorsDirectory files(directory);
  EXPECT_EQ(files.entry(name).dtype, dtype) << name;
  std::vector<T> out(files.entry(name).bytes / sizeof(T));
  files.read(name, std::as_writable_bytes(std::span(out)));
  return out;
}

// Returns the value of an E4M3 code by the definition of the Open Compute Project.
double e4m3(int code) {
  const int exponent = code >> 3 & 15, mantissa = code & 7;
  return (code & 128 ? -1 : 1) *
         (exponent ? (1 + mantissa / 8.0) * std::pow(2.0, exponent - 7) : mantissa / 8.0 * std::pow(2.0, -6));
}

TEST(Quantise, Fp8KeepsWhatItCanSayAndRoundsTiesToEven) {
  std::vector<float> values;
  std::vector<int> codes;
  for (int code = 0; code < 0x7f; ++code) {  // 0x7f is NaN; the largest value is 448, so the scale is 1
    values.push_back(static_cast<float>(e4m3(code)));
    codes.push_back(code);
    values.push_back(-static_cast<float>(e4m3(code)));
    codes.push_back(code | 128);
    if (code == 0x7e) break;
    values.push_back(static_cast<float>((e4m3(code) + e4m3(code + 1)) / 2));
    codes.push_back(code % 2 ? code + 1 : code);
  }
  const Draft draft(values, 1);
  const QuantisedDraft done = draft.make("fp8");
  const auto got = tensor<uint8_t>(draft.dir / "fp8", kMatrix, "F8_E4M3");
  ASSERT_EQ(got.size(), values.size());
  for (size_t i = 0; i < got.size(); ++i) EXPECT_EQ(got[i], codes[i]) << values[i];
  EXPECT_EQ(tensor<float>(draft.dir / "fp8", kMatrix + "_scale", "F32"), std::vector<float>{1});
  EXPECT_GT(done.relative_error, 0.01);  // values in the middle between two codes cause errors up to 1 / 16
  EXPECT_LT(done.relative_error, 1 / 16.0);
}

std::vector<float> noise(size_t n) {
  std::vector<float> values(n);
  uint32_t state = 12345;
  for (float& v : values) {
    state = state * 1664525 + 1013904223;
    v = (static_cast<float>(state >> 9) / 8388608.0f - 0.5f) * 0.1f;
  }
  return values;
}

TEST(Quantise, Fp8TakesTheNearestCodeInEveryRow) {
  constexpr size_t kRows = 6, kColumns = 40;
  std::vector<float> values = noise(kRows * kColumns);
  for (size_t k = 0; k < kColumns; ++k)
    values[k] = 0, values[kColumns + k] *= 1e-30f, values[2 * kColumns + k] *= 1e30f;
  const Draft draft(values, kRows);
  draft.make("fp8");
  const auto codes = tensor<uint8_t>(draft.dir / "fp8", kMatrix, "F8_E4M3");
  const auto scales = tensor<float>(draft.dir / "fp8", kMatrix + "_scale", "F32");
  for (size_t n = 1; n < kRows; ++n) {
    double largest = 0;
    for (size_t k = 0; k < kColumns; ++k) largest = std::max<double>(largest, std::fabs(values[n * kColumns + k]));
    EXPECT_NEAR(scales[n] / (largest / 448), 1, 1e-6);
    for (size_t k = 0; k < kColumns; ++k) {
      const double wanted = values[n * kColumns + k] / static_cast<double>(scales[n]);
      double nearest = 1e300;
      for (int code = 0; code < 256; ++code)
        if ((code & 127) != 127) nearest = std::min(nearest, std::fabs(e4m3(code) - wanted));
      EXPECT_LE(std::fabs(e4m3(codes[n * kColumns + k]) - wanted), nearest * (1 + 1e-5) + 1e-12) << n << ", " << k;
    }
  }
  for (size_t k = 0; k < kColumns; ++k) EXPECT_EQ(codes[k] & 127, 0);  // the first row is all zeros
  EXPECT_TRUE(std::isfinite(scales[0]) && scales[0] > 0);
}

// Decodes w = scale · (q − 128); each word holds four q along the input dimension. Version 1 of the "gptq" checkpoint
// format stores the zero point minus one.
std::vector<double> unpack_gptq(const fs::path& directory, int64_t rows, int64_t columns, int64_t group) {
  const auto packed = tensor<uint32_t>(directory, kStem + "qweight", "I32"),
             zeros = tensor<uint32_t>(directory, kStem + "qzeros", "I32");
  const auto scales = tensor<Half>(directory, kStem + "scales", "F16");
  const auto of = tensor<int32_t>(directory, kStem + "g_idx", "I32");
  EXPECT_EQ(SafetensorsDirectory(directory).entry(kStem + "qweight").shape, (std::vector<int64_t>{columns / 4, rows}));
  EXPECT_EQ(SafetensorsDirectory(directory).entry(kStem + "qzeros").shape,
            (std::vector<int64_t>{columns / group, rows / 4}));
  EXPECT_EQ(SafetensorsDirectory(directory).entry(kStem + "scales").shape,
            (std::vector<int64_t>{columns / group, rows}));
  std::vector<double> out(static_cast<size_t>(rows * columns));
  for (int64_t n = 0; n < rows; ++n)
    for (int64_t k = 0; k < columns; ++k) {
      const int64_t g = of[static_cast<size_t>(k)];
      EXPECT_EQ(g, k / group);
      const int q = packed[static_cast<size_t>(k / 4 * rows + n)] >> (8 * (k % 4)) & 255,
                zero = (zeros[static_cast<size_t>(g * (rows / 4) + n / 4)] >> (8 * (n % 4)) & 255) + 1;
      out[static_cast<size_t>(n * columns + k)] =
          static_cast<double>(scales[static_cast<size_t>(g * rows + n)]) * (q - zero);
    }
  return out;
}

TEST(Quantise, Int8IsWithinHalfAStep) {
  for (const auto& [columns, group] : std::map<int64_t, int64_t>{{256, 128}, {192, 64}, {96, 32}, {40, 40}}) {
    constexpr int64_t kRows = 8;
    std::vector<float> values = noise(static_cast<size_t>(kRows * columns));
    for (int64_t k = 0; k < columns; ++k) {
      values[static_cast<size_t>(k)] = 0;
      values[static_cast<size_t>(columns + k)] *= 1e-4f;  // makes scales that are subnormal in fp16
    }
    const Draft draft(values, kRows);
    const QuantisedDraft done = draft.make("int8");
    EXPECT_LT(done.relative_error, 0.01);
    EXPECT_LT(done.bytes_after, done.bytes_before);
    EXPECT_EQ(read_json(draft.dir / "int8/config.json")["quantization_config"]["group_size"],
              group == columns ? -1 : group);
    const auto got = unpack_gptq(draft.dir / "int8", kRows, columns, group);
    const auto scales = tensor<Half>(draft.dir / "int8", kStem + "scales", "F16");
    for (int64_t n = 0; n < kRows; ++n)  // no value may be clipped
      for (int64_t k = 0; k < columns; ++k)
        EXPECT_GE(127 * static_cast<double>(scales[static_cast<size_t>(k / group * kRows + n)]),
                  std::fabs(values[static_cast<size_t>(n * columns + k)]));
    double error = 0, size = 0;
    for (int64_t n = 0; n < kRows; ++n)
      for (int64_t k = 0; k < columns; ++k) {
        const double wanted = values[static_cast<size_t>(n * columns + k)],
                     found = got[static_cast<size_t>(n * columns + k)];
        EXPECT_LE(std::fabs(wanted - found),
                  0.5001 * static_cast<double>(scales[static_cast<size_t>(k / group * kRows + n)]))
            << columns << ": " << n << ", " << k;
        error += (wanted - found) * (wanted - found), size += wanted * wanted;
      }
    EXPECT_NEAR(done.relative_error, std::sqrt(error / size), 1e-6);
  }
}

TEST(Quantise, SixteenBitDraftsAreRead) {
  std::vector<float> values = noise(8 * 32);
  for (float& v : values)
    // The values are exact in both bf16 and fp16.
    v = static_cast<float>(static_cast<Half>(std::bit_cast<float>(std::bit_cast<uint32_t>(v) & 0xffff0000u)));
  values[3] = 0x1p-20f;  // subnormal in fp16
  const Draft wide(values, 8), brain(values, 8, "BF16"), half(values, 8, "F16");
  for (const char* format : {"fp8", "int8"}) {
    for (const Draft* d : {&wide, &brain, &half}) d->make(format);
    EXPECT_EQ(contents(brain.dir / format), contents(wide.dir / format));
    EXPECT_EQ(contents(half.dir / format), contents(wide.dir / format));
  }
}

TEST(Quantise, TheRestStaysAndSaysWhatItIs) {
  const Pair pair;
  quantise_draft(pair.dir / "draft", "fp8", pair.dir / "fp8", {});
  const Json config = read_json(pair.dir / "fp8/config.json"), plain = read_json(pair.dir / "draft/config.json");
  EXPECT_EQ(config["quantization_config"]["quant_method"], "compressed-tensors");
  EXPECT_EQ(config["quantization_config"]["format"], "float-quantized");
  EXPECT_EQ(config["quantization_config"]["config_groups"]["group_0"]["weights"]["strategy"], "channel");
  EXPECT_EQ(config["quantization_config"]["config_groups"]["group_0"]["input_activations"]["dynamic"], true);
  EXPECT_EQ(config["vocab_size"], plain["vocab_size"]);
  for (const char* name : {"model.embed_tokens.weight", "model.norm.weight"})
    EXPECT_EQ(tensor<float>(pair.dir / "fp8", name, "F32"), tensor<float>(pair.dir / "draft", name, "F32"));
  EXPECT_EQ(testing::get(pair.dir / "fp8/tokenizer.json"), testing::get(pair.dir / "draft/tokenizer.json"));
  const auto binding = read_binding(pair.dir / "fp8");
  ASSERT_TRUE(binding.has_value());
  EXPECT_EQ(binding->target, fingerprint_model(pair.dir / "target"));
  EXPECT_EQ(binding->training["quantised"]["format"], "fp8");
  EXPECT_EQ(binding->training["steps"], 5);
  quantise_draft(pair.dir / "draft", "fp8", pair.dir / "again", {});
  EXPECT_EQ(contents(pair.dir / "again"), contents(pair.dir / "fp8"));
}

TEST(Quantise, ShardsKeepTheirNames) {
  const Scratch dir;
  testing::write_tiny_model(dir / "draft", {.layers = 3, .vocab = 16, .hidden = 8, .shards = 2});
  quantise_draft(dir / "draft", "int8", dir / "int8", {});
  const SafetensorsDirectory files(dir / "int8");  // throws if the index does not match the weight files
  for (int i = 0; i < 3; ++i)
    EXPECT_TRUE(files.contains("model.layers." + std::to_string(i) + ".mlp.down_proj.qweight"));
  EXPECT_FALSE(files.contains(kMatrix));
}

TEST(Quantise, WhatHasNoSuchFormIsRefused) {
  const auto refused = [](const std::function<void(Json&)>& change, std::vector<std::string> words) {
    const Draft draft(noise(64), 8);
    Json config = read_json(draft.dir / "draft/config.json");
    change(config);
    put(draft.dir / "draft/config.json", config.dump());
    expect_error(ErrorKind::kModel, words, [&] { draft.make("fp8"); });
    EXPECT_FALSE(fs::exists(draft.dir / "fp8"));
  };
  refused([](Json& c) { c["architectures"] = {"LlamaForCausalLMEagle3"}; }, {"EAGLE-3"});
  refused([](Json& c) { c["quantization_config"] = {{"quant_method", "awq"}}; }, {"quantised already"});
  refused([](Json& c) { c["num_local_experts"] = 8; }, {"experts"});
  const Draft odd(noise(30), 5), fine(noise(64), 8);
  expect_error(ErrorKind::kModel, {kMatrix, "5 x 6", "use fp8"}, [&] { odd.make("int8"); });
  EXPECT_NO_THROW(odd.make("fp8"));
  expect_error(ErrorKind::kUsage, {"new or an empty directory"}, [&] { odd.make("fp8"); });
  expect_error(ErrorKind::kUsage, {"int4", "fp8 or int8"}, [&] { fine.make("int4"); });
  std::vector<float> bad = noise(64);
  bad[7] = std::nanf("");
  const Draft broken(bad, 8);
  for (const char* format : {"fp8", "int8"})
    expect_error(ErrorKind::kModel, {kMatrix, "NaN"}, [&] { broken.make(format); });
  EXPECT_FALSE(fs::exists(broken.dir / "fp8"));
}

TEST(Quantise, PackagesCarryVariantsAndTheirReports) {
  const Pair pair;
  PackageOptions options = pair.options();
  options.quantise = {"int8", "fp8"};
  const PackageOutcome plain = create_package(options, 1795262400, {});
  ASSERT_EQ(plain.exit_code, 0) << plain.reason;
  EXPECT_EQ(verify_package(plain.path.string()).exit_code, 0);
  PackageManifest manifest = read_manifest(plain.path);
  ASSERT_EQ(manifest.variants.size(), 2u);
  EXPECT_EQ(manifest.variants[0].format, "fp8");
  EXPECT_TRUE(manifest.variants[0].report.is_null());
  EXPECT_EQ(manifest.variants[0].fingerprint, fingerprint_model(plain.path / "draft-fp8"));
  EXPECT_GT(manifest.variants[1].relative_error, 0);
  EXPECT_NE(testing::get(plain.path / "draft/README.md").find("acceptance not measured"), std::string::npos);
  EXPECT_FALSE(create_package(options, 1795262500, {}).is_new);

  quantise_draft(pair.dir / "draft", "fp8", pair.dir / "draft-fp8", {});
  const auto report = [&](Verdict verdict) {
    put(pair.dir / "fp8.json", to_json(testing::sample_report(fingerprint_model(pair.dir / "target"),
                                                              fingerprint_model(pair.dir / "draft-fp8"), verdict))
                                   .dump());
  };
  options.variant_reports = {pair.dir / "fp8.json"};
  report(Verdict::kPass);
  const PackageOutcome measured = create_package(options, 1795262400, {});
  ASSERT_EQ(measured.exit_code, 0) << measured.reason;
  EXPECT_NE(measured.digest, plain.digest);
  EXPECT_EQ(read_manifest(measured.path).variants[0].report, Json::parse(testing::get(pair.dir / "fp8.json")));
  report(Verdict::kFail);
  const PackageOutcome failed = create_package(options, 1795262400, {});
  EXPECT_EQ(failed.exit_code, 3);
  EXPECT_EQ(failed.verdict, Verdict::kFail);
  options.allow_failed = true;
  EXPECT_TRUE(read_manifest(create_package(options, 1795262400, {}).path).allowed_failed);
  options.quantise = {"int8"};
  expect_error(ErrorKind::kData, {"fp8.json", "no variant"}, [&] { create_package(options, 1795262400, {}); });
  EXPECT_TRUE(contents(pair.dir / "store/tmp").empty());
}

}  // namespace
}  // namespace specdec::deploy
