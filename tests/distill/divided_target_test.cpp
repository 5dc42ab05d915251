// A target divided among a team of ranks computes the same hidden states and logits as the whole target.
#include "distill/teacher/divided_target.h"

#include <gtest/gtest.h>

#include "distill/teacher/branches.h"
#include "distill/teacher/teacher.h"
#include "distill/train/contexts.h"
#include "engine/decode/runners/model_runner.h"
#include "engine/forward/eagle_forward.h"
#include "engine/parallel/shard_ranks.h"
#include "tests/distill/toy.h"
#include "tests/parallel/rank_threads.h"

namespace specdec::distill {
namespace {

using namespace specdec::testing;
using parallel::Ranks;

// A target with four attention heads, which two or four ranks divide evenly. Its vocabulary and MLP width cannot be
// divided evenly.
model::Decoder whole_target(bool tied = false) {
  model::DecoderConfig config = toy_config(3);
  config.vocab_size = 25;
  config.intermediate_size = 26;
  config.num_heads = 4, config.num_kv_heads = 2, config.head_dim = 4;
  config.tie_embeddings = tied;
  model::Decoder whole = model::random_decoder(config, 1, at::kCPU, at::kFloat);
  at::NoGradGuard guard;
  whole.weights.visit(whole.config, [](const std::string&, at::Tensor& t) {
    if (t.dim() == 2) t.mul_(10);
  });
  return whole;
}

// Runs `ranks` ranks in teams of `size`; the ranks of a team hold one copy of `whole` together. Calls f on every rank
// with two arguments: the group of all ranks, and the target of this rank's team.
void in_teams(int ranks, int size, const model::Decoder& whole,
              const std::function<void(const Ranks&, DividedTarget&)>& f) {
  const auto errors = as_ranks(ranks, [&](const Ranks& all) {
    const Ranks& team = all.team(size);
    DividedTarget target(std::make_shared<const model::Decoder>(model::shard_of(whole, make_shard_group(team))), team);
    EXPECT_EQ(target.count(), size);
    f(all, target);
  });
  EXPECT_EQ(errors, std::vector<std::string>(static_cast<size_t>(ranks), ""));
}

double far(const at::Tensor& found, const at::Tensor& expected) {
  if (!found.sizes().equals(expected.sizes())) return 1e9;
  return (found - expected).abs().max().item<double>() / expected.abs().max().item<double>();
}

TEST(DividedTarget, EveryRankGetsTheHiddenStatesOfItsOwnBatches) {
  for (const bool tied : {false, true}) {
    const model::Decoder whole = whole_target(tied);
    const auto rows = toy_rows(40, 5);
    for (const auto& [ranks, size] : std::vector<std::pair<int, int>>{{2, 2}, {4, 2}, {4, 4}}) {
      in_teams(ranks, size, whole, [&](const Ranks& all, DividedTarget& target) {
        const auto r = static_cast<size_t>(all.rank());
        for (size_t step = 0; step < 3; ++step) {
          for (size_t i = 0; i < (r + step) % 3; ++i) {  // each rank requests zero, one or two batches
            const Batch batch = make_batch(rows, {10 * r + i, 10 * r + i + step});
            model::TapReader taps({.taps = {1, 2, 3}}), expected_taps({.taps = {1, 2, 3}});
            const at::Tensor hidden = target.hidden_rows(batch, taps.observer()),
                             expected = hidden_rows(whole, batch, expected_taps.observer());
            EXPECT_LT(far(hidden, expected), 1e-5) << ranks << " ranks in teams of " << size;
            EXPECT_LT(far(taps.rows(), expected_taps.rows()), 1e-5);
          }
          target.finish();
          std::vector<double> one = {1};
          all.sum(one);
          EXPECT_EQ(one[0], ranks) << "the ranks are together again";
        }
      });
    }
  }
}

// With take_time_of_all(true), a request of one rank takes as much work as if all ranks made a request.
TEST(DividedTarget, TakesTheTimeOfAllRanksWhereThatIsMeasured) {
  const model::Decoder whole = whole_target();
  const auto rows = toy_rows(8, 5);
  in_teams(2, 2, whole, [&](const Ranks& all, DividedTarget& target) {
    target.take_time_of_all(true);
    if (all.is_first()) {
      int passes = 0;
      const Batch batch = make_batch(rows, {1, 2});
      const at::Tensor hidden =
          target.hidden_rows(batch, [&](int64_t layer, const at::Tensor&) { passes += layer == 0; });
      EXPECT_EQ(passes, 2);
      EXPECT_LT(far(hidden, hidden_rows(whole, batch)), 1e-5);
    }
    target.finish();
  });
}

// A divided target also computes hidden states for branches (the draft's continuations after some positions).
TEST(DividedTarget, AnswersBranches) {
  const model::Decoder whole = whole_target();
  const auto rows = toy_rows(8, 5, 12, 12);
  in_teams(2, 2, whole, [&](const Ranks& all, DividedTarget& target) {
    Batch batch = make_batch(rows, {static_cast<size_t>(all.rank()), 4});
    const int64_t after = 2 + all.rank();  // tokens in each branch (roll-out); differs between ranks
    Branches branches;
    branches.tokens = at::arange(2 * after, at::kLong).view({2, after}) + all.rank();
    branches.positions = at::arange(after, at::kLong).expand({2, after}) + 7;
    branches.allowed = at::zeros({2, after, 12 + after}, at::kBool);
    branches.allowed.narrow(2, 0, 7).fill_(true);
    branches.allowed.narrow(2, 12, after).copy_(at::ones({after, after}, at::kBool).tril());
    branches.rows = {at::tensor({int64_t{0}, after}, at::kLong), at::tensor({int64_t{1}}, at::kLong)};
    if (all.rank() == 0)
      EXPECT_LT(far(target.hidden_rows(make_batch(rows, {7})), hidden_rows(whole, make_batch(rows, {7}))), 1e-5);
    batch.branches = &branches;
    EXPECT_LT(far(target.hidden_rows(batch), hidden_rows(whole, batch)), 1e-5);
    target.finish();
  });
}

TEST(DividedTarget, WritesTheTextOfTheWholeTarget) {
  const model::Decoder whole = whole_target();
  HeldOut prompts;
  prompts.selection = toy_rows(5, 8), prompts.verdict = toy_rows(12, 9);
  const ContextOptions options{.temperature = 0.7, .seed = 3, .eos_ids = {2}};
  const HeldOutAnswers expected =
      answer_held_out(*decode::make_model_runner(std::make_shared<const model::Decoder>(whole)), prompts, options);
  EXPECT_GT(std::set<std::vector<int32_t>>(expected.verdict.begin(), expected.verdict.end()).size(), 8u);
  for (const int writing : {0, 1}) {
    in_teams(4, 2, whole, [&](const Ranks& all, DividedTarget& target) {
      if (all.rank() == writing) {
        HeldOutAnswers answers;
        target.decode([&](decode::CausalModel& model) { answers = answer_held_out(model, prompts, options); });
        EXPECT_EQ(answers.selection, expected.selection);
        EXPECT_EQ(answers.verdict, expected.verdict);
        const Batch batch = make_batch(prompts.verdict, {0, 1});
        EXPECT_LT(far(target.hidden_rows(batch), hidden_rows(whole, batch)), 1e-5) << "and reads batches after it";
      }
      target.finish();
    });
  }
}

TEST(DividedTarget, ItsTeacherHasTheLogitsOfTheWholeTarget) {
  const model::Decoder whole = whole_target();
  const auto rows = toy_rows(20, 5);
  auto head = std::make_shared<model::Decoder>(whole);
  head->weights.layers.clear();
  ModelTeacher expected(std::make_shared<const model::Decoder>(whole), rows, 0);
  for (const int64_t cache : {0, 1 << 20}) {
    const auto errors = as_ranks(2, [&](const Ranks& all) {
      const auto target = std::make_shared<DividedTarget>(
          std::make_shared<const model::Decoder>(model::shard_of(whole, make_shard_group(all))), all);
      ModelTeacher teacher(head, rows, cache, target);
      EXPECT_EQ(teacher.cached(), cache > 0);
      for (size_t i = 0; i < (all.is_first() ? 1u : 4u); ++i) {
        const Batch batch = make_batch(rows, {2 * i, 2 * i + 1 + static_cast<size_t>(all.rank())});
        const int64_t count = batch.rows.numel();
        const auto probabilities = [&](Teacher& from) {
          return from.rows(batch)(0, count, {}).to(at::kFloat).softmax(-1);
        };
        const double most = cache > 0 ? 2e-3 : 1e-5;  // the cache rounds log-probabilities to fp16
        EXPECT_LT((probabilities(teacher) - probabilities(expected)).abs().max().item<double>(), most);
      }
      target->finish();
    });
    EXPECT_EQ(errors, std::vector<std::string>(2, ""));
  }
}

// If a rank fails, all other ranks get its error, whether they wait in the middle of a pass, in finish(), or in a later
// collective operation.
TEST(DividedTarget, ARankThatFailsEndsItsTeam) {
  const model::Decoder whole = whole_target();
  const auto rows = toy_rows(8, 5);
  for (const bool in_pass : {false, true}) {
    const auto errors = as_ranks(4, [&](const Ranks& all) {
      const Ranks& team = all.team(2);
      DividedTarget target(std::make_shared<const model::Decoder>(model::shard_of(whole, make_shard_group(team))),
                           team);
      const auto fail = [](int64_t layer, const at::Tensor&) {
        if (layer == 2) throw Error(ErrorKind::kDevice, "out of memory");
      };
      if (all.rank() == 3 && !in_pass) fail(2, {});
      if (all.rank() == 3) target.hidden_rows(make_batch(rows, {1}), fail);
      try {
        if (all.rank() == 2) target.hidden_rows(make_batch(rows, {1}));
        target.finish();
        all.any(false);
        ADD_FAILURE() << "rank " << all.rank() << " goes on";
      } catch (const parallel::RankError& e) {
        EXPECT_EQ(e.kind(), ErrorKind::kDevice);
        throw;
      }
    });
    for (const std::string& e : errors) EXPECT_NE(e.find("out of memory"), std::string::npos) << e;
  }
}

}  // namespace
}  // namespace specdec::distill
