// Tests with real models. Greedy speculation must equal plain decoding. Sampled acceptance must equal the values
// measured with an independent implementation: stories260K drafted by llama2xs-279K, K = 6, T = 1 gives 2.73 tokens per
// step and conditional acceptance of 0.63 … 0.71 (data/README.md in SPECDEC_SHARED).
#include "engine/decode/runners/model_runner.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <set>

#include "base/error.h"
#include "engine/cache/block_pool.h"
#include "engine/decode/generate.h"
#include "engine/decode/sampling/sampler.h"
#include "tests/source_folder.h"

namespace specdec::decode {
namespace {

std::filesystem::path models() {
  const char* shared = std::getenv("SPECDEC_SHARED");
  return std::filesystem::path(shared ? std::string(shared) : source_folder() + "/../shared") / "data" / "models";
}

std::shared_ptr<const model::Decoder> load(const std::string& name, at::ScalarType dtype = at::kFloat) {
  return std::make_shared<const model::Decoder>(model::load_decoder(models() / name, at::kCPU, dtype));
}

// Returns the softmax distributions after every position of a text, [length, V].
at::Tensor distributions(CausalModel& model, const std::vector<int32_t>& text) {
  LogitRows rows;
  const SequenceId id = model.open();
  model.extend(std::vector<Extension>{{id, text, static_cast<int64_t>(text.size())}}, rows);
  model.close(id);
  const auto vocab = static_cast<int64_t>(rows.row(0).size());
  at::Tensor out = at::empty({static_cast<int64_t>(text.size()), vocab}, at::kFloat);
  for (size_t i = 0; i < text.size(); ++i)
    std::copy(rows.row(i).begin(), rows.row(i).end(), out.data_ptr<float>() + static_cast<int64_t>(i) * vocab);
  return out.softmax(-1);
}

struct RealModels : ::testing::Test {
  void SetUp() override {
    if (!std::filesystem::exists(models() / "stories260K"))
      GTEST_SKIP() << models().string() << " is absent (set SPECDEC_SHARED): nothing tested with real models";
    target = make_model_runner(load("stories260K"));
    draft = make_model_runner(load("llama2xs-279K"));
  }
  GenerateResult run(int k, double temperature, uint64_t seed, int64_t tokens, VerifyRule rule = VerifyRule::kToken,
                     CostModel* costs = nullptr) {
    Stepper stepper(*target, draft.get(), costs, &clock);
    const Request request{{1}, seed, {.max_tokens = tokens, .sampling = {.temperature = temperature}}};
    return generate(stepper, request, drafting({.k = k, .verify = rule}), clock);
  }
  std::unique_ptr<CausalModel> target, draft;
  SystemClock clock;
};

// A fork shares blocks until one of the two sequences writes to them. Both sequences then continue as if the other did
// not exist.
TEST_F(RealModels, AForkIsTheSequenceItCameFrom) {
  LogitRows rows;
  const std::vector<int32_t> prompt = {1, 403, 407, 261, 378, 30, 12}, other = {99, 5}, same = {12};
  const SequenceId from = target->open();
  target->extend(std::vector<Extension>{{from, prompt, 1}}, rows);
  const std::vector<float> expected(rows.row(0).begin(), rows.row(0).end());
  const SequenceId fork = target->fork(from, 6);
  EXPECT_EQ(target->length(fork), 6);
  target->extend(std::vector<Extension>{{from, other, 0}}, rows);
  target->extend(std::vector<Extension>{{fork, same, 1}}, rows);
  for (size_t i = 0; i < expected.size(); ++i) ASSERT_EQ(rows.row(0)[i], expected[i]) << "token " << i;
  target->close(from);
  target->truncate(fork, 6);
  target->extend(std::vector<Extension>{{fork, same, 1}}, rows);
  for (size_t i = 0; i < expected.size(); ++i) ASSERT_EQ(rows.row(0)[i], expected[i]) << "token " << i;
  EXPECT_THROW(target->fork(fork, 8), Error);
  EXPECT_EQ(target->length(target->fork(fork, 0)), 0);
}

TEST_F(RealModels, GreedyIsTheSameTextForEveryK) {
  const GenerateResult plain = run(0, 0, 0, 256);
  ASSERT_EQ(plain.tokens.size(), 256u);
  EXPECT_GT(std::set<int32_t>(plain.tokens.begin(), plain.tokens.end()).size(), 60u) << "not a story";
  for (int k = 1; k <= 8; ++k) {
    const GenerateResult speculative = run(k, 0, 0, 256);
    EXPECT_EQ(speculative.tokens, plain.tokens) << "K=" << k;
    EXPECT_GT(speculative.counts.accepted, 50) << "K=" << k;
  }
  CostModel costs;
  EXPECT_EQ(run(-1, 0, 0, 256, VerifyRule::kToken, &costs).tokens, plain.tokens);
}

// An int8 model differs slightly from the model that it was quantised from. Speculation with an int8 target is exact
// for the int8 model, and an int8 draft is accepted about as often as the original.
TEST_F(RealModels, Int8IsExactAndAcceptsAsMuch) {
  std::vector<int32_t> text = {1};
  for (uint64_t seed = 1; seed <= 2; ++seed) {
    const GenerateResult r = run(4, 1, seed, 250);
    text.insert(text.end(), r.tokens.begin(), r.tokens.end());
  }
  const at::Tensor p = distributions(*target, text), q = distributions(*draft, text);
  target = make_model_runner(load("stories260K", at::kChar));
  draft = make_model_runner(load("llama2xs-279K", at::kChar));
  const at::Tensor p8 = distributions(*target, text), q8 = distributions(*draft, text);
  const auto overlap = [](const at::Tensor& a, const at::Tensor& b) {
    return at::minimum(a, b).sum(-1).mean().item<double>();
  };
  const double wide = overlap(p, q), int8 = overlap(p8, q8), kept = overlap(p, p8);
  RecordProperty("overlap_fp32", std::to_string(wide));
  RecordProperty("overlap_int8", std::to_string(int8));
  RecordProperty("overlap_of_target_and_int8_target", std::to_string(kept));
  EXPECT_NEAR(int8, wide, 0.01);
  EXPECT_GT(kept, 0.98);
  EXPECT_LT(kept, 0.9999);  // proves that the target was quantised
  const GenerateResult plain = run(0, 0, 0, 200);
  for (int k = 1; k <= 8; ++k) EXPECT_EQ(run(k, 0, 0, 200).tokens, plain.tokens) << "K=" << k;
}

TEST_F(RealModels, TreesGiveTheSameTextAndKeepMore) {
  const auto text = [&](const std::vector<int>& tree, VerifyRule rule, double temperature) {
    Stepper stepper(*target, draft.get());
    const Request request{{1}, 4, {.max_tokens = 256, .sampling = {.temperature = temperature}}};
    const int k = tree.empty() ? 3 : static_cast<int>(tree.size());
    return generate(stepper, request, drafting({.k = k, .verify = rule, .tree = tree}), clock);
  };
  const GenerateResult greedy = text({}, VerifyRule::kToken, 0), seeded = text({}, VerifyRule::kCoupled, 1);
  for (const std::vector<int>& tree : {std::vector<int>{2, 2, 2}, {3, 2, 1}, {1, 3, 2}, {8, 1, 1}}) {
    for (const VerifyRule rule : {VerifyRule::kToken, VerifyRule::kBlock, VerifyRule::kTarget}) {
      const GenerateResult r = text(tree, rule, 0);
      EXPECT_EQ(r.tokens, greedy.tokens);
      EXPECT_GE(r.counts.length(), greedy.counts.length());
    }
    EXPECT_EQ(text(tree, VerifyRule::kCoupled, 1).tokens, seeded.tokens);
  }
  EXPECT_GT(text({3, 2, 1}, VerifyRule::kToken, 1).counts.length(), text({}, VerifyRule::kToken, 1).counts.length());
}

// Makes a random model whose weights are scaled up, so that its predictions are sharp. `border` is the text length
// above which a longrope changes its scaling; 0 means a plain rope. `cache_blocks` limits the cache; 0 means no limit.
std::unique_ptr<CausalModel> make_random(uint64_t seed, int64_t border, int64_t cache_blocks = 0) {
  model::DecoderConfig c;
  c.model_type = "llama";
  c.vocab_size = 60, c.hidden_size = 32, c.intermediate_size = 48, c.num_layers = 2, c.num_heads = 4,
  c.num_kv_heads = 2, c.head_dim = 16;
  c.layers.resize(2);
  if (border != 0) {
    c.rope.kind = model::RopeConfig::Kind::kLongRope, c.rope.original_max_position = border,
    c.rope.attention_factor = 1.2;
    for (int i = 0; i < 8; ++i) c.rope.short_factor.push_back(1 + 0.02 * i), c.rope.long_factor.push_back(1 + 0.3 * i);
  }
  model::Decoder decoder = model::random_decoder(c, seed, at::kCPU, at::kFloat);
  decoder.weights.visit(decoder.config,
                        [](const std::string&, at::Tensor& tensor) { tensor.mul_(tensor.dim() == 2 ? 6 : 1); });
  return make_model_runner(std::make_shared<const model::Decoder>(std::move(decoder)),
                           cache_blocks * model::BlockPool::block_bytes(c, at::kFloat));
}

std::vector<int32_t> words(int64_t count) {
  std::vector<int32_t> out;
  for (int64_t i = 0; i < count; ++i) out.push_back(static_cast<int32_t>((i * 37 + i / 7) % 60));
  return out;
}

// Appends the tokens and returns the logits after the last one.
std::vector<float> read(CausalModel& model, SequenceId id, std::span<const int32_t> tokens) {
  LogitRows rows;
  const Extension e{id, tokens, 1};
  model.extend({&e, 1}, rows);
  return {rows.row(0).begin(), rows.row(0).end()};
}

constexpr int64_t kBlock = model::BlockPool::kTokens;

// A prompt that the same tenant has cached is not prefilled again and gives bit-identical logits, with a plain rope and
// with a longrope, on both sides of the length at which its scaling changes.
TEST(ModelRunner, APromptReadBeforeIsAdopted) {
  for (const int64_t border : {int64_t{0}, kBlock / 2, 2 * kBlock + 30}) {
    const auto model = make_random(1, border, 20), plain = make_random(1, border);
    const std::vector<int32_t> text = words(2 * kBlock + 40);
    const std::span<const int32_t> all(text);
    const std::vector<float> expected = read(*plain, plain->open(), text);
    const SequenceId first = model->open();
    EXPECT_EQ(model->adopt(first, text, 3), 0);
    EXPECT_EQ(read(*model, first, text), expected);
    const SequenceId beside = model->open(), stranger = model->open(), shorter = model->open();
    EXPECT_EQ(model->adopt(beside, text, 3), 2 * kBlock) << "of one that still runs";
    EXPECT_EQ(model->length(beside), 2 * kBlock);
    EXPECT_EQ(model->adopt(stranger, text, 4), 0);
    if (border == 0) {
      EXPECT_EQ(model->adopt(shorter, all.first(2 * kBlock - 1), 3), kBlock);
    }
    for (const SequenceId id : {beside, stranger})
      EXPECT_EQ(read(*model, id, all.subspan(static_cast<size_t>(model->length(id)))), expected);
    for (const SequenceId id : {first, beside, stranger, shorter}) model->close(id);
    CacheCounts counts = model->cache_counts();
    EXPECT_EQ(counts.held_bytes, 0);
    EXPECT_EQ(counts.kept_bytes, counts.budget_bytes / 20 * 4) << "two tenants, two blocks each";
    EXPECT_EQ(model->cached_prefix_tokens(all.first(text.size() - 1), 3), 2 * kBlock);
    EXPECT_EQ(model->cached_prefix_tokens(text, 5), 0) << "of another tenant";
    EXPECT_EQ(plain->cached_prefix_tokens(text, 3), 0);
    const SequenceId later = model->open();
    EXPECT_EQ(model->adopt(later, all.first(text.size() - 1), 3), 2 * kBlock);
    EXPECT_EQ(read(*model, later, all.subspan(2 * kBlock)), expected);
    const auto n = static_cast<int64_t>(text.size());
    counts = model->cache_counts();
    EXPECT_EQ(counts.asked_tokens, 4 * n - 1 + (border == 0 ? 2 * kBlock - 1 : 0));
    EXPECT_EQ(counts.found_tokens, 4 * kBlock + (border == 0 ? kBlock : 0));
    EXPECT_THROW(model->adopt(later, text, 3), Error) << "it holds tokens already";
    const SequenceId none = plain->open();
    EXPECT_EQ(plain->adopt(none, text, 3), 0) << "without a budget nothing is kept";
    EXPECT_EQ(plain->capacity_tokens(), std::numeric_limits<int64_t>::max());
    EXPECT_EQ(model->capacity_tokens() % kBlock, 0);
    EXPECT_GE(model->capacity_tokens(), static_cast<int64_t>(text.size()));
  }
}

// A pass that does not fit leaves every cache unchanged. Closed sequences free memory, and their cached blocks are
// reused.
TEST(ModelRunner, AFullCacheRefusesThePassAsAWhole) {
  for (const int64_t border : {int64_t{0}, kBlock + 10}) {
    const auto model = make_random(1, border, 4), plain = make_random(1, border);
    const std::vector<int32_t> text = words(3 * kBlock);
    const std::span<const int32_t> all(text);
    const std::vector<float> expected = read(*plain, plain->open(), all.first(kBlock + 20));
    const SequenceId a = model->open(), b = model->open();
    for (const SequenceId id : {a, b}) model->adopt(id, {}, 0);
    read(*model, a, all.first(kBlock));
    read(*model, b, all.first(kBlock + 1));
    LogitRows rows;
    const Extension both[] = {{a, all.subspan(kBlock, 20), 1}, {b, all.subspan(kBlock + 1, kBlock), 1}};
    try {
      model->extend(both, rows);
      FAIL() << "five blocks were found in four";
    } catch (const CacheFull& e) {
      EXPECT_EQ(e.kind(), ErrorKind::kDevice);
      EXPECT_NE(std::string(e.what()).find("2 blocks"), std::string::npos) << e.what();
    }
    EXPECT_EQ(model->length(a), kBlock);
    EXPECT_EQ(model->length(b), kBlock + 1);
    EXPECT_EQ(read(*model, a, all.subspan(kBlock, 20)), expected);
    EXPECT_THROW(read(*model, b, all.subspan(kBlock + 1, kBlock)), CacheFull);
    EXPECT_EQ(read(*model, b, all.subspan(kBlock + 1, 19)), expected);
    model->close(a);
    EXPECT_GT(model->cache_counts().kept_bytes, 0);
    read(*model, b, all.subspan(kBlock + 20));  // writes into a block that was kept when the other sequence closed
    EXPECT_EQ(model->length(b), 3 * kBlock);
    // A fork takes no memory until it writes after a partly filled block.
    model->truncate(b, 2 * kBlock + 5);
    const SequenceId fork = model->fork(b, 2 * kBlock + 1);
    if (border != 0) continue;  // a fork whose text may be rescaled needs room for the whole text
    read(*model, fork, all.subspan(2 * kBlock + 1, 1));
    EXPECT_THROW(read(*model, model->fork(b, 1), all.subspan(1, 1)), CacheFull);
    EXPECT_THROW(make_random(1, 0, -1), Error);
  }
}

// A step prefills only tokens that no sequence of the tenant has cached, in the target and in the draft, and produces
// the same text.
TEST(ModelRunner, AStepAdoptsPromptsForBothModels) {
  SystemClock clock;
  const auto target = make_random(1, 0, 40), draft = make_random(2, 0, 40), plain_target = make_random(1, 0),
             plain_draft = make_random(2, 0);
  const auto text = [&](CausalModel& t, CausalModel& d, uint64_t tenant, std::vector<int32_t> prompt,
                        const std::vector<int>& tree) {
    Stepper stepper(t, &d);
    const RequestOptions options{.max_tokens = 80, .sampling = {.temperature = 0}, .tenant = tenant};
    Sequence s(stepper, {std::move(prompt), 5, options}, drafting({.k = 3, .tree = tree}));
    stepper.start(s);
    Sequence* const batch[] = {&s};
    while (s.remaining() > 0) stepper.step(batch);
    EXPECT_EQ(t.length(s.target_id()), static_cast<int64_t>(s.tokens().size()) - 1);
    stepper.close(s);
    return s.tokens();
  };
  for (const std::vector<int>& tree : {std::vector<int>{}, {2, 2, 1}}) {
    const uint64_t tenant = tree.empty() ? 1 : 3;
    const std::vector<int32_t> expected = text(*plain_target, *plain_draft, 0, words(kBlock + 9), tree);
    const auto found = [&](const CausalModel& model) { return model.cache_counts().found_tokens; };
    const int64_t before_target = found(*target), before_draft = found(*draft);
    EXPECT_EQ(text(*target, *draft, tenant, words(kBlock + 9), tree), expected);
    EXPECT_EQ(text(*target, *draft, tenant + 1, words(kBlock + 9), tree), expected);
    EXPECT_EQ(found(*target), before_target) << "each of another tenant";
    EXPECT_EQ(text(*target, *draft, tenant, words(kBlock + 9), tree), expected);
    EXPECT_EQ(found(*target), before_target + kBlock);
    EXPECT_EQ(found(*draft), before_draft + kBlock);
    // The next turn of a conversation also reuses the cached answer.
    EXPECT_EQ(text(*target, *draft, tenant, expected, tree), text(*plain_target, *plain_draft, 0, expected, tree));
    EXPECT_EQ(found(*target), before_target + 3 * kBlock);
    EXPECT_EQ(found(*draft), before_draft + 3 * kBlock);
  }
}

// Trees work on both sides of the length at which a longrope's scaling changes and caches are recomputed.
TEST(ModelRunner, TreesOfALongropeModelKeepTheirPaths) {
  const auto make = [](uint64_t seed) { return make_random(seed, 24); };
  const std::unique_ptr<CausalModel> target = make(1), same = make(1), other = make(2);
  SystemClock clock;
  const auto text = [&](CausalModel& draft, const std::vector<int>& tree) {
    Stepper stepper(*target, &draft);
    const Request request{{1, 5, 9}, 0, {.max_tokens = 60, .sampling = {.temperature = 0}}};
    return generate(stepper, request, drafting({.k = static_cast<int>(tree.size()), .tree = tree}), clock);
  };
  const GenerateResult plain = text(*same, {});
  for (const std::vector<int>& tree : {std::vector<int>{2, 2}, {3, 1, 2}}) {
    EXPECT_EQ(text(*other, tree).tokens, plain.tokens);
    const GenerateResult sure = text(*same, tree);
    EXPECT_EQ(sure.tokens, plain.tokens);
    EXPECT_NEAR(sure.counts.length(), static_cast<double>(tree.size()) + 1, 0.2) << "the draft is the target";
  }
}

TEST_F(RealModels, SampledAcceptanceIsWhatOthersMeasured) {
  AcceptanceCounts token, block;
  for (uint64_t seed = 0; seed < 8; ++seed) {
    token.add(run(6, 1, seed, 240).counts);
    block.add(run(6, 1, seed, 240, VerifyRule::kBlock).counts);
  }
  EXPECT_GT(token.steps, 600);
  EXPECT_NEAR(token.length(), 2.73, 0.25);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_GT(token.conditional(i), 0.57) << i;
    EXPECT_LT(token.conditional(i), 0.76) << i;
    EXPECT_NEAR(token.overlap(i), token.conditional(i), 0.06) << "the mean overlap is what the coin flips estimate";
  }
  EXPECT_GT(block.length(), token.length() - 0.1);
  RecordProperty("length_token", std::to_string(token.length()));
  RecordProperty("length_block", std::to_string(block.length()));
}

TEST_F(RealModels, TruncatedThenContinuedIsNeverDrafted) {
  const std::vector<int32_t> text = {1, 403, 407, 261, 378}, wrong = {17, 99, 23};
  const auto logits = [&](SequenceId s, std::span<const int32_t> tokens, LogitRows& out) {
    const Extension e{s, tokens, 1};
    target->extend({&e, 1}, out);
    return std::vector<float>(out.row(0).begin(), out.row(0).end());
  };
  LogitRows rows;
  const SequenceId clean = target->open(), dirty = target->open();
  const std::vector<float> expected = logits(clean, text, rows);
  logits(dirty, std::span(text).first(3), rows);
  logits(dirty, wrong, rows);
  EXPECT_EQ(target->length(dirty), 6);
  target->truncate(dirty, 3);
  const std::vector<float> found = logits(dirty, std::span(text).subspan(3), rows);
  for (size_t i = 0; i < expected.size(); ++i) ASSERT_NEAR(found[i], expected[i], 1e-4);
  // Extends two sequences in one pass. The first one only fills its cache.
  const SequenceId a = target->open(), b = target->open();
  const Extension both[] = {{a, std::span(text).first(4), 0}, {b, text, 2}};
  target->extend(both, rows);
  EXPECT_EQ(target->length(a), 4);
  for (size_t i = 0; i < expected.size(); ++i) ASSERT_NEAR(rows.row(1)[i], expected[i], 1e-4);
  target->close(a);
  EXPECT_THROW(target->length(a), Error);
}

}  // namespace
}  // namespace specdec::decode
