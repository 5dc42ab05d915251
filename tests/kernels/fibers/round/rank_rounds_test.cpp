// Tests rounds on the device whose target is divided among several ranks, with the kernels on fibers. They must give
// the same tokens as steps on the host, and the caches of all ranks must have the same contents.
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <optional>

#include "base/device_lost.h"
#include "base/philox.h"
#include "engine/decode/device/device_round.h"
#include "engine/decode/runners/draft.h"
#include "engine/decode/runners/mirrored_model.h"
#include "engine/decode/runners/model_runner.h"
#include "engine/decode/runners/round_models.h"
#include "engine/decode/runners/runner_parts.h"
#include "engine/decode/step.h"
#include "engine/forward/memory_plan.h"
#include "tests/kernels/fibers/model/toy_decoders.h"
#include "tests/model/turn_group.h"

namespace specdec::decode {
namespace {

using model::Decoder;
using model::Turns;
using Group = std::shared_ptr<const model::ShardGroup>;

constexpr int32_t kVocab = 32;
constexpr int64_t kBlock = model::BlockPool::kTokens;

Decoder divisible_target(int64_t layers) {
  Json config = model::toy_config("llama", layers);
  config["num_attention_heads"] = 4, config["num_key_value_heads"] = 2, config["head_dim"] = 8;
  config["vocab_size"] = kVocab;
  return model::toy_decoder(config, 3);
}

// A target in fp32, and its draft.
struct Models {
  Decoder target;
  DraftPtr draft;
  std::shared_ptr<const Decoder> decoder = nullptr;  // the draft's decoder; null for an EAGLE-3 head
};

const Models& with_decoder() {
  static const Models models = [] {
    Models out{divisible_target(1), {}};
    Decoder draft = out.target;
    draft.weights.visit(draft.config, [](const std::string&, at::Tensor& tensor) {
      at::manual_seed(10);
      if (tensor.dim() == 2) tensor = tensor + 0.2 * tensor.std() * at::randn(tensor.sizes());
    });
    out.decoder = on_fibers(draft, at::kBFloat16);
    out.draft = make_draft(out.decoder);
    return out;
  }();
  return models;
}

const Models& with_head() {
  static const Models models = [] {
    Models out{divisible_target(4), {}};
    out.draft = make_draft(model::head_on_fibers(out.target, {}, 5, at::kBFloat16));
    return out;
  }();
  return models;
}

// Messages that are no calls of the model: end, or write down the state of your caches (Team::holdings).
constexpr int64_t kEnd = -1, kNote = -2;

void send(const model::ShardGroup& group, std::vector<int64_t> numbers) {
  group.broadcast(at::tensor({static_cast<int64_t>(numbers.size())}, at::kLong));
  group.broadcast(at::tensor(numbers, at::kLong));
}
std::vector<int64_t> receive(const model::ShardGroup& group) {
  const at::Tensor count = at::zeros({1}, at::kLong);
  group.broadcast(count);
  const at::Tensor numbers = at::zeros({count.item<int64_t>()}, at::kLong);
  group.broadcast(numbers);
  return {numbers.const_data_ptr<int64_t>(), numbers.const_data_ptr<int64_t>() + numbers.numel()};
}

// What a test on rank 0 gets: the group, the target of all ranks, and the state of their caches.
struct Team {
  const Group& group;
  OtherRanks& others;
  CausalModel& target;
  // For each rank: its number of free cache blocks, and for each of the first sequences its length, its capacity and a
  // hash of the tokens and positions that its cache records.
  std::vector<std::vector<int64_t>>& holdings;

