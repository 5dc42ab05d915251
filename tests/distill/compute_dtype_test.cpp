#include "distill/run/compute_dtype.h"

#include <gtest/gtest.h>

#include "tests/distill/toy.h"

namespace specdec::distill {
namespace {

using namespace specdec::testing;

model::DecoderConfig in(at::ScalarType dtype) {
  model::DecoderConfig config = toy_config(2);
  config.dtype = dtype;
  return config;
}

std::string chosen(const std::string& flag, at::ScalarType target, at::ScalarType draft, const CpuFeatures& cpu,
                   at::Device device = at::kCPU) {
  const model::DecoderConfig config = in(target);
  const ComputeDtype choice = choose_compute_dtype(flag, &config, in(draft), device, cpu);
  EXPECT_FALSE(choice.reason.empty());
  return choice.flag;
}

TEST(ComputeDtype, ACpuComputesInWhatItMultipliesFast) {
  const CpuFeatures avx2{.avx2 = true}, avx512{.avx2 = true, .avx512 = true},
      bf16{.avx2 = true, .avx512 = true, .avx512_bf16 = true}, amx{.amx_bf16 = true};
  for (const CpuFeatures& cpu : {CpuFeatures(), avx2, avx512}) {
    EXPECT_EQ(chosen("auto", at::kBFloat16, at::kBFloat16, cpu), "fp32") << cpu.text();
    EXPECT_EQ(chosen("auto", at::kHalf, at::kHalf, cpu), "fp32") << cpu.text();
    EXPECT_EQ(chosen("bf16", at::kBFloat16, at::kBFloat16, cpu), "bf16") << "a flag always wins";
  }
  for (const CpuFeatures& cpu : {bf16, amx}) {
    EXPECT_EQ(chosen("auto", at::kBFloat16, at::kBFloat16, cpu), "bf16") << cpu.text();
    EXPECT_EQ(chosen("auto", at::kHalf, at::kHalf, cpu), "fp32") << "no CPU of these multiplies fp16";
    EXPECT_EQ(chosen("auto", at::kFloat, at::kFloat, cpu), "fp32") << "nothing is narrowed";
    EXPECT_EQ(chosen("auto", at::kBFloat16, at::kFloat, cpu), "fp32") << "nothing is narrowed";
    EXPECT_EQ(chosen("fp32", at::kBFloat16, at::kBFloat16, cpu), "fp32");
  }
}

TEST(ComputeDtype, AGpuKeepsTheCheckpoints) {
  const at::Device gpu(at::kCUDA, 0);
  EXPECT_EQ(chosen("auto", at::kBFloat16, at::kBFloat16, {}, gpu), "bf16");
  EXPECT_EQ(chosen("auto", at::kHalf, at::kHalf, {}, gpu), "fp16");
  EXPECT_EQ(chosen("auto", at::kBFloat16, at::kFloat, {}, gpu), "auto") << "each its own";
  EXPECT_EQ(chosen("fp32", at::kHalf, at::kHalf, {}, gpu), "fp32");
}

TEST(ComputeDtype, TheDraftIsWrittenInTheCheckpointsDtype) {
  EXPECT_EQ(published_dtype(at::kFloat, at::kBFloat16), at::kBFloat16);
  EXPECT_EQ(published_dtype(at::kFloat, at::kFloat), at::kFloat);
  EXPECT_EQ(published_dtype(at::kBFloat16, at::kBFloat16), at::kBFloat16);
  EXPECT_EQ(published_dtype(at::kBFloat16, at::kFloat), at::kBFloat16) << "--dtype bf16 has narrowed it";
}

TEST(ComputeDtype, WhatOneDnnMayNotUseDoesNotCount) {
  const CpuFeatures all{.avx2 = true, .avx512 = true, .avx512_bf16 = true, .amx_bf16 = true};
  const auto left = [&](const char* isa) { return limited_features(all, isa).text(); };
  EXPECT_EQ(left("AVX"), "none of AVX2, AVX-512 and AMX");
  EXPECT_EQ(left("avx2"), "AVX2");
  EXPECT_EQ(left("AVX2_VNNI_2"), "AVX2");
  EXPECT_EQ(left("AVX512_CORE_VNNI"), "AVX2, AVX-512");
  EXPECT_EQ(left("AVX512_CORE_BF16"), "AVX2, AVX-512, AVX-512 BF16");
  for (const char* isa : {"AVX512_CORE_AMX", "AVX10_1_512_AMX_FP16", "DEFAULT", "ALL", "", "nonsense"})
    EXPECT_EQ(left(isa), all.text()) << isa;
  EXPECT_EQ(chosen("auto", at::kBFloat16, at::kBFloat16, limited_features(all, "AVX2")), "fp32");
}

TEST(ComputeDtype, TheFeaturesHaveNames) {
  EXPECT_EQ((CpuFeatures{.avx2 = true, .avx512 = true, .avx512_bf16 = true}).text(), "AVX2, AVX-512, AVX-512 BF16");
  EXPECT_EQ(CpuFeatures().text(), "none of AVX2, AVX-512 and AMX");
}

}  // namespace
}  // namespace specdec::distill
