// Compares the logits of tiny random models with those of transformers, for every way to run a pass.
#include <gtest/gtest.h>

#include <cstdlib>

#include "base/json.h"
#include "engine/forward/forward.h"
#include "engine/kernels/ops.h"
#include "tests/parity/cases.h"
#include "tests/source_folder.h"

namespace specdec::parity {
namespace {

using model::Decoder;
using model::KvCache;
using model::SequencePart;

class Reference {  // forces the reference kernels during its lifetime
 public:
  explicit Reference(bool on) { kernels::force_reference(on); }
  ~Reference() { kernels::force_reference(false); }
};

class Logits : public ::testing::TestWithParam<std::tuple<std::string, bool>> {
 protected:
  Case c = load_case(std::get<0>(GetParam()));
  Reference reference{std::get<1>(GetParam())};

  KvCache cache() const { return KvCache(c.decoder.config, at::kCPU, c.decoder.config.dtype); }
  at::Tensor pass(const SequencePart& part) const { return model::forward(c.decoder, std::span(&part, 1)); }
  SequencePart part(KvCache& cache, std::span<const int32_t> tokens, int64_t row, int64_t from) const {
    SequencePart out{.cache = &cache, .tokens = tokens, .num_logits = static_cast<int64_t>(tokens.size())};
    const at::Tensor wanted = c.positions[row].narrow(0, from, static_cast<int64_t>(tokens.size())).contiguous();
    out.positions.assign(wanted.data_ptr<int64_t>(), wanted.data_ptr<int64_t>() + wanted.numel());
    return out;
  }
};

TEST_P(Logits, TeacherForcedPass) {
  const at::Tensor logits = model::forward(c.decoder, {.tokens = c.tokens, .positions = c.positions});
  EXPECT_EQ(logits.scalar_type(), c.decoder.config.dtype);
  EXPECT_LT(largest_difference(logits, c.logits), c.tolerance());
}

TEST_P(Logits, PrefillInChunks) {
  for (int64_t row = 0; row < 2; ++row) {
    const auto ids = c.ids(row);
    for (const size_t chunk : {ids.size(), size_t{1}, size_t{7}}) {
      KvCache kv = cache();
      std::vector<at::Tensor> pieces;
      for (size_t at = 0; at < ids.size(); at += chunk) {
        const size_t n = std::min(chunk, ids.size() - at);
        pieces.push_back(pass(part(kv, std::span(ids).subspan(at, n), row, static_cast<int64_t>(at))));
      }
      EXPECT_EQ(kv.length(), static_cast<int64_t>(ids.size()));
      EXPECT_LT(largest_difference(at::cat(pieces), c.stepwise[row]), c.tolerance()) << "chunk " << chunk;
    }
  }
}

// Computes two branches after a common prefix in one pass with a tree mask. They cross the length from which longrope
// uses other factors. Each branch must give the same logits as it does alone.
TEST_P(Logits, TreePass) {
  const auto ids = c.ids(0);
  const std::span<const int32_t> all(ids);
  const std::vector<int32_t> nodes = {ids[22], ids[23], 5, 9, ids[24]};  // 22 -> 23 -> 24 and 22 -> 5 -> 9
  const int parent[] = {-1, 0, 0, 2, 1};
  SequencePart tree{
      .tokens = nodes, .num_logits = 5, .tree_mask = at::zeros({5, 5}, at::kBool), .positions = {22, 23, 23, 24, 24}};
  for (int i = 0; i < 5; ++i) {
    for (int j = i; j >= 0; j = parent[j]) tree.tree_mask[i][j] = true;
  }
  KvCache kv = cache();
  pass(part(kv, all.first(22), 0, 0));
  tree.cache = &kv;
  const at::Tensor logits = pass(tree);

  KvCache other = cache();
  const std::vector<int32_t> branch = {ids[22], 5, 9};
  pass(part(other, all.first(22), 0, 0));
  const at::Tensor alone = pass(part(other, branch, 0, 22));
  EXPECT_LT(largest_difference(logits.index({at::tensor({0, 1, 4})}), c.stepwise[0].narrow(0, 22, 3)), c.tolerance());
  EXPECT_LT(largest_difference(logits.index({at::tensor({0, 2, 3})}), alone), c.tolerance());
  if (!kernels::reference_forced() && c.decoder.config.dtype != at::kHalf) {
    EXPECT_TRUE(at::equal(logits.index({at::tensor({0, 2, 3})}), alone));
  }
}

// Some RoPE scalings use other factors from a certain length on. Truncates a cache from above to below this length. The
// cache must then continue as if it had never been longer.
TEST_P(Logits, TruncatedAcrossTheBorder) {
  const auto ids = c.ids(1);
  KvCache kv = cache();
  pass(part(kv, std::span(ids).first(20), 1, 0));
  kv.truncate(12);  // the next position is 62; the RoPE factors change at 64
  const at::Tensor after = pass(part(kv, std::span(ids).subspan(12, 5), 1, 12));
  EXPECT_LT(largest_difference(after, c.stepwise[1].narrow(0, 12, 5)), c.tolerance());
}

INSTANTIATE_TEST_SUITE_P(Models, Logits, ::testing::Combine(::testing::ValuesIn(case_names()), ::testing::Bool()),
                         [](const auto& info) {
                           return test_name(std::get<0>(info.param)) + (std::get<1>(info.param) ? "_ref" : "_cpu");
                         });

// A real trained model must continue BOS with the 256 greedy tokens that llama2.c documents.
TEST(Stories260K, GreedyText) {
  const char* shared = std::getenv("SPECDEC_SHARED");
  const auto directory = std::filesystem::path(shared ? std::string(shared) : source_folder() + "/../shared") / "data" /
                         "models" / "stories260K";
  if (!std::filesystem::exists(directory)) GTEST_SKIP() << directory << " is absent (set SPECDEC_SHARED)";
  const auto expected = read_json(golden_path("stories260k_greedy.json")).get<std::vector<int32_t>>();
  for (const bool on : {false, true}) {
    const Reference reference(on);
    const Decoder decoder = model::load_decoder(directory, at::kCPU, at::kFloat);
    KvCache kv(decoder.config, at::kCPU, at::kFloat);
    std::vector<int32_t> ids = {1};
    while (ids.size() < expected.size()) {
      const SequencePart part{.cache = &kv, .tokens = std::span(ids).last(1)};
      ids.push_back(static_cast<int32_t>(model::forward(decoder, std::span(&part, 1)).argmax(-1).item<int64_t>()));
    }
    EXPECT_EQ(ids, expected);
  }
}

}  // namespace
}  // namespace specdec::parity
