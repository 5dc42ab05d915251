// Texts that are read in pieces, closed and read again, and caches that are full.
#include <gtest/gtest.h>

#include <memory>

#include "tests/decode/step_request.h"

namespace specdec::decode {
namespace {

// In any pieces, and closed and read again between any two steps: the same text, and no draw is lost.
TEST(StepRoom, OpenedReadAndClosedInPiecesIsTheSameText) {
  for (const double temperature : {0.0, 1.0}) {
    toy::Model target(kVocab, toy::random_logits(1)), draft(kVocab, toy::random_logits(2));
    Stepper stepper(target, &draft);
    Request whole({1, 2, 3, 4, 5, 6}, 3, 40, {.temperature = temperature}),
        pieces({1, 2, 3, 4, 5, 6}, 3, 40, {.temperature = temperature});
    run(stepper, whole);
    Sequence* const batch[] = {&pieces.s};
    while (pieces.s.remaining > 0) {
      stepper.open(pieces.s);
      EXPECT_THROW(stepper.step(batch), Error) << "not read whole";
      const int64_t unread = stepper.unread(pieces.s);
      EXPECT_EQ(unread, static_cast<int64_t>(pieces.s.tokens.size()) - 1);
      EXPECT_EQ(stepper.read(pieces.s, 4), 4);
      EXPECT_EQ(stepper.read(pieces.s, 1000), unread - 4);
      EXPECT_EQ(stepper.read(pieces.s, 1000), 0);
      stepper.step(batch);
      expect_caches(target, draft, pieces.s);
      stepper.finish(pieces.s);
      EXPECT_EQ(target.open_sequences() + draft.open_sequences(), 0u);
    }
    EXPECT_EQ(pieces.s.tokens, whole.s.tokens);
    EXPECT_EQ(pieces.s.counts.accepted, whole.s.counts.accepted);
  }
}

// What a draft has to read is spread over steps, which go on plainly meanwhile.
TEST(StepRoom, ADraftFarBehindReadsSoMuchAStep) {
  toy::Model target(kVocab, toy::random_logits(1)), draft(kVocab, toy::random_logits(1));
  Stepper stepper(target, &draft);
  Request a(toy::Tokens(450, 4), 2, 30), b(toy::Tokens(450, 5), 2, 30), near(toy::Tokens(20, 6), 2, 30);
  for (Request* r : {&a, &b, &near}) stepper.start(r->s);
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
    drafted_a.push_back(a.s.drafted);
    drafted_b.push_back(b.s.drafted);
    EXPECT_EQ(near.s.drafted, 2) << "it has nothing to wait for";
  }
  EXPECT_EQ(drafted_a, (std::vector<int>{0, 2, 2, 2, 2, 2}));
  EXPECT_EQ(drafted_b, (std::vector<int>{0, 0, 0, 2, 2, 2}));
  EXPECT_EQ(a.s.accepted, 2);
  expect_caches(target, draft, b.s);
}

TEST(StepRoom, WithoutRoomNothingChangesAndWhatWasDraftedIsVerifiedLater) {
  for (const double temperature : {0.0, 1.0})
    for (const std::vector<int>& tree : {std::vector<int>{}, {2, 2, 1}}) {
      toy::Model target(kVocab, toy::random_logits(1)), draft(kVocab, mostly_right(toy::random_logits(1)));
      Stepper stepper(target, &draft);
      const auto request = [&](int32_t first) {
        auto r = std::make_unique<Request>(toy::Tokens{first, 2}, 3, 60, SamplingOptions{.temperature = temperature});
        r->controller = KController({.fixed_k = 3, .tree = tree}, nullptr);
        return r;
      };
      const auto calm = request(1), a = request(1), b = request(2);
      b->s.remaining = 1000;
      run(stepper, *calm);
      stepper.start(a->s);
      stepper.start(b->s);
      Sequence* const batch[] = {&a->s, &b->s};
      for (int i = 0; a->s.remaining > 0; ++i) {
        const toy::Tokens tokens = a->s.tokens;
        target.before_pass = [](std::span<const Extension>) { throw OutOfRoom("full"); };
        EXPECT_THROW(stepper.step(batch), OutOfRoom);
        target.before_pass = nullptr;
        EXPECT_EQ(a->s.tokens, tokens);
        expect_caches(target, draft, a->s);
        if (i % 3 == 0) {
          stepper.finish(a->s);
          stepper.open(a->s);
          while (stepper.unread(a->s) > 0) stepper.read(a->s, 7);
        }
        const int64_t passes = draft.passes;
        stepper.step({batch, i % 5 > 0 ? size_t{2} : size_t{1}});
        EXPECT_EQ(draft.passes, passes) << "it has been drafted";
      }
      EXPECT_EQ(a->s.tokens, calm->s.tokens);
    }
}

TEST(StepRoom, AloneItGivesUpItsDeepestLevelsAndThenTheStep) {
  toy::Model target(kVocab, toy::random_logits(1)), draft(kVocab, toy::random_logits(1));
  Stepper stepper(target, &draft);
  for (size_t room = 0; room <= 5; ++room) {
    Request r({1, 2}, 4, 20);
    target.before_pass = nullptr;
    stepper.start(r.s);
    target.before_pass = [&](std::span<const Extension> extensions) {
      if (extensions[0].tokens.size() > room) throw OutOfRoom("full");
    };
    Sequence* const batch[] = {&r.s};
    if (room == 0) {
      EXPECT_THROW(stepper.step(batch), OutOfRoom);
      expect_caches(target, draft, r.s);
      target.before_pass = nullptr;
    }
    stepper.step(batch);
    EXPECT_EQ(r.s.drafted, room == 0 ? 4 : static_cast<int>(room) - 1);
    EXPECT_EQ(r.s.accepted, r.s.drafted);
    expect_caches(target, draft, r.s);
    stepper.finish(r.s);
  }
}

// It gives up its own caches for a while, and is not taken for broken.
TEST(StepRoom, ADraftWithoutRoomRestsAndComesBack) {
  toy::Model target(kVocab, toy::random_logits(1)), draft(kVocab, toy::random_logits(1));
  Stepper alone(target, nullptr), stepper(target, &draft);
  Request plain({1}, 0, 120), r({1}, 4, 120), other({2}, 4, 1000);
  const toy::Tokens text = run(alone, plain);
  draft.before_pass = [&](std::span<const Extension> extensions) {
    for (const Extension& e : extensions)
      if (draft.passes > 10 && draft.passes < 30 && e.sequence == r.s.draft_id) throw OutOfRoom("full");
  };
  stepper.start(r.s);
  stepper.start(other.s);
  Sequence* const batch[] = {&r.s, &other.s};
  int rested = 0;
  while (r.s.remaining > 0) {
    stepper.step(batch);
    rested += r.s.draft_id < 0;
    EXPECT_FALSE(r.s.draft_failed);
    EXPECT_EQ(other.s.drafted, 4);
    expect_caches(target, draft, r.s);
  }
  EXPECT_EQ(r.s.tokens, text);
  EXPECT_GE(rested, 32);
  EXPECT_GE(r.s.draft_id, 0) << "it drafts again";
}

}  // namespace
}  // namespace specdec::decode