  // Makes each rank write down the state of its caches, and expects that all are equal.
  void expect_same_holdings(int64_t sequences) const {
    send(*group, {kNote, sequences});
    holdings[0] = holdings_of(target, sequences);
    group->broadcast(at::zeros({1}));  // waits until all ranks have written
    for (const std::vector<int64_t>& other : holdings) EXPECT_EQ(other, holdings[0]);
  }
  static std::vector<int64_t> holdings_of(CausalModel& model, int64_t sequences) {
    auto& target = dynamic_cast<RoundTarget&>(model);
    std::vector<int64_t> out = {target.pool().available()};
    for (SequenceId id = 0; id < sequences; ++id) try {
        const model::KvCache& cache = target.cache(id);
        int64_t sum = 0;
        for (size_t i = 0; cache.records() && i < cache.tokens().size(); ++i)
          sum = (31 * sum + 1000 * cache.positions()[i] + cache.tokens()[i]) % 1000003;
        out.insert(out.end(), {cache.length(), cache.capacity(), sum});
      } catch (const Error&) {
        out.push_back(-1);  // the sequence is closed
      }
    return out;
  }
};

struct TeamOptions {
  int ranks = 2;
  int64_t cache_tokens = 0;  // 0: no limit
  // Maps a rank to the library that its kernels come from instead of fiber_library().
  std::map<int, const kernels::CudaLibrary*> libraries = {};
  const bool* stops = nullptr;  // the other ranks end at the next call once this is true
};

int64_t bytes_of(const model::DecoderConfig& config, int64_t cache_tokens) {
  return cache_tokens == 0 ? 0 : model::cache_bytes(config, at::kBFloat16, 1, cache_tokens);
}

// Runs f on rank 0, while the other ranks repeat the calls of rank 0's target. Returns the error text of each rank.
std::vector<std::string> run_team(const Decoder& whole, const TeamOptions& options,
                                  const std::function<void(const Team&)>& f) {
  std::vector<std::vector<int64_t>> holdings(static_cast<size_t>(options.ranks));
  return Turns::run(options.ranks, [&](const Group& group) {
    const auto share = on_fibers(shard_of(whole, group), at::kBFloat16);
    const auto library = options.libraries.find(group->rank());
    if (library != options.libraries.end()) share->library = library->second;
    auto runner = make_model_runner(share, bytes_of(share->config, options.cache_tokens));
    if (group->rank() == 0) {
      OtherRanks others([&](std::span<const int64_t> call) { send(*group, {call.begin(), call.end()}); });
      const auto target = make_mirrored_model(std::move(runner), others);
      f({group, others, *target, holdings});
      if (!others.lost()) send(*group, {kEnd});
      return;
    }
    LogitRows unread;
    for (auto call = receive(*group); call[0] != kEnd; call = receive(*group)) {
      if (options.stops && *options.stops) return;
      if (call[0] != kNote) {
        repeat_call(*runner, call, unread);
        continue;
      }
      holdings[static_cast<size_t>(group->rank())] = Team::holdings_of(*runner, call[1]);
      group->broadcast(at::zeros({1}));
    }
  });
}

const std::vector<std::string> kNoErrors(2, "");

// Counts the rounds that ran on the device, and those that did not.
class CountedRounds final : public RoundRunner {
 public:
  explicit CountedRounds(CausalModel& target) : runner_(make_device_round(target)) {}
  bool takes(std::span<const RoundSlot> slots) override { return runner_->takes(slots); }
  bool run(std::span<const RoundSlot> slots, std::span<RoundOutcome> outcomes, RoundSeconds& seconds) override {
    const bool ran = runner_->run(slots, outcomes, seconds);
    ++(ran ? count : refused);
    return ran;
  }
  int64_t count = 0, refused = 0;

