// Runs the verification rules on fibers: under the enumerator of tests/lossless, which answers the choices inside the
// kernel, and with random numbers beside the host's steps.
#include <gtest/gtest.h>

#include "engine/decode/verifier.h"
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
using kernels::DeviceRule;

DeviceRule device_rule(VerifyRule rule, bool tree) {
  switch (rule) {
    case VerifyRule::kToken:
      return tree ? DeviceRule::kTokenTree : DeviceRule::kTokenChain;
    case VerifyRule::kBlock:
      return tree ? DeviceRule::kBlockTree : DeviceRule::kBlockChain;
    case VerifyRule::kTarget:
      return DeviceRule::kTarget;
    case VerifyRule::kCoupled:
      return DeviceRule::kCoupled;
  }
  return DeviceRule::kTarget;
}

// The memory of a pass over several inputs.
class Pass {
 public:
  void add(const VerifyInput& input, VerifyRule rule, uint64_t seed = 0) {
    kernels::VerifyTask task = {};
    task.rule = device_rule(rule, !input.parents.empty());
    task.first = static_cast<int32_t>(nodes_.size());
    task.count = static_cast<int32_t>(input.drafted.size());
    task.p_row = static_cast<int32_t>(p_.size() / input.p[0].size());
    task.position = input.position;
    task.seed = seed;
    tasks_.push_back(task);
    vocab_ = input.p[0].size();
    for (const auto& row : input.p) p_.insert(p_.end(), row.begin(), row.end());
    for (size_t i = 0; i < input.drafted.size(); ++i) {
      const int32_t parent = input.parents.empty() ? static_cast<int32_t>(i) - 1 : input.parents[i];
      int32_t row = static_cast<int32_t>(q_.size() / vocab_);
      for (size_t j = 0; j < i; ++j)  // siblings share a row
        if (!input.parents.empty() && input.parents[j] == parent) {
          row = nodes_[static_cast<size_t>(task.first) + j].q_row;
          break;
        }
      nodes_.push_back({input.drafted[i], parent, row});
      if (!input.q.empty() && row == static_cast<int32_t>(q_.size() / vocab_))
        q_.insert(q_.end(), input.q[i].begin(), input.q[i].end());
    }
  }
  // Of each node of the last run, if the kernel scores them.
  const std::vector<kernels::VerifyScore>& scores() const { return scores_; }
  // Calls run(pass) and returns the outcomes.
  template <class F>
  std::vector<kernels::VerifyOutcome> run(const F& start) {
    DeviceMemory<kernels::VerifyTask> tasks(tasks_);
    DeviceMemory<kernels::VerifyNode> nodes(nodes_);
    DeviceMemory<float> p(p_), q(q_), left(tasks_.size() * vocab_);
    DeviceMemory<kernels::VerifyOutcome> outcomes(tasks_.size());
    DeviceMemory<kernels::VerifyScore> scores(nodes_.size());
    start(kernels::VerifyPass{tasks.data(), nodes.data(), p.data(), q.data(), left.data(), outcomes.data(),
                              scores.data(), static_cast<int32_t>(tasks_.size()), static_cast<int32_t>(vocab_)});
    p.check_borders(), q.check_borders(), left.check_borders();
    scores_ = scores.read();
    return outcomes.read();
  }

 private:
  std::vector<kernels::VerifyTask> tasks_;
  std::vector<kernels::VerifyNode> nodes_;
  std::vector<kernels::VerifyScore> scores_;
  std::vector<float> p_, q_;
  size_t vocab_ = 0;
};

// Takes every choice from a host's Randomness, asked by one thread.
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

