// Tests the verification rules on fibers: under the enumerator of tests/lossless, which decides the random choices
// inside the kernel, and with random numbers in comparison with the host's steps.
#include <gtest/gtest.h>

#include "engine/decode/sampling/verifier.h"
#include "engine/kernels/cuda/launch.h"
#include "engine/kernels/cuda/verify_task.h"
#include "tests/kernels/fibers/arrays.h"
#include "tests/kernels/fibers/fibers.h"
#include "tests/kernels/fibers/sampling.h"
#include "tests/lossless/enumeration.h"

namespace specdec::fibers {
namespace {

namespace cuda = kernels::cuda;
using decode::Randomness;
using decode::VerifyInput;
using decode::VerifyResult;
using self_test::random_draft;
using self_test::RandomDraft;

// Copies the arrays to a kernel's memory, calls start(pass) and returns the outcomes. Stores the kernel's score of each
// node in `scored`, if given.
template <class F>
std::vector<kernels::VerifyOutcome> run(const self_test::VerifyArrays& arrays, const F& start,
                                        std::vector<kernels::VerifyScore>* scored = nullptr) {
  DeviceMemory<kernels::VerifyTask> tasks(arrays.tasks);
  DeviceMemory<kernels::VerifyNode> nodes(arrays.nodes);
  DeviceMemory<float> p(arrays.p), q(arrays.q), left(arrays.tasks.size() * arrays.vocab);
  DeviceMemory<int32_t> likeliest(arrays.likeliest());
  DeviceMemory<kernels::VerifyOutcome> outcomes(arrays.tasks.size());
  DeviceMemory<kernels::VerifyScore> scores(arrays.nodes.size());
  start(kernels::VerifyPass{.tasks = tasks.data(),
                            .nodes = nodes.data(),
                            .p = p.data(),
                            .q = q.data(),
                            .left = left.data(),
                            .likeliest = likeliest.data(),
                            .outcomes = outcomes.data(),
                            .scores = scores.data(),
                            .num_tasks = static_cast<int32_t>(arrays.tasks.size()),
                            .num_nodes = static_cast<int32_t>(arrays.nodes.size()),
                            .vocab = static_cast<int32_t>(arrays.vocab)});
  p.check_borders(), q.check_borders(), left.check_borders();
  if (scored) *scored = scores.read();
  return outcomes.read();
}

// Takes every random choice from the host's Randomness, which one thread asks for its team.
struct AskedChoices {
  Randomness& randomness;
  template <class Team>
  bool accept(Team& team, decode::Purpose purpose, double probability) {
    team.once([&] { team.memory().answer = randomness.accept(purpose, probability) ? 1 : 0; });
    return team.memory().answer != 0;
  }
  template <class Team>
  int32_t draw(Team& team, decode::Purpose purpose, int n, const float* weights) {
    team.once([&] { team.memory().answer = randomness.draw(purpose, {weights, static_cast<size_t>(n)}); });
    return team.memory().answer;
  }
  template <class Team>
  int32_t draw_at(Team& team, int64_t position, int n, const float* weights) {
    team.once([&] { team.memory().answer = randomness.draw_at(position, {weights, static_cast<size_t>(n)}); });
    return team.memory().answer;
  }
};

// Verifies inside a kernel of two warps. Replaces decode::verify() in a Stepper.
VerifyResult verify_on_fibers(VerifyRule rule, const VerifyInput& input, Randomness& randomness, std::vector<float>&) {
  self_test::VerifyArrays arrays;
  arrays.add(input, rule);
  const auto outcome = run(arrays, [&](const kernels::VerifyPass& on_device) {
    auto memory = std::make_unique<cuda::TaskMemory>();
    launch({.grid = {1}, .block = {64}}, [&] {
      AskedChoices choices{randomness};
      cuda::run_task(on_device, 0, *memory, choices);
    });
  })[0];
  EXPECT_EQ(outcome.failed, 0);
  return {outcome.accepted, outcome.next, outcome.node};
}

TEST(VerifyKernel, EveryOutcomeOfEveryRuleIsTheTargets) {
  for (const VerifyRule rule : {VerifyRule::kToken, VerifyRule::kBlock, VerifyRule::kTarget})
    for (int k = 0; k <= 3; ++k) {
      decode::Case c;
      c.rule = rule;
      c.controller.fixed_k = k;
      c.length = 2;
      c.remaining = std::max(3, k + 1);
      c.verify_fn = &verify_on_fibers;
      const decode::Outcome o = enumerate(c);
      EXPECT_LE(o.error, 1e-6) << to_string(rule) << " K=" << k << " after " << o.runs << " runs";
      EXPECT_NEAR(o.mass, 1.0, 1e-9) << to_string(rule) << " K=" << k;
      EXPECT_EQ(o.max_drafted, k);
    }
}

TEST(VerifyKernel, EveryOutcomeOfTreesIsTheTargets) {
  for (const VerifyRule rule : {VerifyRule::kToken, VerifyRule::kBlock, VerifyRule::kTarget})
    for (const std::vector<int>& tree : {std::vector<int>{2}, {2, 1}, {1, 2}, {3}}) {
      decode::Case c;
      c.rule = rule;
      c.tree = tree;
      c.controller.fixed_k = static_cast<int>(tree.size());
      c.length = 2;
      c.remaining = 3;
      c.verify_fn = &verify_on_fibers;
      const decode::Outcome o = enumerate(c);
      EXPECT_LE(o.error, 1e-6) << to_string(rule) << " of " << tree.size() << " levels after " << o.runs << " runs";
      EXPECT_NEAR(o.mass, 1.0, 1e-9);
    }
}

std::vector<kernels::VerifyOutcome> verify_seeded(const std::vector<RandomDraft>& cases, VerifyRule rule,
                                                  unsigned threads,
                                                  std::vector<kernels::VerifyScore>* scores = nullptr) {
  self_test::VerifyArrays arrays;
  for (size_t i = 0; i < cases.size(); ++i) arrays.add(cases[i].input(), rule, 1000 + i);
  return run(
      arrays,
      [&](const kernels::VerifyPass& on_device) { EXPECT_EQ(cuda::launch_verify(on_device, threads, stream()), 0); },
      scores);
}

void expect_as_on_the_host(bool tree) {
  for (const VerifyRule rule : {VerifyRule::kToken, VerifyRule::kBlock, VerifyRule::kTarget, VerifyRule::kCoupled})
    for (uint64_t number = 0; number < 150; ++number) {
      const RandomDraft one = random_draft(number, tree);
      settings().seed = number;
      const auto found = verify_seeded({one}, rule, number % 2 == 0 ? 32 : 96)[0];
      decode::SeededRandomness randomness(1000);
      std::vector<float> scratch;
      const VerifyInput input = one.input();
      const VerifyResult expected = decode::verify(rule, input, randomness, scratch);
      EXPECT_EQ(found.failed, 0);
      EXPECT_EQ(found.accepted, expected.accepted) << to_string(rule) << " case " << number;
      EXPECT_EQ(found.next, expected.next) << to_string(rule) << " case " << number;
      EXPECT_EQ(found.node, expected.node) << to_string(rule) << " case " << number;
    }
}

TEST(VerifyKernel, ChainsAreVerifiedAsOnTheHost) { expect_as_on_the_host(false); }
TEST(VerifyKernel, TreesAreVerifiedAsOnTheHost) { expect_as_on_the_host(true); }

// With the greedy rule a token is kept if it is the likeliest one, as with the target rule and one-hot distributions.
TEST(VerifyKernel, GreedyTextTakesTheLikeliestTokens) {
  int64_t kept = 0;
  for (const bool tree : {false, true})
    for (uint64_t number = 0; number < 150; ++number) {
      RandomDraft one = random_draft(number, tree);
      if (one.tokens.empty()) continue;
      PhiloxStream random(14, number);
      for (size_t i = 0; i < one.p.size(); ++i) {  // the likeliest token is often a child of this node
        const auto token = static_cast<size_t>(one.tokens[random.below(one.tokens.size())]);
        std::ranges::fill(one.p[i], 0.0f);
        one.p[i][token] = 1;
      }
      self_test::VerifyArrays arrays;
      arrays.add(one.input(), VerifyRule::kTarget, 1000);
      const auto start = [&](const kernels::VerifyPass& on_device) {
        EXPECT_EQ(cuda::launch_verify(on_device, 64, stream()), 0);
      };
      const kernels::VerifyOutcome expected = run(arrays, start)[0];
      arrays.tasks[0].rule = kernels::DeviceRule::kGreedy;
      const kernels::VerifyOutcome found = run(arrays, start)[0];
      EXPECT_EQ(found.accepted, expected.accepted) << number;
      EXPECT_EQ(found.next, expected.next) << number;
      EXPECT_EQ(found.node, expected.node) << number;
      EXPECT_EQ(found.cursors[3], 0u);
      kept += found.accepted;
    }
  EXPECT_GT(kept, 50);
}

TEST(VerifyKernel, ScoresNodesBeforeItChangesTheirRows) {
  std::vector<RandomDraft> cases;
  for (uint64_t number = 0; cases.size() < 8; ++number)
    if (RandomDraft one = random_draft(number, false); one.p[0].size() > 30) cases.push_back(one);
  for (RandomDraft& one : cases)
    for (auto* rows : {&one.p, &one.q})
      for (auto& row : *rows) row.resize(200, 1e-4f);  // all rows of a pass have the same vocabulary
  std::vector<kernels::VerifyScore> scores;
  verify_seeded(cases, VerifyRule::kBlock, 96, &scores);
  size_t node = 0;
  for (const RandomDraft& one : cases)
    for (size_t i = 0; i < one.tokens.size(); ++i, ++node) {
      const auto token = static_cast<size_t>(one.tokens[i]);
      EXPECT_NEAR(scores[node].overlap, decode::overlap(one.p[i], one.q[i]), 1e-12) << node;
      EXPECT_EQ(scores[node].ratio,
                std::min(1.0, static_cast<double>(one.p[i][token]) / static_cast<double>(one.q[i][token])))
          << node;
    }
  EXPECT_EQ(node, scores.size());
}

// Returns the arrays of a draft with absent nodes inserted between its own nodes.
self_test::VerifyArrays with_absent(const RandomDraft& one, VerifyRule rule, uint64_t number) {
  const VerifyInput in = one.input();
  self_test::VerifyArrays arrays;
  arrays.add(in, rule, 1000);
  const auto count = static_cast<int32_t>(in.drafted.size());
  PhiloxStream random(13, number);
  std::vector<kernels::VerifyNode> nodes;
  std::vector<float> p(arrays.p.begin(), arrays.p.begin() + static_cast<std::ptrdiff_t>(arrays.vocab));
  std::vector<int32_t> place(static_cast<size_t>(count));
  const auto add_absent = [&] {
    nodes.push_back({kernels::kAbsentNode, static_cast<int32_t>(random.below(nodes.size() + 1)) - 1,
                     static_cast<int32_t>(random.below(2)) - 1, 0});
    p.resize(p.size() + arrays.vocab, std::numeric_limits<float>::quiet_NaN());
  };
  for (int32_t i = 0; i < count; ++i) {
    while (!in.parents.empty() && random.below(2) == 0) add_absent();
    place[static_cast<size_t>(i)] = static_cast<int32_t>(nodes.size());
    kernels::VerifyNode node = arrays.nodes[static_cast<size_t>(i)];
    if (node.parent >= 0) node.parent = place[static_cast<size_t>(node.parent)];
    if (node.p_row >= 0) node.p_row = node.parent + 1;
    nodes.push_back(node);
    const auto row = arrays.p.begin() + static_cast<std::ptrdiff_t>(static_cast<size_t>(i + 1) * arrays.vocab);
    p.insert(p.end(), row, row + static_cast<std::ptrdiff_t>(arrays.vocab));
  }
  add_absent();
  arrays.tasks[0].count = static_cast<int32_t>(nodes.size());
  arrays.nodes = nodes;
  arrays.p = p;
  return arrays;
}

TEST(VerifyKernel, AbsentNodesAreAsIfNotThere) {
  for (const bool tree : {false, true})
    for (const VerifyRule rule : {VerifyRule::kToken, VerifyRule::kBlock, VerifyRule::kTarget})
      for (uint64_t number = 0; number < 120; ++number) {
        const RandomDraft one = random_draft(number, tree);
        const self_test::VerifyArrays arrays = with_absent(one, rule, number);
        settings().seed = number;
        const auto start = [&](const kernels::VerifyPass& on_device) {
          EXPECT_EQ(cuda::launch_verify(on_device, 64, stream()), 0);
        };
        const kernels::VerifyOutcome found = run(arrays, start)[0], expected = verify_seeded({one}, rule, 64)[0];
        EXPECT_EQ(found.failed, 0);
        EXPECT_EQ(found.accepted, expected.accepted) << to_string(rule) << " case " << number;
        EXPECT_EQ(found.next, expected.next) << to_string(rule) << " case " << number;
        const int32_t node = found.node < 0 ? -1 : arrays.nodes[static_cast<size_t>(found.node)].token;
        EXPECT_EQ(node, expected.node < 0 ? -1 : one.tokens[static_cast<size_t>(expected.node)]);
        EXPECT_TRUE(std::ranges::equal(found.cursors, expected.cursors));
      }
}

// Cursors count the random numbers used of each kind, so that the next round continues after them.
TEST(VerifyKernel, CursorsCountWhatWasDrawn) {
  std::vector<RandomDraft> cases;
  for (uint64_t number = 0; cases.size() < 4; ++number)
    if (RandomDraft one = random_draft(number, false); one.tokens.size() == 3 && one.p[0].size() > 50)
      cases.push_back(one);
  for (auto& one : cases) {
    for (auto* rows : {&one.p, &one.q})
      for (auto& row : *rows) row.resize(50, 0.01f);
    for (int32_t& token : one.tokens) token = 49 - token % 20;
    for (auto& row : one.q)
      for (float& x : row) x = std::max(x, 1e-4f);
  }
  const auto found = verify_seeded(cases, VerifyRule::kToken, 64);
  for (const auto& o : found) {
    const bool all = o.accepted == 3;
    EXPECT_EQ(o.cursors[1], static_cast<uint64_t>(all ? 3 : o.accepted + 1));
    EXPECT_EQ(o.cursors[2], all ? 0u : 1u);
    EXPECT_EQ(o.cursors[3], all ? 1u : 0u);
  }
}

TEST(VerifyKernel, ImpossibleDraftsAreReported) {
  RandomDraft one;
  one.tokens = {1};
  one.p = {{0.5f, 0.5f}, {0.5f, 0.5f}};
  one.q = {{1.0f, 0.0f}};
  one.position = 0;
  EXPECT_EQ(verify_seeded({one}, VerifyRule::kToken, 32)[0].failed, 1);
  one.tokens = {0};
  one.p[0] = {0.0f, 0.0f};
  EXPECT_EQ(verify_seeded({one}, VerifyRule::kToken, 32)[0].failed, 1);
  EXPECT_EQ(verify_seeded({one}, VerifyRule::kCoupled, 32)[0].failed, 1);
}

// Runs two team sums one after the other in a block. Returns the totals over all threads of what each thread got.
std::array<int32_t, 4> sums_of_all_threads() {
  DeviceMemory<double> found(size_t{192});
  auto memory = std::make_unique<cuda::TeamMemory>();
  launch({.grid = {1}, .block = {96}}, [&] {
    struct {
    } none;
    cuda::BlockTeam team(*memory, none);
    const double first = team.sum(100, [](int i) { return 1e-3 * (i % 7); });
    const double second = team.sum(100, [](int i) { return 2e-3 * (i % 5); });
    found[2 * threadIdx.x] = first, found[2 * threadIdx.x + 1] = second;
  });
  double sums[2] = {};
  for (size_t i = 0; i < found.size(); ++i) sums[i % 2] += found[i];
  return {static_cast<int32_t>(1e6 * sums[0]), static_cast<int32_t>(1e6 * sums[1]), 0, 0};
}

// Leaves out each barrier in turn and expects another result. The kernels for verification and sampling share barriers.
TEST(VerifyKernel, NoBarrierCanBeLeftOut) {
  std::vector<std::pair<RandomDraft, VerifyRule>> cases;
  for (uint64_t number = 0; number < 16; ++number)
    for (const VerifyRule rule : {VerifyRule::kToken, VerifyRule::kBlock, VerifyRule::kCoupled})
      cases.push_back({random_draft(number, number % 2 == 1), rule});
  // Trees with at least three children of the root: a rejected sibling changes the rows for the later ones.
  for (uint64_t number = 100; number < 3000; ++number)
    if (const RandomDraft one = random_draft(number, true);
        one.p[0].size() < 40 && std::count(one.parents.begin(), one.parents.end(), -1) >= 3)
      cases.push_back({one, VerifyRule::kToken});
  const auto results = [&] {
    std::vector<std::array<int32_t, 4>> out = {sums_of_all_threads()};
    for (uint64_t number = 0; number < 4; ++number)
      for (const SamplingOptions& options :
           {SamplingOptions{.temperature = 0.8, .top_k = 30, .top_p = 0.7, .min_p = 0.05},
            SamplingOptions{.temperature = 1.5}}) {
        const Sampled s = sample(random_logits(number, 150, number % 2 == 0), options, 96);
        double mean = 0;
        for (size_t i = 0; i < s.probs.size(); ++i) mean += static_cast<double>(i) * static_cast<double>(s.probs[i]);
        out.push_back({s.token, s.equal ? 1 : 0, static_cast<int32_t>(1e6 * mean), s.choices});
      }
    for (const auto& [one, rule] : cases) {
      const auto o = verify_seeded({one}, rule, 64)[0];
      out.push_back({o.accepted, o.next, o.node, o.failed});
      decode::SeededRandomness randomness(7);
      std::vector<float> scratch;
      const VerifyResult asked = verify_on_fibers(rule, one.input(), randomness, scratch);
      out.push_back({static_cast<int32_t>(asked.accepted), asked.next, asked.node, 0});
    }
    return out;
  };
  settings() = {.barriers = {}};
  const auto right = results();
  const std::vector<Site> barriers = settings().barriers;
  EXPECT_GE(barriers.size(), 8u);
  for (const Site& barrier : barriers) {
    settings().without = barrier;
    bool noticed = false;
    for (uint64_t seed = 1; seed <= 12 && !noticed; ++seed) {
      settings().seed = seed;
      try {
        noticed = results() != right;
      } catch (const KernelFault&) {
        noticed = true;
      }
    }
    EXPECT_TRUE(noticed) << "nothing changes without the barrier of line " << barrier.line << " of " << barrier.file;
  }
  settings() = {};
}

}  // namespace
}  // namespace specdec::fibers
