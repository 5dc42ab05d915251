// Runs EAGLE-3 heads as drafts of a small target. Greedy text must equal plain decoding for every K, tree and batch.
// The draft must still draft after copied prompts, reused prefixes, preemption and full caches.
#include "engine/decode/runners/eagle_runner.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "base/error.h"
#include "engine/cache/block_pool.h"
#include "engine/cache/kv_cache.h"
#include "engine/decode/generate.h"
#include "engine/decode/runners/model_runner.h"

namespace specdec::decode {
namespace {

model::DecoderConfig small_config() {
  model::DecoderConfig c;
  c.model_type = "llama";
  c.vocab_size = 40, c.hidden_size = 16, c.intermediate_size = 24, c.num_layers = 8, c.num_heads = 4,
  c.num_kv_heads = 2, c.head_dim = 6, c.max_position = 512;
  c.layers.resize(8);
  return c;
}

// A target with sharp predictions, and a head whose lm_head is the target's.
struct EagleRunner : ::testing::Test {
  EagleRunner() {
    model::Decoder decoder = model::random_decoder(small_config(), 1, at::kCPU, at::kFloat);
    decoder.weights.visit(decoder.config, [](const std::string&, at::Tensor& t) {
      if (t.dim() == 2) t.mul_(8);
    });
    model::EagleHead made = model::new_eagle_head(decoder, {}, 3, at::kFloat);
    target_weights = std::make_shared<const model::Decoder>(std::move(decoder));
    head = std::make_shared<const model::EagleHead>(std::move(made));
    make(0);
  }
  // Recreates the runners, with caches of this many tokens each; 0: no limit.
  void make(int64_t tokens) {
    const auto bytes = [&](const model::DecoderConfig& c) {
      return tokens * model::KvCache::bytes_per_token(c, at::kFloat);
    };
    draft.reset();
    target = make_model_runner(target_weights, bytes(target_weights->config));
    draft = make_eagle_runner(head, *target, bytes(head->config.layer));
  }
  Request request(std::vector<int32_t> prompt, double temperature = 0, uint64_t seed = 1) const {
    return {std::move(prompt), seed, {.max_tokens = 40, .sampling = {.temperature = temperature}}};
  }
  std::vector<int32_t> plain(const std::vector<int32_t>& prompt) {
    Stepper stepper(*target, nullptr);
    Sequence s(stepper, request(prompt), {});
    stepper.start(s);
    Sequence* batch[] = {&s};
    while (s.remaining() > 0) stepper.step(batch);
    return s.tokens();
  }

