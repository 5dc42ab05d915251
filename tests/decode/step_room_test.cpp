// Tests steps with full caches, and steps of sequences that are prefilled in pieces, or closed and prefilled again.
#include <gtest/gtest.h>

#include <memory>

#include "tests/decode/step_request.h"

namespace specdec::decode {
namespace {

// A text is prefilled in pieces, and closed and prefilled again between steps. It must continue with the same tokens as
// an uninterrupted text, and no random draw may be lost.
TEST(StepRoom, OpenedReadAndClosedInPiecesIsTheSameText) {
  for (const double temperature : {0.0, 1.0}) {
    toy::Model target(kVocab, toy::random_logits(1)), draft(kVocab, toy::random_logits(2));
    Stepper stepper(target, &draft);
    Toy whole(stepper, {1, 2, 3, 4, 5, 6}, 3, 40, {.temperature = temperature}),
        pieces(stepper, {1, 2, 3, 4, 5, 6}, 3, 40, {.temperature = temperature});
    run(stepper, whole);
    Sequence* const batch[] = {&pieces.s};
    while (pieces.s.remaining() > 0) {
      stepper.open(pieces.s);
      EXPECT_THROW(stepper.step(batch), Error) << "not read whole";
      const int64_t unread = stepper.pending_prefill(pieces.s);
      EXPECT_EQ(unread, static_cast<int64_t>(pieces.s.tokens().size()) - 1);
      EXPECT_EQ(stepper.prefill(pieces.s, 4), 4);
      EXPECT_EQ(stepper.prefill(pieces.s, 1000), unread - 4);
      EXPECT_EQ(stepper.prefill(pieces.s, 1000), 0);
      stepper.step(batch);
      expect_caches(target, draft, pieces.s);
      stepper.close(pieces.s);
      EXPECT_EQ(target.open_sequences() + draft.open_sequences(), 0u);
    }
    EXPECT_EQ(pieces.s.tokens(), whole.s.tokens());
    EXPECT_EQ(pieces.s.counts().accepted, whole.s.counts().accepted);
  }
}

// A draft far behind its text prefills a part of it in each of several steps. The sequence is decoded without the draft
// in these steps.
TEST(StepRoom, ADraftFarBehindReadsSoMuchAStep) {
  toy::Model target(kVocab, toy::random_logits(1)), draft(kVocab, toy::random_logits(1));
  Stepper stepper(target, &draft);
  Toy a(stepper, toy::Tokens(450, 4), 2, 30), b(stepper, toy::Tokens(450, 5), 2, 30),
      near(stepper, toy::Tokens(20, 6), 2, 30);
  for (Toy* r : {&a, &b, &near}) stepper.start(r->s);
  Sequence* const batch[] = {&a.s, &b.s, &near.s};
  int64_t read = 0;
  draft.before_pass = [&](std::span<const Extension> extensions) {
    for (const Extension& e : extensions)
      read += static_cast<int64_t>(e.tokens.size()) > 64 ? static_cast<int64_t>(e.tokens.size()) : 0;
  };
  std::vector<int> drafted_a, drafted_b;
  for (int i = 0; i < 6; ++i) {
    read = 0;
    stepper.step(batch, 200);
    EXPECT_LE(read, 200);
    drafted_a.push_back(a.s.outcome().drafted);
    drafted_b.push_back(b.s.outcome().drafted);
    EXPECT_EQ(near.s.outcome().drafted, 2) << "it has nothing to wait for";
  }
  EXPECT_EQ(drafted_a, (std::vector<int>{0, 2, 2, 2, 2, 2}));
  EXPECT_EQ(drafted_b, (std::vector<int>{0, 0, 0, 2, 2, 2}));
  EXPECT_EQ(a.s.outcome().accepted, 2);
  expect_caches(target, draft, b.s);
}

TEST(StepRoom, WithoutRoomNothingChangesAndWhatWasDraftedIsVerifiedLater) {
  for (const double temperature : {0.0, 1.0})
    for (const std::vector<int>& tree : {std::vector<int>{}, {2, 2, 1}}) {
      toy::Model target(kVocab, toy::random_logits(1)), draft(kVocab, mostly_right(toy::random_logits(1)));
      Stepper stepper(target, &draft);
      const auto toy = [&](int32_t first, int64_t max_tokens) {
        return std::make_unique<Toy>(
            stepper, Request{{first, 2}, 1, {.max_tokens = max_tokens, .sampling = {.temperature = temperature}}},
            drafting({.k = 3, .tree = tree}));
      };
      const auto calm = toy(1, 60), a = toy(1, 60), b = toy(2, 1000);
      run(stepper, *calm);
      stepper.start(a->s);
      stepper.start(b->s);
      Sequence* const batch[] = {&a->s, &b->s};
      for (int i = 0; a->s.remaining() > 0; ++i) {
        const toy::Tokens tokens = a->s.tokens();
        target.before_pass = [](std::span<const Extension>) { throw CacheFull("full"); };
        EXPECT_THROW(stepper.step(batch), CacheFull);
        target.before_pass = nullptr;
        EXPECT_EQ(a->s.tokens(), tokens);
        expect_caches(target, draft, a->s);
        if (i % 3 == 0) {
          stepper.close(a->s);
          stepper.open(a->s);
          while (stepper.pending_prefill(a->s) > 0) stepper.prefill(a->s, 7);
        }
        const int64_t passes = draft.passes;
        stepper.step({batch, i % 5 > 0 ? size_t{2} : size_t{1}});
        EXPECT_EQ(draft.passes, passes) << "it has been drafted";
      }
      EXPECT_EQ(a->s.tokens(), calm->s.tokens());
    }
}

TEST(StepRoom, AloneItGivesUpItsDeepestLevelsAndThenTheStep) {
  toy::Model target(kVocab, toy::random_logits(1)), draft(kVocab, toy::random_logits(1));
  Stepper stepper(target, &draft);
  for (size_t room = 0; room <= 5; ++room) {
    Toy r(stepper, {1, 2}, 4, 20);
    target.before_pass = nullptr;
    stepper.start(r.s);
    target.before_pass = [&](std::span<const Extension> extensions) {
      if (extensions[0].tokens.size() > room) throw CacheFull("full");
    };
    Sequence* const batch[] = {&r.s};
    if (room == 0) {
      EXPECT_THROW(stepper.step(batch), CacheFull);
      expect_caches(target, draft, r.s);
      target.before_pass = nullptr;
    }
    stepper.step(batch);
    EXPECT_EQ(r.s.outcome().drafted, room == 0 ? 4 : static_cast<int>(room) - 1);
    EXPECT_EQ(r.s.outcome().accepted, r.s.outcome().drafted);
    expect_caches(target, draft, r.s);
    stepper.close(r.s);
  }
}

// If the draft's cache has no room for a sequence, the sequence's draft cache is closed, and nothing is drafted for the
// sequence in the next steps. This does not count as a failure.
TEST(StepRoom, ADraftWithoutRoomRestsAndComesBack) {
  toy::Model target(kVocab, toy::random_logits(1)), draft(kVocab, toy::random_logits(1));
  Stepper alone(target, nullptr), stepper(target, &draft);
  Toy plain(alone, {1}, 0, 120), r(stepper, {1}, 4, 120), other(stepper, {2}, 4, 1000);
  const toy::Tokens text = run(alone, plain);
  draft.before_pass = [&](std::span<const Extension> extensions) {
    for (const Extension& e : extensions)
      if (draft.passes > 10 && draft.passes < 30 && e.sequence == r.s.draft_id()) throw CacheFull("full");
  };
  stepper.start(r.s);
  stepper.start(other.s);
  Sequence* const batch[] = {&r.s, &other.s};
  int rested = 0;
  while (r.s.remaining() > 0) {
    stepper.step(batch);
    rested += r.s.draft_id() < 0;
    EXPECT_FALSE(r.s.draft_failed());
    EXPECT_EQ(other.s.outcome().drafted, 4);
    expect_caches(target, draft, r.s);
  }
  EXPECT_EQ(r.s.tokens(), text);
  EXPECT_GE(rested, 32);
  EXPECT_GE(r.s.draft_id(), 0) << "it drafts again";
}

}  // namespace
}  // namespace specdec::decode
