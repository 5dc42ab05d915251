// Tests the memory plan and the warnings before the first step of a run.
#include "distill/run/setup.h"

#include <gtest/gtest.h>

#include "base/log.h"
#include "tests/distill/toy.h"
#include "tests/parallel/rank_threads.h"

namespace specdec::distill {
namespace {

using namespace specdec::testing;

Setup small_setup(const fs::path& out, const parallel::Ranks& ranks) {
  Setup s;
  s.options.out = out.string();
  s.options.batch_tokens = 16;
  s.options.device.dtype = "fp32";
  s.spec.kind = "config";
  s.ce = true;
  s.ranks = &ranks;
  return s;
}

// Returns a configuration with about `parameters` parameters.
model::DecoderConfig config_of(int64_t parameters) {
  model::DecoderConfig config = toy_config(16);
  config.hidden_size = 1024;
  config.intermediate_size = parameters / (3 * config.num_layers * config.hidden_size);
  return config;
}

TEST(Setup, TheMemoryPlanCountsTheShareOfTheOptimizer) {
  const Scratch scratch;
  const auto errors = as_ranks(3, [&](const parallel::Ranks& ranks) {
    distill::Setup s = small_setup(scratch.root(), ranks);
    const model::DecoderConfig config = config_of(int64_t{1} << 22);
    const int64_t parameters = model::num_parameters(config), share = (parameters + 2) / 3;
    const auto draft_bytes = [&](const char* dtype, bool shares) {
      s.options.device.dtype = dtype;
      return memory_plan(s, config, shares).draft_bytes;
    };
    // Each rank has all weights and all gradients. The two moments and, for 16-bit weights, the master copies are
    // divided among the ranks.
    EXPECT_EQ(draft_bytes("fp32", false), 16 * parameters);
    EXPECT_EQ(draft_bytes("fp32", true), 8 * parameters + 8 * share);
    EXPECT_EQ(draft_bytes("bf16", false), 18 * parameters);
    EXPECT_EQ(draft_bytes("bf16", true), 6 * parameters + 12 * share);
    plan_memory(s, config);
    EXPECT_FALSE(s.shares_optimizer) << "there is room for all of it";
    s.options.shard_optimizer = ranks.rank() == 1;
    plan_memory(s, config);
    EXPECT_TRUE(s.shares_optimizer) << "all ranks do what one was asked for";
  });
  EXPECT_EQ(errors, std::vector<std::string>(3, ""));
}

TEST(Setup, TheOptimizerIsSharedWhereMemoryDoesNotHoldAllOfIt) {
  const Scratch scratch;
  bool shared = false;
  // Tries several times, because the free memory can change between choosing the model's size and planning.
  for (int tries = 0; tries < 5 && !shared; ++tries) {
    const int64_t available =
        memory_plan(small_setup(scratch.root(), parallel::Ranks::alone()), config_of(1 << 22), false).available_bytes;
    // With available / 14 parameters, 16 bytes per parameter (not shared) do not fit into memory, 12 bytes (shared) do.
    const model::DecoderConfig config = config_of(available / 14);
    as_ranks(2, [&](const parallel::Ranks& ranks) {
      distill::Setup s = small_setup(scratch.root(), ranks);
      try {
        plan_memory(s, config);
      } catch (const Error& e) {
        // The other kind, kIo, means that the disk is too small for checkpoints. That does not matter here.
        if (e.kind() == ErrorKind::kDevice) return;
      }
      if (ranks.rank() == 1) shared = s.shares_optimizer;
    });
    distill::Setup alone = small_setup(scratch.root(), parallel::Ranks::alone());
    expect_error(ErrorKind::kDevice, {"not enough memory"}, [&] { plan_memory(alone, config); });
  }
  EXPECT_TRUE(shared);
}

// The target is loaded before the plan is made, so the plan adds the target's bytes to the available memory.
TEST(Setup, TheMemoryPlanCountsTheTarget) {
  const Scratch scratch;
  distill::Setup s = small_setup(scratch.root(), parallel::Ranks::alone());
  const model::DecoderConfig config = config_of(1 << 16);
  const model::MemoryPlan without = memory_plan(s, config, false);
  EXPECT_EQ(without.target_bytes, 0);
  s.target = std::make_shared<const model::Decoder>(toy_decoder(3));
  const model::MemoryPlan with = memory_plan(s, config, false);
  EXPECT_EQ(with.target_bytes, 4 * model::num_parameters(s.target->config));
  EXPECT_EQ(with.total(), with.target_bytes + with.draft_bytes + with.cache_bytes() + with.workspace_bytes);
}

TEST(Setup, ADraftAsLargeAsItsTargetIsRemarked) {
  const Scratch scratch;
  distill::Setup s = small_setup(scratch.root(), parallel::Ranks::alone());
  set_log_sink({});  // discards what earlier tests logged
  for (const bool large : {true, false}) {
    int said = 0;
    set_log_sink([&](LogLevel level, const std::string& text) {
      said += level == LogLevel::kWarn && text.find("as large as its target cannot be faster") != std::string::npos;
    });
    s.target_config = config_of(large ? 1 << 16 : 1 << 18);
    plan_memory(s, config_of(1 << 16));
    set_log_sink({});
    EXPECT_EQ(said, large);
  }
}

}  // namespace
}  // namespace specdec::distill