 private:
  std::unique_ptr<RoundRunner> runner_;
};

Request draw_request(PhiloxStream& random) {
  Request request;
  const auto length = static_cast<int64_t>(random.below(5) == 0 ? kBlock + 1 + random.below(4) : 2 + random.below(12));
  const uint64_t ids = 2 + random.below(2);
  for (int64_t i = 0; i < length; ++i)  // few different texts, so that some share cached blocks
    request.prompt.push_back(static_cast<int32_t>(static_cast<uint64_t>(i) % ids * 5 + 1));
  request.seed = random.below(1000);
  RequestOptions& options = request.options;
  options.max_tokens = static_cast<int64_t>(2 + random.below(12));
  if (random.below(2) == 0) options.sampling.temperature = 0;
  if (random.below(3) == 0) options.sampling.top_k = static_cast<int64_t>(1 + random.below(20));
  if (random.below(3) == 0) options.sampling.top_p = 0.6 + 0.3 * random.uniform();
  return request;
}

Drafting draw_drafting(PhiloxStream& random) {
  Drafting drafting;
  const VerifyRule rules[] = {VerifyRule::kToken, VerifyRule::kBlock, VerifyRule::kTarget};
  drafting.verify = rules[random.below(3)];
  if (random.below(6) != 0) {
    ControllerOptions& model = drafting.model.emplace();
    const uint64_t kind = random.below(4);
    model.fixed_k = static_cast<int>(kind == 0 ? 2 : random.below(5));
    if (kind == 0) model.tree = {3, 2};
    if (kind == 1) model.fixed_k = -1, model.max_k = 4, model.confidence_floor = 0.3;
  }
  if (random.below(5) == 0) drafting.text.emplace().fixed_k = 3;
  return drafting;
}

struct Totals {
  int64_t steps = 0, rounds = 0, drafted = 0, accepted = 0;
};

// Runs a random schedule in which answers start, end, and are abandoned. Returns their texts.
std::vector<std::string> schedule(const Team& team, const Models& models, uint64_t number, bool in_rounds,
                                  int64_t cache_tokens, Totals& totals) {
  PhiloxStream random(78, number);
  const auto draft = make_draft_runner(models.draft, team.target, bytes_of(models.draft->config(), cache_tokens));
  CountedRounds rounds(team.target);
  Stepper stepper(team.target, draft.get());
  if (in_rounds) stepper.use_rounds(&rounds);
  std::vector<std::unique_ptr<Sequence>> open;
  std::vector<std::string> texts;
  const auto end = [&](size_t i) {
    std::string& text = texts.emplace_back();
    for (const int32_t token : open[i]->answer()) text += std::to_string(token) + " ";
    open.erase(open.begin() + static_cast<std::ptrdiff_t>(i));
  };
  for (int event = 0; event < 16 || !open.empty(); ++event) {
    const uint64_t what = random.below(10);
    if (event < 16 && open.size() < 4 && (what < 5 || open.empty())) {
      const Request request = draw_request(random);
      open.push_back(std::make_unique<Sequence>(stepper, request, draw_drafting(random)));
      stepper.start(*open.back(), 50);
    } else if (what == 9 && !open.empty()) {
      end(0);
    }
    std::vector<Sequence*> batch;
    for (const auto& sequence : open) batch.push_back(sequence.get());
    if (batch.empty()) continue;
    stepper.step(batch);
    ++totals.steps;
    team.expect_same_holdings(32);
    for (size_t i = open.size(); i-- > 0;) {
      totals.drafted += open[i]->outcome().drafted, totals.accepted += open[i]->outcome().accepted;
      if (open[i]->remaining() == 0) end(i);
    }
  }
  totals.rounds += rounds.count;
  return texts;
}

void run_schedules(const Models& models, int ranks, uint64_t schedules) {
  Totals host, device;
  for (uint64_t number = 0; number < schedules && !::testing::Test::HasFailure(); ++number) {
    const int64_t tokens = number % 2 == 0 ? 0 : 20 * kBlock;
    std::vector<std::string> texts[2];
    for (const bool rounds : {false, true}) {
      const auto errors = run_team(models.target, {.ranks = ranks, .cache_tokens = tokens}, [&](const Team& team) {
        texts[rounds] = schedule(team, models, number, rounds, tokens, rounds ? device : host);
      });
      EXPECT_EQ(errors, std::vector<std::string>(static_cast<size_t>(ranks), "")) << "schedule " << number;
    }
    EXPECT_EQ(texts[1], texts[0]) << "schedule " << number << ", " << ranks << " ranks";
    EXPECT_GT(texts[0].size(), 2);
  }
  if (::testing::Test::HasFailure()) return;
  EXPECT_EQ(host.rounds, 0);
  EXPECT_GT(device.rounds * 10, device.steps * 9) << "most steps must be rounds";
  EXPECT_GT(device.accepted * 40, device.drafted) << "drafts must be accepted now and then";
  EXPECT_LT(device.accepted * 5, device.drafted * 4) << "and rejected";
}

TEST(RankRounds, GiveTheTokensOfTheRanksStepsOnTheHost) {
  run_schedules(with_decoder(), 2, 24);
  run_schedules(with_decoder(), 4, 4);
}

TEST(RankRounds, GiveTheTokensOfTheRanksStepsOnTheHostWithAHead) { run_schedules(with_head(), 2, 5); }

// A pass over a tree in a round gives the same logits as on the host, though other ranks learn its tokens only
// afterwards.
TEST(RankRounds, RunTreesOnAllRanks) {
  const std::vector<int32_t> text = {5, 9, 2}, tree = {7, 1, 4, 6, 3}, unknown(5, 0), parents = {-1, 0, 0, 1, 2};
  const auto errors = run_team(with_decoder().target, {.cache_tokens = 4 * kBlock}, [&](const Team& team) {
    const c10::InferenceMode guard;
    const auto extend = [&](SequenceId id, std::span<const int32_t> tokens, std::span<const int32_t> nodes = {}) {
      LogitRows out;
      const Extension extension = {id, tokens, static_cast<int64_t>(tokens.size()), nodes};
      team.target.extend({&extension, 1}, out);
      return out.data;
    };
    const SequenceId ids[] = {team.target.open(), team.target.open()};
    for (const SequenceId id : ids) {
      team.target.adopt(id, {}, 1);
      extend(id, text);
    }
    const std::vector<float> expected = extend(ids[0], tree, parents);

    auto& target = dynamic_cast<RoundTarget&>(team.target);
    const Extension open = {ids[1], unknown, 5, parents}, known = {ids[1], tree, 5, parents};
    target.reserve({&open, 1});
    model::CudaPass pass(target.decoder());
    model::SequencePart part{.cache = &target.cache(ids[1]), .tokens = tree, .num_logits = 5};
    set_tree(parents, part);
    model::add_part(part, 5, pass);
    model::DeviceUpload upload(at::kCPU);
    pass.describe(upload);
    upload.send();
    const at::Tensor logits = target.run_pass(pass, upload, {&open, 1}).to(at::kFloat);
    EXPECT_TRUE(at::equal(logits.flatten(), at::tensor(expected)));
    target.commit_pass({&known, 1});
    team.expect_same_holdings(2);
    const std::vector<int64_t>& held = team.holdings[0];
    EXPECT_TRUE(std::equal(held.begin() + 1, held.begin() + 4, held.begin() + 4)) << "both sequences hold the same";

    for (const SequenceId id : ids) team.target.keep(id, 3, std::vector<int64_t>{3, 5, 7});
    team.expect_same_holdings(2);
    EXPECT_EQ(extend(ids[1], text), extend(ids[0], text));
  });
  EXPECT_EQ(errors, kNoErrors);
}

// Once `spoiled` is true, out_of_memory() fails after `calls_left` more products, and without_verdict() gives no
// outcome.
bool spoiled = false;
int64_t calls_left = 0;
const kernels::CudaLibrary& out_of_memory() {
  constexpr int32_t kMemoryAllocation = 2;  // cudaErrorMemoryAllocation
  static const kernels::CudaLibrary library = [] {
    kernels::CudaLibrary made = fibers::fiber_library();
    made.rows_product = [](kernels::CudaDtype dtype, int32_t device, const kernels::RowsProduct* product) {
      return spoiled && calls_left-- <= 0 ? kMemoryAllocation
                                          : fibers::fiber_library().rows_product(dtype, device, product);
    };
    return made;
  }();
  return library;
}
const kernels::CudaLibrary& without_verdict() {
  static const kernels::CudaLibrary library = [] {
    kernels::CudaLibrary made = fibers::fiber_library();
    made.verify = [](int32_t device, const kernels::VerifyPass* pass) {
      const int32_t code = fibers::fiber_library().verify(device, pass);
      if (spoiled) pass->outcomes[0].failed = 1;
      return code;
    };
    return made;
  }();
  return library;
}

// A greedy answer that is generated in rounds, with a decoder as its draft.
struct Answer {
  Answer(const Team& team, std::shared_ptr<const Decoder> draft_decoder, int64_t prompt = 4)
      : draft(make_model_runner(std::move(draft_decoder))), rounds(team.target), stepper(team.target, draft.get()) {
    stepper.use_rounds(&rounds);
    Request request{{}, 3, {.max_tokens = 14, .sampling = {.temperature = 0}}};
    for (int32_t i = 0; i < prompt; ++i) request.prompt.push_back(i * 7 % kVocab);
    Drafting drafting;
    drafting.model.emplace().fixed_k = 3;
    sequence.emplace(stepper, request, drafting);
    stepper.start(*sequence, 50);
  }
  void step() {
    Sequence* const batch[] = {&*sequence};
    stepper.step(batch);
  }
  void finish() {
    while (sequence->remaining() > 0) step();
  }
  std::vector<int32_t> tokens() const { return {sequence->answer().begin(), sequence->answer().end()}; }

