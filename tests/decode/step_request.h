// Fixtures for tests of Stepper::step(): a sequence over toy models, and a check of the caches of both models.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

#include "engine/decode/step.h"
#include "tests/lossless/toy.h"

namespace specdec::decode {

inline constexpr int64_t kVocab = 12;

// A sequence whose draft model drafts k tokens per step; k = 0 drafts nothing.
struct Toy {
  Toy(Stepper& stepper, toy::Tokens prompt, int k, int64_t max_tokens, SamplingOptions sampling = {.temperature = 0},
      uint64_t seed = 1)
      : Toy(stepper, {std::move(prompt), seed, {.max_tokens = max_tokens, .sampling = sampling}}, drafting({.k = k})) {}
  Toy(Stepper& stepper, Request request, const Drafting& drafting) : s(stepper, std::move(request), drafting) {}
  Sequence s;
};

inline toy::Tokens run(Stepper& stepper, Toy& r) {
  stepper.start(r.s);
  Sequence* const batch[] = {&r.s};
  while (r.s.remaining() > 0) stepper.step(batch);
  stepper.close(r.s);
  return r.s.tokens();
}

inline void expect_caches(const toy::Model& target, const toy::Model& draft, const Sequence& s) {
  const toy::Tokens all_but_last(s.tokens().begin(), s.tokens().end() - 1);
  EXPECT_EQ(target.cache(s.target_id()), all_but_last);
  if (s.draft_id() < 0) return;
  const toy::Tokens& cache = draft.cache(s.draft_id());
  ASSERT_LE(cache.size(), all_but_last.size());
  EXPECT_TRUE(std::equal(cache.begin(), cache.end(), s.tokens().begin()))
      << "the draft's cache is no prefix of the text";
}

// Returns the draft's logits. Their arg max is the target's, unless the last token is a multiple of 3, so that some
// steps accept every drafted token and some none.
inline toy::Model::Logits mostly_right(toy::Model::Logits target) {
  return [target](std::span<const int32_t> context, std::span<float> logits) {
    target(context, logits);
    if (context.back() % 3 == 0) std::swap(logits[0], *std::max_element(logits.begin(), logits.end()));
  };
}

}  // namespace specdec::decode
