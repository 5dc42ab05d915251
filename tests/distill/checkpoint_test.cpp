#include "distill/train/checkpoint.h"

#include <gtest/gtest.h>

#include "tests/distill/optimizer_state.h"
#include "tests/distill/toy.h"

namespace specdec::distill {
namespace {

using namespace specdec::testing;

struct State {
  model::Decoder draft;
  std::unique_ptr<AdamW> optimizer;

  explicit State(uint64_t seed) : draft(toy_decoder(1, seed)) {
    std::vector<NamedTensor> parameters;
    draft.weights.visit(draft.config, [&](const std::string& name, at::Tensor& t) { parameters.push_back({name, t}); });
    optimizer = std::make_unique<AdamW>(parameters, AdamWOptions{});
    for (NamedTensor& p : parameters) p.tensor.mutable_grad() = p.tensor.clone();
    optimizer->step(1e-3, optimizer->grad_norm());
  }
  bool operator==(State& other) {
    bool same = same_weights(draft, other.draft);
    const auto a = state_of(*optimizer), b = state_of(*other.optimizer);
    for (size_t i = 0; i < a.size(); ++i) same = same && at::equal(a[i].tensor, b[i].tensor);
    return same;
  }
};

void flip_bit(const fs::path& file, size_t at) {
  std::string bytes = get(file);
  bytes.at(at) = static_cast<char>(bytes.at(at) ^ 0x10);
  put(file, bytes);
}

TEST(Checkpoint, KeepsWeightsMomentsAndState) {
  const Scratch scratch;
  CheckpointStore store(scratch / "checkpoints");
  EXPECT_FALSE(store.newest_good().has_value());
  State a(1), b(2);
  store.save(7, 7, a.draft, *a.optimizer, {{"cursor", 3}});
  EXPECT_EQ(get(scratch / "checkpoints/latest"), "step-00000007\n");
  const auto found = store.newest_good();
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->step, 7);
  EXPECT_EQ(found->state, (Json{{"cursor", 3}}));
  EXPECT_FALSE(a == b);
  CheckpointStore::restore(*found, b.draft);
  CheckpointStore::restore(*found, *b.optimizer);
  EXPECT_TRUE(a == b);
  State wide(3);
  wide.draft = toy_decoder(2, 3);
  expect_error(ErrorKind::kData, {"layers.1", "missing"}, [&] { CheckpointStore::restore(*found, wide.draft); });
}

TEST(Checkpoint, KeepsTheNewestThreeAndTheBest) {
  const Scratch scratch;
  CheckpointStore store(scratch.root());
  State s(1);
  for (int64_t step = 0; step <= 6; ++step) store.save(step, 2, s.draft, *s.optimizer, Json::object());
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(scratch.root())) names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  EXPECT_EQ(names,
            (std::vector<std::string>{"latest", "step-00000002", "step-00000004", "step-00000005", "step-00000006"}));
}

TEST(Checkpoint, AnyFlippedBitFallsBackToThePreviousOne) {
  const Scratch scratch;
  State s(1);
  const CheckpointStore names(scratch / "names");
  for (const char* file : {"config.json", "model.safetensors", "optimizer.safetensors", "state.json"}) {
    for (const double where : {0.1, 0.5, 0.95}) {
      fs::remove_all(scratch / "c");
      CheckpointStore store(scratch / "c");
      store.save(1, 1, s.draft, *s.optimizer, {{"n", 1}});
      store.save(2, 1, s.draft, *s.optimizer, {{"n", 2}, {"text", "abcdefgh"}});
      const fs::path path = scratch / "c/step-00000002" / file;
      flip_bit(path, static_cast<size_t>(where * static_cast<double>(fs::file_size(path))));
      const auto found = store.newest_good();
      ASSERT_TRUE(found.has_value()) << file;
      EXPECT_EQ(found->step, 1) << file << " at " << where;
      EXPECT_FALSE(store.open(2).has_value());
      store.save(2, 1, s.draft, *s.optimizer, {{"n", 2}});  // replaces the damaged checkpoint
      EXPECT_EQ(store.newest_good()->step, 2);
    }
  }
  fs::remove(scratch / "c/step-00000002/optimizer.safetensors");
  EXPECT_EQ(CheckpointStore(scratch / "c").newest_good()->step, 1);
  put(scratch / "c/step-00000001/state.json", "{}");
  expect_error(ErrorKind::kData, {"none of the 2 checkpoints", "--out"},
               [&] { CheckpointStore(scratch / "c").newest_good(); });
}

// Kills save() at every write, fsync and rename. Afterwards the newest good checkpoint is the old or the new one,
// intact.
TEST(Checkpoint, KilledSaveLeavesAWholeOne) {
  const Scratch scratch;
  State old_state(1), new_state(2), read(3);
  const fs::path directory = scratch / "c";
  const auto before = [&] {
    fs::remove_all(directory);
    CheckpointStore(directory).save(1, 1, old_state.draft, *old_state.optimizer, {{"n", 1}});
  };
  const auto save = [&] { CheckpointStore(directory).save(2, 1, new_state.draft, *new_state.optimizer, {{"n", 2}}); };
  int fresh = 0;
  const int deaths = for_each_kill_point(before, save, [&](int) {
    CheckpointStore store(directory);
    const auto found = store.newest_good();
    ASSERT_TRUE(found.has_value());
    CheckpointStore::restore(*found, read.draft);
    CheckpointStore::restore(*found, *read.optimizer);
    EXPECT_TRUE(read == (found->step == 2 ? new_state : old_state));
    fresh += found->step == 2;
    for (const auto& entry : fs::directory_iterator(directory))
      EXPECT_EQ(entry.path().string().find(".partial"), std::string::npos);
  });
  EXPECT_GT(deaths, 10);
  EXPECT_GT(fresh, 0) << "killed between the directory's rename and the reference's";
}

}  // namespace
}  // namespace specdec::distill
