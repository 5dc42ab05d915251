// Tests that several ranks, each with a share of a decoder, give the same results as one process with the whole
// decoder.
#include "engine/config/shard.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>

#include <condition_variable>
#include <deque>
#include <mutex>

#include "base/device_lost.h"
#include "base/run_options.h"
#include "engine/decode/generate.h"
#include "engine/decode/runners/mirrored_model.h"
#include "engine/decode/runners/model_runner.h"
#include "engine/decode/runners/tap_source.h"
#include "engine/forward/forward.h"
#include "engine/parallel/shard_ranks.h"
#include "engine/weights/weights.h"
#include "tests/base/scratch.h"
#include "tests/model/small_configs.h"
#include "tests/parallel/rank_threads.h"

namespace specdec::parallel {
namespace {

using namespace specdec::testing;

// Scales the weights of a random decoder so that its logits differ by a few units, like those of a trained one.
model::Decoder scaled_up(model::Decoder decoder) {
  at::manual_seed(3);
  decoder.weights.visit(decoder.config, [](const std::string& name, at::Tensor& tensor) {
    if (tensor.dim() == 1)
      tensor = tensor + 0.2 * at::randn(tensor.sizes());
    else
      tensor = tensor * (name == "model.embed_tokens.weight" ? 40 : name == "lm_head.weight" ? 12 : 5);
  });
  if (decoder.config.tie_embeddings) decoder.weights.lm_head = decoder.weights.embed;
  return decoder;
}

// Returns a decoder for 2 or 4 ranks; with 4 ranks, two ranks keep the same kv head. The sizes of its vocabulary and of
// its MLP need not be divisible by the number of ranks.
model::Decoder whole_decoder(const std::string& kind, uint64_t seed = 5) {
  model::DecoderConfig config = model::config_like(kind);
  config.num_heads = 8, config.num_kv_heads = 2;
  return scaled_up(model::random_decoder(config, seed, at::kCPU, at::kFloat));
}

// Returns the logits of two passes over two texts. The second pass has a tree.
at::Tensor logits_of(const model::Decoder& decoder) {
  std::vector<int32_t> ids;
  for (int i = 0; i < 40; ++i) ids.push_back((i * 37 + i / 7) % 90);
  const std::span<const int32_t> text = ids;
  model::KvCache a(decoder.config, at::kCPU, at::kFloat), b(decoder.config, at::kCPU, at::kFloat);
  std::vector<model::SequencePart> parts(2);
  parts[0] = {.cache = &a, .tokens = text.first(23), .num_logits = 23};
  parts[1] = {.cache = &b, .tokens = text.subspan(5, 9), .num_logits = 1};
  const at::Tensor first = model::forward(decoder, parts);
  parts[0] = {.cache = &a, .tokens = text.subspan(23, 2), .num_logits = 2};
  parts[1] = {.cache = &b, .tokens = text.subspan(30, 3), .num_logits = 3};
  parts[1].tree_mask = at::eye(3, at::kBool);
  parts[1].tree_mask.select(1, 0).fill_(true);
  parts[1].positions = {9, 10, 10};
  return at::cat({first, model::forward(decoder, parts)});
}

double largest_difference(const at::Tensor& found, const at::Tensor& expected) {
  return (found - expected).abs().max().item<double>() / expected.abs().max().item<double>();
}

TEST(Shard, RanksGiveTheLogitsOfOneProcess) {
  for (const char* kind : {"llama", "gemma", "olmo", "experts"}) {
    const model::Decoder whole = whole_decoder(kind);
    const at::Tensor expected = logits_of(whole);
    EXPECT_GT(expected.std().item<double>(), 0.3) << kind;
    const model::TrainBatch batch{.tokens = at::arange(24, at::kLong).view({2, 12})};
    const at::Tensor trained = model::forward(whole, batch);
    for (const int count : {2, 4}) {
      const auto errors = as_ranks(count, [&](const Ranks& ranks) {
        const at::NoGradGuard guard;
        const model::Decoder own = model::shard_of(whole, make_shard_group(ranks));
        EXPECT_LT(own.weights.layers[0].q.numel() * count, whole.weights.layers[0].q.numel() + 1);
        const at::Tensor logits = logits_of(own);
        ASSERT_EQ(logits.sizes(), expected.sizes());
        EXPECT_LT(largest_difference(logits, expected), 1e-5) << kind << ", " << count << " ranks";
        EXPECT_LT(largest_difference(model::forward(own, batch), trained), 1e-5) << kind << ", " << count << " ranks";
        for (const at::Tensor& other : ranks.gather(logits)) EXPECT_TRUE(at::equal(other, logits)) << kind;
      });
      EXPECT_EQ(errors, std::vector<std::string>(static_cast<size_t>(count), ""));
    }
  }
}

// Returns a decoder of a model family that can be saved with its config.json. phi3 stores queries, keys and values as
// one tensor.
model::Decoder decoder_of_family(const std::string& family) {
  Json config = {{"model_type", family},
                 {"vocab_size", 91},
                 {"hidden_size", 64},
                 {"intermediate_size", 90},
                 {"num_hidden_layers", 2},
                 {"num_attention_heads", 4},
                 {"num_key_value_heads", 2},
                 {"max_position_embeddings", 400},
                 {"rms_norm_eps", 1e-5},
                 {"rope_theta", 10000.0},
                 {"tie_word_embeddings", family == "qwen2"},
                 {"torch_dtype", "float32"}};
  if (family == "qwen3_moe")
    config.update({{"head_dim", 16},
                   {"num_experts", 6},
                   {"num_experts_per_tok", 2},
                   {"moe_intermediate_size", 30},
                   {"norm_topk_prob", true}});
  return scaled_up(model::random_decoder(model::parse_decoder_config(config, family), 5, at::kCPU, at::kFloat));
}

TEST(Shard, ReadsItsShareFromFiles) {
  const Scratch scratch;
  for (const char* kind : {"llama", "qwen2", "phi3", "olmo2", "qwen3_moe"}) {
    const model::Decoder whole = decoder_of_family(kind);
    const auto directory = scratch / kind;
    std::filesystem::create_directories(directory);
    model::save_decoder(whole, directory);
    const auto errors = as_ranks(2, [&](const Ranks& ranks) {
      const auto group = make_shard_group(ranks);
      model::Decoder expected = model::shard_of(whole, group),
                     found = model::load_shard(directory, at::kCPU, at::kFloat, group);
      std::vector<at::Tensor> tensors;
      expected.weights.visit(expected.config, [&](const std::string&, at::Tensor& t) { tensors.push_back(t); });
      size_t i = 0;
      found.weights.visit(found.config, [&](const std::string& name, at::Tensor& t) {
        EXPECT_TRUE(at::equal(t, tensors[i++])) << kind << " " << name;
      });
      EXPECT_EQ(i, tensors.size());
      EXPECT_EQ(found.config.num_heads, 2);
      // Packed matrices and int8 matrices give nearly the same logits.
      const at::Tensor logits = logits_of(expected);
      EXPECT_LT(largest_difference(logits_of(*model::load_shard_for_decoding(directory, at::kCPU, at::kFloat, group)),
                                   logits),
                1e-5)
          << kind;
      EXPECT_LT(
          largest_difference(logits_of(*model::load_shard_for_decoding(directory, at::kCPU, at::kChar, group)), logits),
          0.2)
          << kind;
    });
    EXPECT_EQ(errors, std::vector<std::string>(2, ""));
  }
}

// Broadcasts a slice in the middle of other memory, as a step on a GPU does with token ids. The memory around the slice
// must not change.
TEST(Shard, BroadcastsTheNumbersOfRankZero) {
  const auto errors = as_ranks(3, [&](const Ranks& ranks) {
    const c10::InferenceMode guard;
    const auto group = make_shard_group(ranks);
    const at::Tensor memory = at::full({10}, ranks.rank() + 1, at::kInt).view(at::kByte);
    group->broadcast(memory.narrow(0, 16, 12).view(at::kInt));
    at::Tensor expected = at::full({10}, ranks.rank() + 1, at::kInt);
    expected.narrow(0, 4, 3).fill_(1);
    EXPECT_TRUE(at::equal(memory.view(at::kInt), expected)) << "rank " << ranks.rank();
  });
  EXPECT_EQ(errors, std::vector<std::string>(3, ""));
}

TEST(Shard, WhatCannotBeDividedIsAnError) {
  model::DecoderConfig config = model::config_like("llama");
  expect_error(ErrorKind::kUsage, {"4 ranks", "its 6 attention heads cannot be divided by 4"},
               [&] { model::shard_config(config, 0, 4); });
  expect_error(ErrorKind::kUsage, {"2 ranks", "3 heads of keys and values"},
               [&] { model::shard_config(config, 0, 2); });
  EXPECT_EQ(model::shard_config(config, 2, 3).num_kv_heads, 1);
  EXPECT_EQ(model::shard_config(config, 2, 3).intermediate_size, 167);
}

// The calls that rank 0 has sent to the other ranks, in one queue per rank.
class Calls {
 public:
  explicit Calls(int ranks) : queues_(static_cast<size_t>(ranks)) {}
  void tell(std::span<const int64_t> call) {
    const std::lock_guard guard(lock_);
    for (auto& queue : queues_) queue.emplace_back(call.begin(), call.end());
    changed_.notify_all();
  }
  std::vector<int64_t> next(int rank) {  // an empty result means that no call follows
    std::unique_lock guard(lock_);
    auto& queue = queues_[static_cast<size_t>(rank)];
    changed_.wait(guard, [&] { return !queue.empty(); });
    const auto call = queue.front();
    queue.pop_front();
    return call;
  }

