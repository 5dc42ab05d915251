#include "engine/decode/generate.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "tests/base/manual_clock.h"
#include "tests/lossless/toy.h"

namespace specdec::decode {
namespace {

struct Generate : ::testing::Test {
  toy::Model target{12, toy::random_logits(1)}, draft{12, toy::random_logits(1)};
  Stepper stepper{target, &draft};
  specdec::testing::ManualClock clock;

  GenerateResult run(int k, std::vector<int32_t> eos = {}, int64_t max_tokens = 24) {
    const RequestOptions options{.max_tokens = max_tokens, .eos_ids = std::move(eos), .sampling = {.temperature = 0}};
    return generate(stepper, {{1, 2}, 0, options}, drafting({.k = k}), clock);
  }
};

TEST_F(Generate, EndsByLength) {
  const GenerateResult r = run(0);
  EXPECT_EQ(r.tokens.size(), 24u);
  EXPECT_EQ(r.finish_reason, "length");
  EXPECT_EQ(r.counts.emitted, 24);
  EXPECT_EQ(run(5).tokens, r.tokens);
  EXPECT_EQ(run(-1).tokens, r.tokens);
  EXPECT_EQ(target.open_sequences() + draft.open_sequences(), 0u);
}

TEST_F(Generate, CutsAfterEosButCountsWhatWasAccepted) {
  const std::vector<int32_t> text = run(0).tokens;
  // Finds a token that does not occur earlier in the text, and at which the answer then ends within a step: each step
  // emits five tokens, and this token is not one of the last two.
  size_t at = 0;
  for (size_t i = 1; i < text.size() && at == 0; ++i)
    if (i % 5 < 3 && std::find(text.begin(), text.begin() + static_cast<ptrdiff_t>(i), text[i]) ==
                         text.begin() + static_cast<ptrdiff_t>(i))
      at = i;
  ASSERT_GT(at, 0u);
  const GenerateResult r = run(4, {text[at]});
  EXPECT_EQ(r.finish_reason, "stop");
  EXPECT_EQ(r.tokens, std::vector<int32_t>(text.begin(), text.begin() + static_cast<ptrdiff_t>(at) + 1));
  EXPECT_EQ(r.counts.emitted, static_cast<int64_t>(r.tokens.size()));
  EXPECT_EQ(r.counts.accepted, r.counts.drafted) << "the draft is the target: all are accepted, before the cut";
  EXPECT_GT(r.counts.accepted + r.counts.steps, r.counts.emitted);
}

TEST_F(Generate, StopsWhenTheListenerSaysSo) {
  std::vector<int32_t> heard;
  const GenerateResult r = generate(stepper, {{1}}, drafting({.k = 3}), clock, [&](int32_t t) {
    heard.push_back(t);
    return heard.size() < 6;
  });
  EXPECT_EQ(heard.size(), 6u);
  EXPECT_EQ(r.tokens, heard);
  EXPECT_EQ(r.counts.emitted, 6);
  EXPECT_EQ(target.open_sequences() + draft.open_sequences(), 0u);
}

TEST_F(Generate, SameSeedSameText) {
  const auto text = [&](uint64_t seed) {
    return generate(stepper, {{1}, seed, {.max_tokens = 40}}, drafting({.k = 3}), clock).tokens;
  };
  EXPECT_EQ(text(5), text(5));
  EXPECT_NE(text(6), text(5));
}

TEST_F(Generate, ClosesItsCachesWhenAPassThrows) {
  target.before_pass = [n = 0](std::span<const Extension>) mutable {
    if (++n == 3) throw std::runtime_error("lost");
  };
  EXPECT_THROW(run(2), std::runtime_error);
  EXPECT_EQ(target.open_sequences() + draft.open_sequences(), 0u);
  EXPECT_THROW(run(2, {}, 0), Error);
}

}  // namespace
}  // namespace specdec::decode
