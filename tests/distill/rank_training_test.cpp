// Two ranks train to the same result as one process, and a run can be resumed with another number of ranks.
#include <gtest/gtest.h>

#include "distill/gradient/eagle_gradient.h"
#include "distill/run/draft_init.h"
#include "distill/run/run.h"
#include "distill/train/trainer.h"
#include "engine/parallel/shard_ranks.h"
#include "tests/distill/toy.h"
#include "tests/parallel/rank_threads.h"

namespace specdec::distill {
namespace {

using namespace specdec::testing;

// Returns the largest absolute difference between the weights of two drafts.
double distance(const TrainedDraft& a, const TrainedDraft& b) {
  std::vector<at::Tensor> x, y;
  a.visit([&](const std::string&, at::Tensor& t) { x.push_back(t.detach()); });
  b.visit([&](const std::string&, at::Tensor& t) { y.push_back(t.detach()); });
  double most = 0;
  for (size_t i = 0; i < x.size(); ++i) most = std::max(most, (x[i] - y[i]).abs().max().item<double>());
  return most;
}

struct Training {
  std::shared_ptr<model::Decoder> target = std::make_shared<model::Decoder>(toy_decoder(3, 1));
  std::vector<TokenRow> train = toy_rows(120, 5, 6, 40), selection = toy_rows(10, 6);
  TrainerOptions options;
  SystemClock clock;
  int team = 1;  // number of ranks among which the target is divided; 1 = not divided
  int64_t cache = 1 << 20;

  explicit Training(int64_t steps) {
    options.schedule = {5e-3, 0.05, 0.1, steps, 0};
    options.batch_tokens = 100;
    options.accumulate = 2;
    options.evaluate_every = 4;
    options.checkpoint_every = 3;
    options.seed = 9;
    // Every third row has few positions in the loss. So the ranks have equally many tokens, but unequal numbers of
    // positions in the loss.
    for (size_t i = 0; i < train.size(); i += 3)
      std::fill(train[i].loss_mask.begin() + 3, train[i].loss_mask.end(), uint8_t{0});
  }
  model::Decoder draft() const { return keep_layers(*target, {0, 2}); }

  // Returns this rank's share of the target; null if the target is not divided (team = 1).
  std::shared_ptr<DividedTarget> divided(const parallel::Ranks& ranks) const {
    if (team == 1) return nullptr;
    const parallel::Ranks& own = ranks.team(team);
    return std::make_shared<DividedTarget>(
        std::make_shared<const model::Decoder>(model::shard_of(*target, make_shard_group(own))), own);
  }
  std::shared_ptr<model::Decoder> target_of_rank() const {
    if (team == 1) return target;
    const auto around = std::make_shared<model::Decoder>(*target);
    around->weights.layers.clear();
    return around;
  }

