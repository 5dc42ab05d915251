// Tests that a forward pass allocates only the tensor of its logits if an earlier pass had the same size.
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <atomic>

#include "engine/forward/forward.h"
#include "engine/kernels/cpu/cpu.h"
#include "engine/kernels/team.h"
#include "tests/model/counted_malloc.h"

namespace specdec::model {
namespace {

class Allocations : public testing::TestWithParam<at::ScalarType> {
 protected:
  void SetUp() override {
    if (!SPECDEC_OWN_MALLOC)
      GTEST_SKIP()
          << "allocations are counted by a malloc of this binary's own: needs glibc and no sanitizer that brings one";
    ASSERT_GT(allocations_of([] { ::operator delete(::operator new(100)); }), 0);
  }
};

TEST_P(Allocations, TeamsMakeNone) {
  std::atomic<int> members{0};
  const auto meet = [&] {
    kernels::run_team(2, [&](const kernels::Member& member) { members += 1, member.barrier(); });
  };
  meet();
  EXPECT_EQ(allocations_of(meet), 0);
  EXPECT_EQ(members, 4);
}

// After passes of both sizes have run, a pass of either size must make only the allocations of one tensor, its logits.
TEST_P(Allocations, AWarmPassMakesItsLogitsAndNothingElse) {
  at::empty({5, 90}, at::kFloat);  // the first tensor of a process allocates more
  const int64_t one_tensor = allocations_of([] { at::empty({5, 90}, at::kFloat); });
  for (const bool experts : {false, true}) {
    DecoderConfig c;
    c.model_type = experts ? "qwen3_moe" : "llama";
    c.vocab_size = 90, c.hidden_size = 64, c.intermediate_size = 128, c.num_layers = 3, c.num_heads = 4,
    c.num_kv_heads = 2, c.head_dim = 16;
    c.layers.resize(3);
    c.layers[1].window = 9;
    if (experts)
      c.num_experts = 7, c.experts_per_token = 3, c.expert_intermediate_size = 40,
      c.layers[0].experts = c.layers[2].experts = true;
    Decoder decoder = random_decoder(c, 11, at::kCPU, GetParam());
    pack_matrices(decoder);
    KvCache cache(c, at::kCPU, decoder.config.dtype);
    const std::vector<int32_t> ids(30, 7);
    const auto pass = [&](size_t rows) {
      const SequencePart part{
          .cache = &cache, .tokens = std::span(ids).first(rows), .num_logits = static_cast<int64_t>(rows)};
      forward(decoder, std::span(&part, 1));
      cache.truncate(30);
    };
    pass(30);
    for (const size_t rows : {1, 5}) pass(rows);
    for (const size_t rows : {1, 5})
      EXPECT_EQ(allocations_of([&] { pass(rows); }), one_tensor) << rows << (experts ? " experts" : "");
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, Allocations, testing::Values(at::kFloat, at::kBFloat16, at::kChar),
                         [](const auto& info) { return std::string(c10::toString(info.param)); });

}  // namespace
}  // namespace specdec::model