  std::unique_ptr<CausalModel> draft;
  CountedRounds rounds;
  Stepper stepper;
  std::optional<Sequence> sequence;
};

std::shared_ptr<const Decoder> usual_draft() { return with_decoder().decoder; }

std::vector<int32_t> undisturbed_answer(int64_t prompt = 4) {
  std::vector<int32_t> tokens;
  EXPECT_EQ(run_team(with_decoder().target, {},
                     [&](const Team& team) {
                       Answer answer(team, usual_draft(), prompt);
                       answer.finish();
                       EXPECT_GT(answer.rounds.count, 2);
                       tokens = answer.tokens();
                     }),
            kNoErrors);
  return tokens;
}

TEST(RankRounds, ARoundWithoutUseLeavesAllCachesAsBefore) {
  const std::vector<int32_t> expected = undisturbed_answer();
  for (const int times : {1, 100}) {
    spoiled = false;
    const auto errors =
        run_team(with_decoder().target, {.libraries = {{0, &without_verdict()}}}, [&](const Team& team) {
          Answer answer(team, usual_draft());
          answer.step();
          spoiled = true;
          for (int i = 0; i < times && answer.sequence->remaining() > 0; ++i) answer.step();
          spoiled = false;
          EXPECT_GT(answer.rounds.refused, 0);
          team.expect_same_holdings(1);
          answer.finish();
          EXPECT_EQ(answer.tokens(), expected);
        });
    EXPECT_EQ(errors, kNoErrors);
  }
}

// The round that fails has reserved a cache block that plain decoding does not need yet.
TEST(RankRounds, ADraftThatFailsLeavesTheRanksAgreed) {
  const int64_t prompt = kBlock - 8;
  const std::vector<int32_t> expected = undisturbed_answer(prompt);
  const auto draft = std::make_shared<Decoder>(*usual_draft());
  draft->library = &out_of_memory();
  for (const int64_t calls : {0, 6, 12}) {
    spoiled = false, calls_left = calls;
    const auto errors = run_team(with_decoder().target, {.cache_tokens = 4 * kBlock}, [&](const Team& team) {
      Answer answer(team, draft, prompt);
      while (team.target.length(answer.sequence->target_id()) + 4 <= kBlock) answer.step();
      EXPECT_GT(answer.rounds.count, 0);
      spoiled = true;
      answer.step();
      team.expect_same_holdings(1);
      answer.finish();
      EXPECT_FALSE(team.others.lost());
      EXPECT_EQ(answer.tokens(), expected);
    });
    EXPECT_EQ(errors, kNoErrors) << calls;
  }
  spoiled = false;
}

TEST(RankRounds, AFailureOfOneRankEndsTheModel) {
  for (const int failing : {0, 1, -1}) {  // -1: rank 1 ends without an error
    for (const int64_t calls : {0, 3}) {
      spoiled = false, calls_left = calls;
      TeamOptions options;
      if (failing < 0)
        options.stops = &spoiled;
      else
        options.libraries[failing] = &out_of_memory();
      const auto errors = run_team(with_decoder().target, options, [&](const Team& team) {
        Answer answer(team, usual_draft());
        answer.step();
        EXPECT_EQ(answer.rounds.count, 1);
        spoiled = true;
        EXPECT_THROW(answer.step(), DeviceLost);
        EXPECT_TRUE(team.others.lost());
        EXPECT_EQ(answer.rounds.count, 1);
        EXPECT_THROW(team.target.open(), DeviceLost);
      });
      EXPECT_EQ(errors[0], "");
      const std::string said = failing == 0 ? "another rank is gone" : failing == 1 ? "memory is used up" : "";
      EXPECT_NE(errors[1].find(said), std::string::npos) << errors[1];
      spoiled = false;
    }
  }
}

}  // namespace
}  // namespace specdec::decode