  std::shared_ptr<const model::Decoder> target_weights;
  std::shared_ptr<const model::EagleHead> head;
  std::unique_ptr<CausalModel> target, draft;
};

std::vector<int32_t> prompt_of(int64_t length, int32_t seed = 0) {
  std::vector<int32_t> out;
  for (int64_t i = 0; i < length; ++i) out.push_back(static_cast<int32_t>((i * i * 7 + i * 3 + seed) % 40));
  return out;
}

TEST_F(EagleRunner, GreedyTextIsPlainText) {
  const std::vector<int32_t> prompt = prompt_of(9);
  const std::vector<int32_t> expected = plain(prompt);
  for (const SpeculationOptions& options :
       {SpeculationOptions{.k = 1}, SpeculationOptions{.k = 2}, SpeculationOptions{.k = 5},
        SpeculationOptions{.k = 2, .tree = {2, 1}}, SpeculationOptions{.k = 3, .tree = {2, 2, 1}},
        SpeculationOptions{.k = 3, .suffix = true}}) {
    Stepper stepper(*target, draft.get());
    Sequence s(stepper, request(prompt), drafting(options));
    stepper.start(s, 4);
    Sequence* batch[] = {&s};
    int64_t drafted = 0;
    while (s.remaining() > 0) {
      const auto before = static_cast<int64_t>(s.tokens().size());
      stepper.step(batch);
      drafted += s.outcome().drafted;
      if (s.outcome().drafted > 0) {
        EXPECT_EQ(draft->length(s.draft_id()), before) << "drafted rows are not kept";
      }
      EXPECT_FALSE(s.draft_failed());
    }
    EXPECT_EQ(s.tokens(), expected) << options.k << " tree of " << options.tree.size();
    if (options.k > 0) {
      EXPECT_GT(drafted, 10);
    }
  }
}

// The target's pass and the reuse of drafted states must not mix up the sequences of a batch.
TEST_F(EagleRunner, Batches) {
  std::vector<std::vector<int32_t>> expected;
  for (int32_t i = 0; i < 3; ++i) expected.push_back(plain(prompt_of(5 + 3 * i, i)));
  Stepper stepper(*target, draft.get());
  std::vector<std::unique_ptr<Sequence>> sequences;
  for (int32_t i = 0; i < 3; ++i) {
    SpeculationOptions options{.k = i + 1};
    if (i == 2) options.tree = {2, 2, 1};
    sequences.push_back(std::make_unique<Sequence>(stepper, request(prompt_of(5 + 3 * i, i)), drafting(options)));
    stepper.start(*sequences.back());
  }
  for (;;) {
    std::vector<Sequence*> batch;
    for (const auto& s : sequences)
      if (s->remaining() > 0) batch.push_back(s.get());
    if (batch.empty()) break;
    stepper.step(batch);
    for (const Sequence* s : batch) EXPECT_FALSE(s->draft_failed());
  }
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(sequences[i]->tokens(), expected[i]) << i;
}

// The draft's first logits after a text, which after() computes. They must not depend on the way in which the draft
// read the text.
struct FirstDraft {
  std::vector<float> logits;
  int drafted;
};
FirstDraft after(CausalModel& target, CausalModel& draft, const std::vector<int32_t>& text, int64_t chunk) {
  Stepper stepper(target, &draft);
  Request request{text, 1, {.max_tokens = 20, .sampling = {.temperature = 0}}};
  Sequence s(stepper, request, drafting({.k = 2}));
  stepper.start(s, chunk);
  LogitRows rows;
  const SequenceId copy = draft.fork(s.draft_id(), draft.length(s.draft_id()));
  draft.follow(copy, s.target_id());
  draft.extend(std::vector<Extension>{{copy, std::span(text).subspan(static_cast<size_t>(draft.length(copy))), 1}},
               rows);
  Sequence* batch[] = {&s};
  stepper.step(batch);
  return {{rows.row(0).begin(), rows.row(0).end()}, s.outcome().drafted};
}

TEST_F(EagleRunner, ReusedPrefixesGiveTheSameDrafts) {
  make(1024);
  const std::vector<int32_t> text = prompt_of(150);
  const FirstDraft fresh = after(*target, *draft, text, 512);
  EXPECT_EQ(fresh.drafted, 2);
  const FirstDraft pieces = after(*target, *draft, text, 7);
  const CacheCounts counts = draft->cache_counts();
  EXPECT_GE(counts.found_tokens, 129) << "two blocks, and the first token, which takes no slot";
  EXPECT_GE(target->cache_counts().found_tokens, 128);
  EXPECT_EQ(pieces.drafted, 2);
  for (size_t i = 0; i < fresh.logits.size(); ++i) EXPECT_NEAR(fresh.logits[i], pieces.logits[i], 1e-4) << i;
  // A text that differs only in its first token shares no cached block.
  std::vector<int32_t> other = text;
  other[0] = (other[0] + 1) % 40;
  const int64_t before = draft->cache_counts().found_tokens;
  after(*target, *draft, other, 512);
  EXPECT_EQ(draft->cache_counts().found_tokens, before);
}

// The target has cached blocks of a text for which the draft has none. The target must then run the text again, so that
// the draft gets the hidden states that it needs.
TEST_F(EagleRunner, TheTargetReusesNoMoreThanItsDraft) {
  make(1024);
  const std::vector<int32_t> text = prompt_of(150);
  {
    Stepper stepper(*target, nullptr);
    Sequence s(stepper, request(text), {});
    stepper.start(s);
  }
  const int64_t found = target->cache_counts().found_tokens;
  EXPECT_EQ(after(*target, *draft, text, 512).drafted, 2);
  EXPECT_EQ(target->cache_counts().found_tokens, found);
}

TEST_F(EagleRunner, CopiedPromptsAndPreemption) {
  make(1024);
  const std::vector<int32_t> prompt = prompt_of(70);
  const std::vector<int32_t> expected = plain(prompt);
  Stepper stepper(*target, draft.get());
  Sequence first(stepper, request(prompt), drafting({.k = 3})), second(stepper, request(prompt), drafting({.k = 2}));
  stepper.start(first);
  Sequence *one[] = {&first}, *both[] = {&first, &second};
  for (int i = 0; i < 3; ++i) stepper.step(one);
  stepper.open(second, &first);
  while (stepper.pending_prefill(second) > 0) stepper.prefill(second, 16);
  stepper.step(both);
  EXPECT_EQ(second.outcome().drafted, 2);
  stepper.close(first);  // preempted, then prefilled again
  stepper.open(first);
  while (stepper.pending_prefill(first) > 0) stepper.prefill(first, 16);
  stepper.step(one);
  EXPECT_EQ(first.outcome().drafted, 3);
  while (first.remaining() > 0) stepper.step(one);
  Sequence* two[] = {&second};
  while (second.remaining() > 0) stepper.step(two);
  EXPECT_EQ(first.tokens(), expected);
  EXPECT_EQ(second.tokens(), expected);
}

// While K = 0 the draft still processes new text from time to time, so that it can draft again immediately.
TEST_F(EagleRunner, ADraftThatPausesFallsNotFarBehind) {
  const std::vector<int32_t> prompt = prompt_of(9);
  Stepper stepper(*target, draft.get());
  Request longer = request(prompt);
  longer.options.max_tokens = 200;
  Sequence s(stepper, longer, drafting({.k = 0}));
  s.replace_controller({.fixed_k = 0});
  stepper.start(s);
  Sequence* batch[] = {&s};
  for (int i = 0; i < 150; ++i) stepper.step(batch);
  ASSERT_GE(s.draft_id(), 0);
  EXPECT_GT(draft->length(s.draft_id()), 90);
  s.replace_controller({.fixed_k = 3});
  stepper.step(batch);
  EXPECT_EQ(s.outcome().drafted, 3);
}

TEST_F(EagleRunner, FullCachesOfTheDraftEndOnlyTheDraft) {
  make(1024);
  const std::vector<int32_t> prompt = prompt_of(100);
  const std::vector<int32_t> expected = plain(prompt);
  draft = make_eagle_runner(head, *target, 64 * model::KvCache::bytes_per_token(head->config.layer, at::kFloat));
  Stepper stepper(*target, draft.get());
  Sequence s(stepper, request(prompt), drafting({.k = 3}));
  stepper.start(s);
  Sequence* batch[] = {&s};
  while (s.remaining() > 0) stepper.step(batch);
  EXPECT_EQ(s.tokens(), expected);
  EXPECT_FALSE(s.draft_failed());
}

TEST_F(EagleRunner, WhatCannotDraftIsRefused) {
  model::EagleHead varying = *head;
  varying.config.layer.rope.kind = model::RopeConfig::Kind::kDynamic;
  EXPECT_THROW(make_eagle_runner(std::make_shared<const model::EagleHead>(varying), *target), Error);
  ForwardingModel wrapped(*target);
  EXPECT_THROW(make_eagle_runner(head, wrapped), Error);
}

TEST_F(EagleRunner, AHeadOnTrialScoresWhatItWouldDraft) {
  const auto trial = make_eagle_runner(head, *target);
  Stepper stepper(*target, draft.get());
  Drafting drafts = drafting({.k = 3});
  drafts.shadow = trial.get();
  Sequence s(stepper, request(prompt_of(11), 1), drafts);
  stepper.start(s, 4);
  Sequence* const batch[] = {&s};
  int64_t deep = 0;
  while (s.remaining() > 0) {
    stepper.step(batch);
    ASSERT_EQ(s.outcome().shadow_overlaps.size(), s.outcome().overlaps.size());
    for (size_t i = 0; i < s.outcome().overlaps.size(); ++i)
      EXPECT_NEAR(s.outcome().shadow_overlaps[i], s.outcome().overlaps[i], 1e-5) << "position " << i;
    deep += s.outcome().overlaps.size() > 1;
  }
  EXPECT_GT(deep, 3);
  stepper.end_shadow(s);
  stepper.close(s);
}

// A draft's trial (as shadow draft) begins and ends while the target runs.
TEST_F(EagleRunner, ATrialMayEndWhileItsTargetRuns) {
  Stepper stepper(*target, draft.get());
  Sequence s(stepper, request(prompt_of(11)), drafting({.k = 2}));
  stepper.start(s);
  std::atomic<bool> done = false;
  std::thread loads([&] {
    while (!done) make_eagle_runner(head, *target).reset();
  });
  Sequence* const batch[] = {&s};
  while (s.remaining() > 0) stepper.step(batch);
  done = true;
  loads.join();
  EXPECT_EQ(s.tokens(), plain(prompt_of(11)));
}

}  // namespace
}  // namespace specdec::decode
