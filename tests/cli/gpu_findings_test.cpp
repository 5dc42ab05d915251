#include "cli/gpu_findings.h"

#include <gtest/gtest.h>

namespace specdec::cli {
namespace {

GpuCheck gpu(int index, const std::vector<GpuFault>& faults = {}) {
  return {.index = index,
          .name = "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
          .compute_capability = "9.0",
          .free_bytes = int64_t{9} << 30,
          .total_bytes = int64_t{10} << 30,
          .copy_bytes_per_second = 3.6e11,
          .cases = 200,
          .seconds = 1.25,
          .faults = faults};
}

TEST(GpuFindings, NamesDevicesAsCudaNumbersThem) {
  const auto found = gpu_findings({{gpu(0), gpu(1)}, ""});
  ASSERT_EQ(found.size(), 4u);
  EXPECT_EQ(found[0].name, "gpu");
  EXPECT_EQ(found[0].text,
            "cuda:0 NVIDIA H100 80GB HBM3 MIG 1g.10gb, compute capability 9.0, 9.0 of 10.0 GiB free, copies 360 GB/s "
            "(read and written)");
  EXPECT_EQ(found[1].text, "cuda:0 passes 200 tests of its kernels in 1.2 s");
  EXPECT_TRUE(found[2].text.starts_with("cuda:1 "));
  for (const Finding& f : found) EXPECT_TRUE(f.good) << f.text;
}

TEST(GpuFindings, NamesEachKernelThatComputesWrongResults) {
  const auto found = gpu_findings({{gpu(2, {{"rope", "fp16 5 x 3 x 64", "element 7 of 960 is 0.5, expected 0.25"},
                                            {"sample", "4 x 333, T 1", "tokens, element 1 of 4 is 9, expected 8"},
                                            {"rope", "bf16 5 x 3 x 64", "element 0 of 960 is 1, expected 2"}})},
                                   ""});
  ASSERT_EQ(found.size(), 3u);
  EXPECT_TRUE(found[0].good);
  EXPECT_FALSE(found[1].good);
  EXPECT_EQ(found[1].text,
            "cuda:2 computes wrong results: rope, fp16 5 x 3 x 64: element 7 of 960 is 0.5, expected 0.25; 2 of its "
            "tests fail");
  EXPECT_FALSE(found[2].good);
  EXPECT_NE(found[2].text.find("sample, 4 x 333, T 1: tokens, element 1 of 4"), std::string::npos) << found[2].text;
}

TEST(GpuFindings, WithoutAGpuModelsRunOnTheCpu) {
  const auto found = gpu_findings({{}, "no NVIDIA driver is loaded"});
  ASSERT_EQ(found.size(), 1u);
  EXPECT_TRUE(found[0].good);
  EXPECT_EQ(found[0].text, "no NVIDIA driver is loaded: models run on the CPU");
}

TEST(EngineFindings, TellAnEngineThatDoesNotStartFromAGpuThatFails) {
  std::vector<GpuCheck> gpus;
  auto found = engine_findings("/e", 0, json_of(GpuChecks{{gpu(0)}, ""}).dump(), gpus);
  ASSERT_EQ(found.size(), 3u);
  EXPECT_EQ(found[0].text, "/e starts");
  EXPECT_EQ(gpus.size(), 1u);

  found = engine_findings("/e", 8, R"({"message": "the GPU failed", "exit_code": 8})", gpus);
  ASSERT_EQ(found.size(), 2u);
  EXPECT_TRUE(found[0].good);
  EXPECT_FALSE(found[1].good);
  EXPECT_EQ(found[1].text, "the GPU failed");
  EXPECT_TRUE(gpus.empty());

  found = engine_findings("/e", 127, "", gpus);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_FALSE(found[0].good);
  EXPECT_NE(found[0].text.find("does not start"), std::string::npos);
  found = engine_findings("/e", 139, "", gpus);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_FALSE(found[0].good);
  EXPECT_NE(found[0].text.find("signal 11"), std::string::npos);
  const Finding late = late_finding("/e", 300);
  EXPECT_FALSE(late.good);
  EXPECT_NE(late.text.find("had not ended after 300 s"), std::string::npos) << late.text;
}

}  // namespace
}  // namespace specdec::cli