// Verifies inside a kernel of two warps. It stands in for decode::verify() in a Stepper.
VerifyResult verify_on_fibers(VerifyRule rule, const VerifyInput& input, Randomness& randomness, std::vector<float>&) {
  Pass pass;
  pass.add(input, rule);
  const auto outcome = pass.run([&](const kernels::VerifyPass& on_device) {
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

// Random inputs, as a draft would make them.
struct Drawn {
  std::vector<int32_t> tokens, parents;
  std::vector<std::vector<float>> p, q;
  int64_t position;
  VerifyInput input() const {
    VerifyInput in;
    in.drafted = tokens;
    in.p.assign(p.begin(), p.end());
    in.q.assign(q.begin(), q.end());
    in.position = position;
    in.parents = parents;
    return in;
  }
};

std::vector<float> random_row(PhiloxStream& random, size_t vocab, const std::vector<float>* like = nullptr) {
  std::vector<float> row(vocab);
  double total = 0;
  for (size_t i = 0; i < vocab; ++i) {
    const double noise = std::exp(3 * random.uniform());
    row[i] = static_cast<float>(like ? (*like)[i] * noise : i > 0 && random.uniform() < 0.4 ? 0.0 : noise);
    total += static_cast<double>(row[i]);
  }
  for (float& x : row) x = static_cast<float>(static_cast<double>(x) / total);
  return row;
}

Drawn draw_case(uint64_t number, bool tree) {
  PhiloxStream random(99, number);
  Drawn out;
  const size_t vocab = 2 + random.below(200), count = random.below(6);
  out.position = static_cast<int64_t>(random.below(1000));
  out.p.push_back(random_row(random, vocab));
  std::vector<std::vector<float>> rows;  // of each node, for its children
  for (size_t i = 0; i < count; ++i) {
    const int32_t parent = tree ? static_cast<int32_t>(random.below(i + 1)) - 1 : static_cast<int32_t>(i) - 1;
    if (tree && i > 0 && parent < out.parents.back()) break;  // levels are in order
    std::vector<float> left = random_row(random, vocab, &out.p[static_cast<size_t>(parent + 1)]);
    for (size_t j = 0; j < i && tree; ++j)
      if (out.parents[j] == parent) left = out.q[j];
    out.q.push_back(left);
    for (size_t j = 0; j < i && tree; ++j)
      if (out.parents[j] == parent) left[static_cast<size_t>(out.tokens[j])] = 0;
    double mass = 0;
    for (const float x : left) mass += static_cast<double>(x);
    if (!(mass > 1e-3)) {
      out.q.pop_back();
      break;
    }
    out.tokens.push_back(decode::draw(left, random.uniform()));
    if (tree) out.parents.push_back(parent);
    out.p.push_back(random_row(random, vocab));
  }
  return out;
}

std::vector<kernels::VerifyOutcome> verify_seeded(const std::vector<Drawn>& cases, VerifyRule rule, unsigned threads,
                                                  std::vector<kernels::VerifyScore>* scores = nullptr) {
  Pass pass;
  for (size_t i = 0; i < cases.size(); ++i) pass.add(cases[i].input(), rule, 1000 + i);
  const auto outcomes = pass.run(
      [&](const kernels::VerifyPass& on_device) { EXPECT_EQ(cuda::launch_verify(on_device, threads, nullptr), 0); });
  if (scores) *scores = pass.scores();
  return outcomes;
}

void expect_as_on_the_host(bool tree) {
  for (const VerifyRule rule : {VerifyRule::kToken, VerifyRule::kBlock, VerifyRule::kTarget, VerifyRule::kCoupled})
    for (uint64_t number = 0; number < 150; ++number) {
      const Drawn one = draw_case(number, tree);
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

TEST(VerifyKernel, ScoresNodesBeforeItChangesTheirRows) {
  std::vector<Drawn> cases;
  for (uint64_t number = 0; cases.size() < 8; ++number)
    if (Drawn one = draw_case(number, false); one.p[0].size() > 30) cases.push_back(one);
  for (Drawn& one : cases)
    for (auto* rows : {&one.p, &one.q})
      for (auto& row : *rows) row.resize(200, 1e-4f);  // a pass has one vocabulary
  std::vector<kernels::VerifyScore> scores;
  verify_seeded(cases, VerifyRule::kBlock, 96, &scores);
  size_t node = 0;
  for (const Drawn& one : cases)
    for (size_t i = 0; i < one.tokens.size(); ++i, ++node) {
      const auto token = static_cast<size_t>(one.tokens[i]);
      EXPECT_NEAR(scores[node].overlap, decode::overlap(one.p[i], one.q[i]), 1e-12) << node;
      EXPECT_EQ(scores[node].ratio,
                std::min(1.0, static_cast<double>(one.p[i][token]) / static_cast<double>(one.q[i][token])))
          << node;
    }
  EXPECT_EQ(node, scores.size());
}

// The cursors go on where the last round ended, so that two rounds use different numbers.
TEST(VerifyKernel, CursorsCountWhatWasDrawn) {
  std::vector<Drawn> cases;
  for (uint64_t number = 0; cases.size() < 4; ++number)
    if (Drawn one = draw_case(number, false); one.tokens.size() == 3 && one.p[0].size() > 50) cases.push_back(one);
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
  Drawn one;
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

// The kernels for verification and sampling share the barriers of block_team.h.
TEST(VerifyKernel, NoBarrierCanBeLeftOut) {
  std::vector<std::pair<Drawn, VerifyRule>> cases;
  for (uint64_t number = 0; number < 16; ++number)
    for (const VerifyRule rule : {VerifyRule::kToken, VerifyRule::kBlock, VerifyRule::kCoupled})
      cases.push_back({draw_case(number, number % 2 == 1), rule});
  // Rejected siblings change the rows that later ones are compared with.
  for (uint64_t number = 100; number < 3000; ++number)
    if (const Drawn one = draw_case(number, true);
        one.p[0].size() < 40 && std::count(one.parents.begin(), one.parents.end(), -1) >= 3)
      cases.push_back({one, VerifyRule::kToken});
  const auto results = [&] {
    std::vector<std::array<int32_t, 4>> out;
    for (uint64_t number = 0; number < 4; ++number)
      for (const SamplingOptions& options :
           {SamplingOptions{.temperature = 0.8, .top_k = 30, .top_p = 0.7, .min_p = 0.05},
            SamplingOptions{.temperature = 1.5}}) {
        const Sampled s = sample(logits_of(number, 150, number % 2 == 0), options, number, 96);
        double mean = 0;
        for (size_t i = 0; i < s.probs.size(); ++i) mean += static_cast<double>(i) * static_cast<double>(s.probs[i]);
        out.push_back({s.token, s.equal ? 1 : 0, static_cast<int32_t>(1e6 * mean), 0});
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