 private:
  std::mutex lock_;
  std::condition_variable changed_;
  std::vector<std::deque<std::vector<int64_t>>> queues_;
};

// Runs `f` with a model on rank 0. All other ranks repeat each call that `f` makes to the model.
void decode_together(const Ranks& ranks, Calls& calls, const model::Decoder& whole, int64_t cache_bytes,
                     const std::function<void(decode::CausalModel&)>& f) {
  const auto own = std::make_shared<const model::Decoder>(model::shard_of(whole, make_shard_group(ranks)));
  auto runner = decode::make_model_runner(own, cache_bytes);
  if (!ranks.is_first()) {
    decode::LogitRows unread;
    for (auto call = calls.next(ranks.rank()); !call.empty(); call = calls.next(ranks.rank()))
      decode::repeat_call(*runner, call, unread);
    return;
  }
  decode::OtherRanks others([&](std::span<const int64_t> call) { calls.tell(call); });
  const auto mirrored = decode::make_mirrored_model(std::move(runner), others);
  f(*mirrored);
  calls.tell({});
}

// Returns the greedy texts of one request: plain and with drafts, with a chain and with a tree.
std::vector<std::vector<int32_t>> texts_of(decode::CausalModel& target, decode::CausalModel& draft) {
  const SystemClock clock;
  std::vector<std::vector<int32_t>> texts;
  for (const int k : {0, 3}) {
    for (const std::vector<int>& tree : {std::vector<int>{}, std::vector<int>{2, 2, 1}}) {
      decode::Stepper stepper(target, &draft, nullptr, &clock);
      const decode::Request request{{1, 5, 44, 7}, 1, {.max_tokens = 40, .sampling = {.temperature = 0}}};
      SpeculationOptions speculation{.k = k};
      if (k > 0) speculation.tree = tree;
      texts.push_back(generate(stepper, request, decode::drafting(speculation), clock).tokens);
    }
  }
  return texts;
}

TEST(Shard, RanksGiveTheGreedyTextOfOneProcess) {
  for (const char* kind : {"llama", "gemma"}) {
    const model::Decoder whole = whole_decoder(kind);
    const auto draft = std::make_shared<const model::Decoder>(whole_decoder(kind, 5));
    const auto alone = decode::make_model_runner(std::make_shared<const model::Decoder>(whole)),
               drafter = decode::make_model_runner(draft);
    const auto expected = texts_of(*alone, *drafter);
    for (const auto& text : expected) EXPECT_EQ(text, expected[0]) << "speculation changes nothing";
    EXPECT_GT(std::set<int32_t>(expected[0].begin(), expected[0].end()).size(), 8u);
    for (const int count : {2, 4}) {
      Calls calls(count);
      const auto errors = as_ranks(count, [&](const Ranks& ranks) {
        decode_together(ranks, calls, whole, 0, [&](decode::CausalModel& target) {
          const auto own_drafter = decode::make_model_runner(draft);
          EXPECT_EQ(texts_of(target, *own_drafter), expected) << kind << ", " << count << " ranks";
        });
      });
      EXPECT_EQ(errors, std::vector<std::string>(static_cast<size_t>(count), ""));
    }
  }
}

// Prompts are forked, adopted from cached blocks, truncated, and refused when the caches are full. All ranks must hold
// the same texts.
TEST(Shard, CachesHoldTheSameTextsOnAllRanks) {
  const model::Decoder whole = whole_decoder("llama");
  const auto run = [](decode::CausalModel& model, bool& refused) {
    std::vector<int32_t> text;
    for (int i = 0; i < 70; ++i) text.push_back((7 * i) % 90);
    const std::span<const int32_t> tokens = text;
    decode::LogitRows rows;
    const auto extend = [&](decode::SequenceId id, std::span<const int32_t> more, int64_t logits = 1) {
      model.extend(std::vector<decode::Extension>{{id, more, logits}}, rows);
    };
    const auto a = model.open();
    EXPECT_EQ(model.adopt(a, tokens, 3), 0);
    extend(a, tokens);
    const auto b = model.fork(a, 40);
    extend(b, tokens.first(5), 0);
    model.truncate(b, 41);
    model.close(a);
    const auto c = model.open();
    EXPECT_EQ(model.adopt(c, tokens, 3), 64);
    try {
      for (int i = 0; i < 40; ++i) extend(c, tokens.first(60), 0);
    } catch (const decode::CacheFull&) {
      refused = true;
    }
    model.close(c);
    extend(b, tokens.subspan(3, 9), 9);
    std::vector<float> last = rows.data;
    last.resize(static_cast<size_t>(9 * rows.vocab));
    return at::tensor(last);
  };
  bool refused = false;
  const int64_t bytes = 20 * model::BlockPool::block_bytes(whole.config, at::kFloat);
  const auto alone = decode::make_model_runner(std::make_shared<const model::Decoder>(whole), bytes);
  const at::Tensor expected = run(*alone, refused);
  EXPECT_TRUE(refused);
  Calls calls(2);
  const auto errors = as_ranks(2, [&](const Ranks& ranks) {
    decode_together(ranks, calls, whole, bytes / 2, [&](decode::CausalModel& model) {
      bool also_refused = false;
      EXPECT_LT(largest_difference(run(model, also_refused), expected), 1e-5);
      EXPECT_TRUE(also_refused);
    });
  });
  EXPECT_EQ(errors, std::vector<std::string>(2, ""));
}

TEST(Shard, ALostRankEndsTheModel) {
  const model::Decoder whole = whole_decoder("llama");
  Calls calls(2);
  std::string lost;
  const auto errors = as_ranks(2, [&](const Ranks& ranks) {
    const auto own = std::make_shared<const model::Decoder>(model::shard_of(whole, make_shard_group(ranks)));
    if (!ranks.is_first()) throw Error(ErrorKind::kDevice, "out of memory");
    int told = 0;
    decode::OtherRanks others([&](std::span<const int64_t>) { ++told; });
    const auto model = decode::make_mirrored_model(decode::make_model_runner(own), others);
    const auto id = model->open();
    const std::vector<int32_t> text = {1, 2};
    decode::LogitRows rows;
    try {
      model->extend(std::vector<decode::Extension>{{id, text, 1}}, rows);
    } catch (const DeviceLost& e) {
      lost = e.what();
      EXPECT_EQ(e.kind(), ErrorKind::kDevice) << "the kind of the error that ended the other rank";
    }
    EXPECT_EQ(told, 2);
    EXPECT_TRUE(others.lost());
    EXPECT_THROW(model->open(), DeviceLost);
    model->close(id);
    EXPECT_EQ(told, 2) << "nobody is left to be told";
  });
  EXPECT_NE(lost.find("rank 1 ("), std::string::npos) << lost;
  EXPECT_NE(lost.find("out of memory"), std::string::npos) << lost;
}

// A model whose calls fail on rank 0 only.
struct Failing final : decode::ForwardingModel, decode::TapSource {
  explicit Failing(decode::CausalModel& model) : ForwardingModel(model) {}
  void keep(decode::SequenceId, int64_t, std::span<const int64_t>) override {
    throw Error(ErrorKind::kDevice, "out of memory");
  }
  void extend(std::span<const decode::Extension>, decode::LogitRows&) override {
    if (full) throw decode::CacheFull("full");
    throw std::bad_alloc();
  }
  std::shared_ptr<decode::TapReader> add_reader(std::vector<int64_t>) override { return nullptr; }
  void keep_states(decode::TapReader&, decode::SequenceId) override {}
  bool full = false;
};

TEST(Shard, ACallThatFailsOnRankZeroAloneEndsTheModel) {
  const auto inner = decode::make_model_runner(std::make_shared<const model::Decoder>(whole_decoder("llama")));
  const std::vector<int32_t> text = {1, 2};
  decode::LogitRows rows;
  const auto check = [&](const std::function<void(decode::CausalModel&, decode::SequenceId)>& f, bool full, bool ends) {
    auto failing = std::make_unique<Failing>(*inner);
    failing->full = full;
    decode::OtherRanks others([](std::span<const int64_t>) {});
    const auto model = decode::make_mirrored_model(std::move(failing), others);
    const auto id = model->open();
    try {
      f(*model, id);
      ADD_FAILURE() << "no error";
    } catch (const DeviceLost& lost) {
      EXPECT_TRUE(ends);
      EXPECT_EQ(lost.kind(), ErrorKind::kDevice);
    } catch (const decode::CacheFull&) {
      EXPECT_FALSE(ends);
    }
    EXPECT_EQ(others.lost().has_value(), ends);
  };
  const auto extend = [&](decode::CausalModel& model, decode::SequenceId id) {
    model.extend(std::vector<decode::Extension>{{id, text, 1}}, rows);
  };
  check(extend, false, true);
  check(extend, true, false);
  check([](decode::CausalModel& model, decode::SequenceId id) { model.keep(id, 0, {}); }, false, true);
}

TEST(Shard, AResultThatDiffersBetweenRanksIsAnError) {
  const auto whole = std::make_shared<const model::Decoder>(whole_decoder("llama"));
  const auto model = decode::make_model_runner(whole);
  decode::LogitRows unread;
  const auto repeat = [&](const std::vector<int64_t>& call) { decode::repeat_call(*model, call, unread); };
  std::vector<std::vector<int64_t>> told;
  decode::OtherRanks others([&](std::span<const int64_t> call) { told.emplace_back(call.begin(), call.end()); });
  const auto mirrored = decode::make_mirrored_model(decode::make_model_runner(whole), others);
  mirrored->open();
  repeat(told[0]);
  expect_error(ErrorKind::kInternal, {"sequences differ", "1 here, and 0 on rank 0"}, [&] { repeat(told[0]); });
  // Calls that a rank must refuse: an empty one, one of an unknown kind, a malformed extend(), and run_pass() (kind 8),
  // which exists only for models that the CUDA kernels support.
  for (const std::vector<int64_t>& call : {std::vector<int64_t>{}, {99, 0}, {5, 1, 0, 1, 7, 1, 2}, {8, 0}})
    expect_error(ErrorKind::kInternal, {"not understood"}, [&] { repeat(call); });
}

}  // namespace
}  // namespace specdec::parallel