  // Runs one rank of the training, from the newest intact checkpoint if there is one.
  TrainingSummary run(const TrainedDraft& draft, const fs::path& directory, const parallel::Ranks& ranks,
                      const ProgressFn& progress = {}) {
    return run(draft, directory, ranks, divided(ranks), progress);
  }
  TrainingSummary run(const TrainedDraft& draft, const fs::path& directory, const parallel::Ranks& ranks,
                      const std::shared_ptr<DividedTarget>& together, const ProgressFn& progress) {
    TrainerOptions own = options;
    own.run_directory = directory;
    const auto mine = target_of_rank();
    ModelTeacher teacher(mine, train, cache, together), judge(mine, selection, cache, together);
    std::optional<Checkpoint> checkpoint;
    if (ranks.is_first()) {
      fs::create_directories(directory);
      checkpoint = CheckpointStore(directory / "checkpoints").newest_good();
    }
    Trainer trainer(own, {&train, &selection, &teacher, &judge, &ranks, together.get()}, draft, clock, progress);
    if (ranks.any(checkpoint.has_value())) {
      Checkpoint shared = checkpoint.value_or(Checkpoint{});
      shared.state = Json::parse(ranks.broadcast(shared.state.dump()));
      trainer.resume(shared);
    }
    return trainer.run();
  }
  // Trains on as many ranks as `drafts` has drafts; rank i trains drafts[i].
  void run_on(const std::vector<TrainedDraft>& drafts, const fs::path& directory) {
    std::vector<TrainingSummary> summaries(drafts.size());
    const auto errors = as_ranks(static_cast<int>(drafts.size()), [&](const parallel::Ranks& ranks) {
      const auto r = static_cast<size_t>(ranks.rank());
      summaries[r] = run(drafts[r], directory, ranks);
    });
    for (const std::string& e : errors) EXPECT_EQ(e, "");
    for (const TrainingSummary& s : summaries) {
      EXPECT_EQ(s.tokens, summaries[0].tokens);
      EXPECT_EQ(s.last_loss, summaries[0].last_loss) << "all ranks have the same figures";
      EXPECT_EQ(s.measured.size(), summaries[0].measured.size());
    }
  }
  // Trains on `count` ranks and returns the drafts.
  std::vector<model::Decoder> run_on(int count, const fs::path& directory) {
    std::vector<model::Decoder> drafts(static_cast<size_t>(count));
    for (model::Decoder& d : drafts) d = draft();
    run_on(std::vector<TrainedDraft>(drafts.begin(), drafts.end()), directory);
    return drafts;
  }
  // Trains on one rank per draft until a simulated power failure at step 5. The newest checkpoint is then that of step
  // 4.
  void cut_off(const std::vector<TrainedDraft>& drafts, const fs::path& directory) {
    const auto errors = as_ranks(static_cast<int>(drafts.size()), [&](const parallel::Ranks& ranks) {
      run(drafts[static_cast<size_t>(ranks.rank())], directory, ranks, [&](const Progress& p) {
        if (p.done == 5 && ranks.is_first()) throw Error(ErrorKind::kInternal, "power cut");
      });
    });
    for (const std::string& e : errors) EXPECT_NE(e.find("power cut"), std::string::npos) << e;
    EXPECT_EQ(CheckpointStore(directory / "checkpoints").newest_good()->step, 4);
  }
};

// Trains EAGLE-3 heads. At each draft position, the rows differ in their number of positions in the loss.
struct HeadTraining : Training {
  explicit HeadTraining(int64_t steps) : Training(steps) {
    target = std::make_shared<model::Decoder>(toy_decoder(8, 1, 6));
    for (std::vector<TokenRow>* rows : {&train, &selection})
      for (TokenRow& row : *rows) row.loss_mask[1] = 0;
    for (size_t i = 0; i < train.size(); i += 3) train[i].loss_mask[2] = 1;
  }
  std::vector<EagleDraft> heads(int count) const {
    std::vector<EagleDraft> out;
    for (int i = 0; i < count; ++i)
      out.push_back(
          {model::new_eagle_head(*target, {1, 2, 3, 5, 7, 8, 11, 13, 17, 19}, 3, at::kFloat), target, 4, 0.8});
    return out;
  }
};
std::vector<TrainedDraft> drafts_of(std::vector<EagleDraft>& heads) { return {heads.begin(), heads.end()}; }

TEST(RankTraining, TwoRanksAreOneProcess) {
  for (const auto& [loss, on_policy] : std::vector<std::pair<const char*, int64_t>>{
           {"kl", 0}, {"lk_hybrid", 0}, {"0.5*ce+0.5*tv", 0}, {"lk_hybrid", 4}}) {
    const Scratch scratch(true);
    Training t(9);
    t.options.loss.mix = parse_loss(loss);
    t.options.on_policy.length = on_policy;
    model::Decoder one = t.draft(), start = t.draft();
    const TrainingSummary alone = t.run(one, scratch / "one", parallel::Ranks::alone());
    for (const int count : {2, 3}) {
      const fs::path directory = scratch / std::to_string(count);
      auto many = t.run_on(count, directory);
      EXPECT_GT(distance(one, start), 1e-3);
      EXPECT_LT(distance(one, many[0]), 1e-5) << loss << ", " << count << " ranks";
      for (model::Decoder& other : many) EXPECT_TRUE(same_weights(other, many[0])) << "the ranks stay together";
      const Json a = CheckpointStore(scratch / "one/checkpoints").newest_good()->state,
                 b = CheckpointStore(directory / "checkpoints").newest_good()->state;
      EXPECT_EQ(a["tokens"], b["tokens"]);
      EXPECT_EQ(a["cursor"], b["cursor"]);
      EXPECT_NEAR(a["last_loss"].get<double>(), b["last_loss"].get<double>(), 1e-5);
      ASSERT_EQ(a["measured"].size(), alone.measured.size());
      for (size_t i = 0; i < a["measured"].size(); ++i)
        EXPECT_NEAR(a["measured"][i]["score"].get<double>(), b["measured"][i]["score"].get<double>(), 1e-5);
      const std::string lines = get(directory / "metrics.jsonl");
      EXPECT_EQ(std::count(lines.begin(), lines.end(), '\n'), 9 + 4) << "only rank 0 writes";
    }
  }
}

TEST(RankTraining, ARunGoesOnWithAnotherNumberOfRanks) {
  const Scratch scratch(true);
  Training t(8);
  model::Decoder straight = t.draft();
  t.run(straight, scratch / "straight", parallel::Ranks::alone());
  for (const auto& [before, after] : std::vector<std::pair<int, int>>{{2, 1}, {1, 2}, {3, 2}}) {
    const fs::path directory = scratch / (std::to_string(before) + "-" + std::to_string(after));
    std::vector<model::Decoder> drafts(static_cast<size_t>(before));
    for (model::Decoder& d : drafts) d = t.draft();
    t.cut_off(std::vector<TrainedDraft>(drafts.begin(), drafts.end()), directory);
    EXPECT_LT(distance(straight, t.run_on(after, directory)[0]), 1e-5) << before << " to " << after;
  }
}

// At each draft position that a head is trained on, the mean loss is over the rows of all ranks that have a token to
// predict there.
TEST(RankTraining, RanksTrainAHeadAsOneProcessDoes) {
  for (const char* loss : {"kl", "lk_hybrid"}) {
    const Scratch scratch(true);
    HeadTraining t(9);
    t.options.loss.mix = parse_loss(loss);
    auto one = t.heads(1), start = t.heads(1);
    t.run(one[0], scratch / "one", parallel::Ranks::alone());
    EXPECT_GT(distance(one[0], start[0]), 1e-3);
    for (const int count : {2, 3}) {
      const fs::path directory = scratch / std::to_string(count);
      auto many = t.heads(count);
      t.run_on(drafts_of(many), directory);
      EXPECT_LT(distance(one[0], many[0]), 1e-5) << loss << ", " << count << " ranks";
      for (EagleDraft& other : many) EXPECT_EQ(distance(other, many[0]), 0) << "the ranks stay together";
      const Json a = CheckpointStore(scratch / "one/checkpoints").newest_good()->state,
                 b = CheckpointStore(directory / "checkpoints").newest_good()->state;
      EXPECT_NEAR(a["last_loss"].get<double>(), b["last_loss"].get<double>(), 1e-5);
      EXPECT_NEAR(a["acceptance"].get<double>(), b["acceptance"].get<double>(), 1e-5);
    }
    const fs::path directory = scratch / "2-1";
    auto two = t.heads(2), after = t.heads(1);
    t.cut_off(drafts_of(two), directory);
    t.run(after[0], directory, parallel::Ranks::alone());
    EXPECT_LT(distance(one[0], after[0]), 1e-5) << "two ranks are cut off, and one process goes on";
  }
}

TEST(RankTraining, RanksThatHoldTheTargetTogetherAreOneProcess) {
  for (const auto& [loss, on_policy, cache] : std::vector<std::tuple<const char*, int64_t, int64_t>>{
           {"kl", 0, 0}, {"lk_hybrid", 0, 1 << 20}, {"lk_hybrid", 4, 0}}) {
    const Scratch scratch(true);
    Training t(9);
    t.options.loss.mix = parse_loss(loss);
    t.options.on_policy.length = on_policy;
    t.cache = cache;
    model::Decoder one = t.draft(), start = t.draft();
    t.run(one, scratch / "one", parallel::Ranks::alone());
    EXPECT_GT(distance(one, start), 1e-3);
    t.team = 2;
    for (const int count : {2, 4}) {
      const fs::path directory = scratch / std::to_string(count);
      auto many = t.run_on(count, directory);
      EXPECT_LT(distance(one, many[0]), 1e-5) << loss << ", " << count << " ranks";
      for (model::Decoder& other : many) EXPECT_TRUE(same_weights(other, many[0])) << "the ranks stay together";
      const Json a = CheckpointStore(scratch / "one/checkpoints").newest_good()->state,
                 b = CheckpointStore(directory / "checkpoints").newest_good()->state;
      ASSERT_EQ(a["measured"].size(), b["measured"].size());
      for (size_t i = 0; i < a["measured"].size(); ++i)
        EXPECT_NEAR(a["measured"][i]["score"].get<double>(), b["measured"][i]["score"].get<double>(), 1e-5);
    }
    const fs::path directory = scratch / "2-1";
    std::vector<model::Decoder> cut = {t.draft(), t.draft()};
    t.cut_off(std::vector<TrainedDraft>(cut.begin(), cut.end()), directory);
    t.team = 1;
    EXPECT_LT(distance(one, t.run_on(1, directory)[0]), 1e-5) << "two ranks are cut off, and one process goes on";
  }
}

TEST(RankTraining, RanksThatHoldTheTargetTogetherTrainAHead) {
  const Scratch scratch(true);
  HeadTraining t(9);
  t.options.loss.mix = parse_loss("lk_hybrid");
  auto one = t.heads(1), start = t.heads(1);
  t.run(one[0], scratch / "one", parallel::Ranks::alone());
  EXPECT_GT(distance(one[0], start[0]), 1e-3);
  t.team = 2;
  for (const int count : {2, 4}) {
    auto many = t.heads(count);
    const auto errors = as_ranks(count, [&](const parallel::Ranks& ranks) {
      EagleDraft& own = many[static_cast<size_t>(ranks.rank())];
      own.target = t.target_of_rank();
      own.divided = t.divided(ranks);
      t.run(own, scratch / std::to_string(count), ranks, own.divided, {});
      own.divided.reset();
    });
    EXPECT_EQ(errors, std::vector<std::string>(static_cast<size_t>(count), ""));
    EXPECT_LT(distance(one[0], many[0]), 1e-5) << count << " ranks";
    for (EagleDraft& other : many) EXPECT_EQ(distance(other, many[0]), 0) << "the ranks stay together";
  }
}

// If a rank fails whose share of the target other ranks need, rank 0 saves the last complete step, and the run can be
// resumed from it.
TEST(RankTraining, ARunWhoseTargetLostARankGoesOn) {
  const Scratch scratch(true);
  Training t(8);
  t.team = 2;
  t.cache = 0;
  const auto errors = as_ranks(2, [&](const parallel::Ranks& ranks) {
    model::Decoder draft = t.draft();
    t.run(draft, scratch / "run", ranks, [&](const Progress& p) {
      if (p.done == 5 && !ranks.is_first()) throw Error(ErrorKind::kNetwork, "power cut");
    });
  });
  for (const std::string& e : errors) EXPECT_NE(e.find("power cut"), std::string::npos) << e;
  EXPECT_EQ(CheckpointStore(scratch / "run/checkpoints").newest_good()->step, 5);
  t.run_on(2, scratch / "run");
}

// Checkpoints are byte-identical whether or not the optimizer state is shared, and a run can be resumed with the other
// setting.
TEST(RankTraining, ASharedOptimizerChangesNothing) {
  const Scratch scratch(true);
  Training t(8);
  const auto whole = t.run_on(2, scratch / "whole");
  t.options.shares_optimizer = true;
  auto shared = t.run_on(2, scratch / "shared");
  EXPECT_TRUE(same_weights(shared[0], shared[1]));
  EXPECT_EQ(get(scratch / "whole/checkpoints/latest"), get(scratch / "shared/checkpoints/latest"));
  for (const char* file : {"model.safetensors", "optimizer.safetensors"})
    EXPECT_EQ(sha256_file(scratch / "whole/checkpoints/step-00000008" / file),
              sha256_file(scratch / "shared/checkpoints/step-00000008" / file))
        << file;
  for (const auto& [before, after] : std::vector<std::pair<int, int>>{{2, 1}, {1, 2}, {3, 2}}) {
    const fs::path directory = scratch / (std::to_string(before) + "-" + std::to_string(after));
    std::vector<model::Decoder> drafts(static_cast<size_t>(before));
    for (model::Decoder& d : drafts) d = t.draft();
    t.cut_off(std::vector<TrainedDraft>(drafts.begin(), drafts.end()), directory);
    EXPECT_LT(distance(shared[0], t.run_on(after, directory)[0]), 1e-5) << before << " to " << after;
  }
}

// If a rank fails that has a share of the optimizer state, the run must be resumed from the last checkpoint. Without
// sharing, rank 0 saves the last complete step.
TEST(RankTraining, ARunThatSharesItsOptimizerGoesOnFromACheckpointWhenARankIsLost) {
  for (const bool shares : {false, true}) {
    const Scratch scratch(true);
    Training t(8);
    t.options.shares_optimizer = shares;
    const auto errors = as_ranks(2, [&](const parallel::Ranks& ranks) {
      model::Decoder draft = t.draft();
      t.run(draft, scratch / "run", ranks, [&](const Progress& p) {
        if (p.done == 5 && !ranks.is_first()) throw Error(ErrorKind::kInternal, "power cut");
      });
    });
    for (const std::string& e : errors) EXPECT_NE(e.find("power cut"), std::string::npos) << e;
    EXPECT_EQ(CheckpointStore(scratch / "run/checkpoints").newest_good()->step, shares ? 4 : 5);
    t.run_on(2, scratch / "run");
  }
}

// A rank whose weights are damaged (as by a hardware fault) gets the weights of rank 0's checkpoint by a roll-back.
TEST(RankTraining, ARankWithDamagedWeightsIsRestored) {
  const Scratch scratch;
  Training t(20);
  std::vector<model::Decoder> drafts = {t.draft(), t.draft()};
  const auto errors = as_ranks(2, [&](const parallel::Ranks& ranks) {
    const auto r = static_cast<size_t>(ranks.rank());
    bool damaged = false;
    const TrainingSummary s = t.run(drafts[r], scratch / "run", ranks, [&](const Progress& p) {
      if (r != 1 || p.done != 7 || std::exchange(damaged, true)) return;
      at::NoGradGuard guard;
      drafts[1].weights.norm.fill_(std::numeric_limits<float>::infinity());
    });
    EXPECT_EQ(s.steps, 20);
    EXPECT_EQ(s.rollbacks, 1);
    EXPECT_EQ(s.skipped_steps, 2);
  });
  for (const std::string& e : errors) EXPECT_EQ(e, "");
  EXPECT_TRUE(same_weights(drafts[0], drafts[1]));
}

}  // namespace
}  // namespace specdec::distill
