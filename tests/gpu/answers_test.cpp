// Tests whole answers on the machine's device (a GPU or fibers). Greedy text must be the same with and without a draft,
// and drawn tokens must follow the target's distribution.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "base/statistics.h"
#include "engine/decode/device/device_round.h"
#include "engine/decode/runners/draft.h"
#include "engine/decode/runners/model_runner.h"
#include "engine/decode/step.h"
#include "engine/forward/forward.h"
#include "tests/gpu/machine.h"
#include "tests/gpu/report.h"
#include "tests/model/toy_decoders.h"

namespace specdec::gpu {
namespace {

using decode::Request;
using decode::Sequence;
using decode::Stepper;
using model::Decoder;

// A target and a draft. The draft has the target's weights plus noise, so that it often agrees with the target.
struct Pair {
  std::shared_ptr<Decoder> target;
  decode::DraftPtr draft;
};
Pair toy_pair(const std::string& type, at::ScalarType dtype, int64_t layers) {
  const Decoder target = model::toy_decoder(model::toy_config(type, layers), 3);
  Decoder draft = target;
  int64_t seed = 10;
  draft.weights.visit(draft.config, [&](const std::string&, at::Tensor& tensor) {
    at::manual_seed(seed++);
    if (tensor.dim() == 2) tensor = tensor + 0.2 * tensor.std() * at::randn(tensor.sizes());
  });
  return {on_machine(target, dtype), decode::make_draft(on_machine(draft, at::kBFloat16))};
}
// Returns a target and an EAGLE-3 head with random weights, some of whose tokens are accepted by chance.
Pair head_pair() {
  const Decoder target = model::toy_decoder(model::toy_config("llama", 4), 3);
  return {on_machine(target, at::kBFloat16),
          decode::make_draft(on_machine(model::new_eagle_head(target, {}, 5, at::kFloat), at::kBFloat16))};
}

// How a batch is decoded: K (drafted tokens per step; with a draft tree, its depth), the verification rule, and whether
// the device runs a whole step without the host (`rounds`). With `stops`, drafting may end before K tokens.
struct Way {
  int k = 0;
  VerifyRule rule = VerifyRule::kToken;
  bool rounds = false;
  bool stops = false;
  std::vector<int> tree = {};
  std::string text() const {
    std::string out = "K " + std::to_string(k) + ", rule " + to_string(rule);
    for (const int width : tree) out += (&width == tree.data() ? ", tree " : ",") + std::to_string(width);
    return out + (stops ? ", stops early" : "") + (rounds ? ", in rounds" : ", step by step");
  }
};

struct Answers {
  std::vector<std::vector<int32_t>> tokens;
  int64_t drafted = 0, accepted = 0;
};
Answers answer(const Pair& pair, const std::vector<Request>& requests, const Way& way) {
  const auto target = decode::make_model_runner(pair.target);
  const auto draft = decode::make_draft_runner(pair.draft, *target);
  const auto rounds = decode::make_device_round(*target);
  Stepper stepper(*target, draft.get());
  if (way.rounds) stepper.use_rounds(rounds.get());
  decode::Drafting drafting;
  drafting.verify = way.rule;
  if (way.k > 0) {
    decode::ControllerOptions& model = drafting.model.emplace();
    model.tree = way.tree;
    if (way.stops)
      model.max_k = way.k, model.confidence_floor = 0.25;
    else
      model.fixed_k = way.k;
  }
  std::vector<std::unique_ptr<Sequence>> sequences;
  for (const Request& request : requests) {
    sequences.push_back(std::make_unique<Sequence>(stepper, request, drafting));
    stepper.start(*sequences.back());
  }
  for (;;) {
    std::vector<Sequence*> open;
    for (const auto& sequence : sequences)
      if (sequence->remaining() > 0) open.push_back(sequence.get());
    if (open.empty()) break;
    stepper.step(open);
  }
  Answers out;
  for (const auto& sequence : sequences) {
    out.tokens.emplace_back(sequence->answer().begin(), sequence->answer().end());
    out.drafted += sequence->counts().drafted, out.accepted += sequence->counts().accepted;
  }
  return out;
}

TEST(Answers, GreedyTextIsTheSameWithAHead) {
  const Pair pair = head_pair();
  std::vector<Request> requests;
  for (int32_t i = 0; i < 3; ++i)
    requests.push_back(
        {{5, 9 + i, 2, 7}, 3, {.max_tokens = machine().real ? 200 : 10, .sampling = {.temperature = 0}}});
  const Answers plain = answer(pair, requests, {});
  for (const bool rounds : {true, false}) {
    const Answers found = answer(pair, requests, {3, VerifyRule::kToken, rounds});
    EXPECT_EQ(found.tokens, plain.tokens) << (rounds ? "in rounds" : "step by step");
    EXPECT_GT(found.drafted, 0);
  }
}

TEST(Answers, GreedyTextIsTheSameWithADraft) {
  const int64_t length = machine().real ? 200 : 12;
  std::vector<Request> requests;
  for (int32_t i = 0; i < (machine().real ? 7 : 3); ++i) {
    Request request{{5, 9 + i, 2, 7}, 3, {.max_tokens = length, .sampling = {.temperature = 0}}};
    for (int32_t more = 0; more < 9 * i; ++more) request.prompt.push_back((more * 7 + i) % 61);
    requests.push_back(request);
  }
  for (const at::ScalarType dtype : {at::kBFloat16, at::kChar})
    for (const char* type : {"llama", "qwen2", "qwen3"}) {
      const Pair pair = toy_pair(type, dtype, machine().real ? 4 : 1);
      const Answers plain = answer(pair, requests, {});
      Answers alone;
      for (const Request& request : requests) alone.tokens.push_back(answer(pair, {request}, {}).tokens[0]);
      EXPECT_EQ(plain.tokens, alone.tokens) << type << ": a batch changes the text";
      std::vector<Way> ways = {{.k = 4, .rounds = true, .stops = true}};
      for (const int k : {1, 3, 5})
        for (const bool rounds : {false, true}) ways.push_back({.k = k, .rounds = rounds});
      for (const Way& way : ways) {
        const Answers found = answer(pair, requests, way);
        EXPECT_EQ(found.tokens, plain.tokens) << type << ", " << way.text();
        EXPECT_GT(found.accepted, 0) << way.text();
        EXPECT_TRUE(way.stops || found.accepted < found.drafted) << way.text();
      }
    }
}

// Returns the target's distribution of the next token after each text, from passes on the machine's device.
std::vector<std::vector<double>> distributions(const Pair& pair, const std::vector<std::vector<int32_t>>& texts) {
  std::vector<std::vector<double>> out;
  for (const std::vector<int32_t>& text : texts) {
    model::KvCache cache(pair.target->config, machine().device, at::kBFloat16);
    const model::SequencePart part = {.cache = &cache, .tokens = text, .num_logits = 1};
    const at::Tensor row = model::forward(*pair.target, {&part, 1}).cpu().to(at::kDouble).softmax(1).contiguous();
    out.emplace_back(row.const_data_ptr<double>(), row.const_data_ptr<double>() + row.numel());
  }
  return out;
}

// Returns the p-value of Pearson's chi-squared test. counts[i] says how often token i was drawn in `n` draws. Rare
// tokens are counted together, so that every expected count is at least five.
double p_value(const std::vector<int64_t>& counts, const std::vector<double>& probabilities, int64_t n) {
  struct Cell {
    double expected = 0, seen = 0;
  };
  std::vector<size_t> ids(counts.size());
  std::iota(ids.begin(), ids.end(), size_t{0});
  std::sort(ids.begin(), ids.end(), [&](size_t a, size_t b) { return probabilities[a] > probabilities[b]; });
  std::vector<Cell> cells(1);
  for (const size_t id : ids) {
    if (cells.back().expected >= 5) cells.emplace_back();
    cells.back().expected += probabilities[id] * static_cast<double>(n);
    cells.back().seen += static_cast<double>(counts[id]);
  }
  if (cells.size() > 1 && cells.back().expected < 5) {
    const Cell rest = cells.back();
    cells.pop_back();
    cells.back().expected += rest.expected, cells.back().seen += rest.seen;
  }
  double statistic = 0;
  for (const Cell& cell : cells) statistic += (cell.seen - cell.expected) * (cell.seen - cell.expected) / cell.expected;
  EXPECT_GT(cells.size(), 2u);
  return chi_square_p_value(statistic, static_cast<double>(cells.size()) - 1);
}

// Draws answers of four tokens under many seeds. The first two tokens must follow the target's distributions. The
// second token is in most cases a drafted token or a correction.
TEST(Answers, DrawnTokensFollowTheTarget) {
  constexpr double kSuspicious = 1e-5;
  const int64_t draws = machine().real ? 8192 : 128;
  const Pair pair = toy_pair("llama", at::kBFloat16, machine().real ? 2 : 1);
  const std::vector<int32_t> prompt = {5, 9, 2, 7};
  const std::vector<double> first = distributions(pair, {prompt})[0];
  std::vector<std::vector<int32_t>> texts;
  for (int32_t token = 0; token < static_cast<int32_t>(first.size()); ++token) {
    texts.push_back(prompt);
    texts.back().push_back(token);
  }
  std::vector<double> second(first.size());
  size_t token = 0;
  for (const std::vector<double>& after : distributions(pair, texts)) {
    for (size_t i = 0; i < after.size(); ++i) second[i] += first[token] * after[i];
    ++token;
  }
  for (const Way& way : {Way{}, Way{3, VerifyRule::kToken, false}, Way{3, VerifyRule::kToken, true},
                         Way{3, VerifyRule::kBlock, true}, Way{2, VerifyRule::kTarget, true},
                         Way{2, VerifyRule::kCoupled, false}, Way{2, VerifyRule::kToken, true, false, {3, 1}},
                         Way{2, VerifyRule::kBlock, true, false, {2, 2}}, Way{3, VerifyRule::kToken, true, true}}) {
    const int64_t batch = way.tree.empty() ? 64 : 32;  // the kernels take at most 256 rows per step
    std::vector<int64_t> counts[2] = {std::vector<int64_t>(first.size()), std::vector<int64_t>(first.size())};
    for (int64_t begin = 0; begin < draws; begin += batch) {
      std::vector<Request> requests;
      for (int64_t i = 0; i < batch; ++i)
        requests.push_back(
            {prompt, static_cast<uint64_t>(begin + i), {.max_tokens = 4, .sampling = {.temperature = 1}}});
      for (const std::vector<int32_t>& tokens : answer(pair, requests, way).tokens)
        for (size_t at = 0; at < 2; ++at) ++counts[at][static_cast<size_t>(tokens[at])];
    }
    const double p[] = {p_value(counts[0], first, draws), p_value(counts[1], second, draws)};
    EXPECT_GT(p[0], kSuspicious) << way.text() << ", first token";
    EXPECT_GT(p[1], kSuspicious) << way.text() << ", second token";
    record("chi_square", way.text(), Json::array({p[0], p[1]}));
  }
}

}  // namespace
}  // namespace specdec::gpu
