#include "distill/run/preparation.h"

#include <gtest/gtest.h>

#include "tests/base/manual_clock.h"
#include "tests/distill/toy.h"

namespace specdec::distill {
namespace {

using namespace specdec::testing;

TEST(Preparation, ShortenKeepsWholeConversationsAndEnoughOfThem) {
  auto rows = toy_rows(120, 4);
  for (size_t i = 0; i < rows.size(); ++i) rows[i].conversation = "talk " + std::to_string(i / 2);
  HeldOut all = split_held_out(rows, 1000, 1000), few = all, none = all;
  shorten(few, 1000, 45);
  EXPECT_EQ(few.selection.size(), all.selection.size());
  EXPECT_EQ(few.verdict.size(), 46u) << "the conversation that is begun is finished";
  EXPECT_EQ(few.verdict_conversations, 23);
  shorten(none, 1, 1);
  EXPECT_EQ(none.selection_conversations, kMinVerdictConversations);
  EXPECT_EQ(none.verdict_conversations, 2 * kMinVerdictConversations);
  for (size_t i = 0; i < none.verdict.size(); ++i) EXPECT_EQ(none.verdict[i].id, all.verdict[i].id);
  HeldOut exact = all;
  shorten(exact, 1, 5, true);
  EXPECT_EQ(exact.selection_conversations, 1) << "under a time limit there is no least number";
  EXPECT_EQ(exact.verdict.size(), 6u);
}

TEST(Preparation, TheChoiceOfLayersCostsWhatItMay) {
  for (const auto& [layers, keep] : std::vector<std::pair<int64_t, int64_t>>{{12, 2}, {4, 2}, {5, 1}}) {
    const auto target = std::make_shared<model::Decoder>(toy_decoder(layers, 1));
    const auto passes = [&](int64_t limit) {
      double last = 0;
      const auto step = [&](double share) {
        EXPECT_GE(share, last - 1e-9);
        EXPECT_LE(share, 1 + 1e-9);
        last = share;
      };
      const auto [kept, search] = choose_layers(target, keep, toy_rows(40, 4), 1, {limit, step});
      EXPECT_EQ(static_cast<int64_t>(kept.size()), keep);
      EXPECT_TRUE(std::is_sorted(kept.begin(), kept.end()));
      EXPECT_NEAR(last, 1, 1e-9);
      return std::pair(search["trials"].size(), search["trials"].size() * search["probe_rows"].get<size_t>());
    };
    const auto [all, most] = passes(INT64_MAX);
    EXPECT_EQ(most, 40 * all);
    EXPECT_LE(passes(static_cast<int64_t>(20 * all)).second, 20 * all);
    EXPECT_EQ(passes(static_cast<int64_t>(20 * all)).first, all) << "rows go first";
    const auto [least, work] = passes(1);
    EXPECT_EQ(work, 4 * least) << "four rows are the least";
    EXPECT_GE(least, 2u);
    EXPECT_TRUE(layers != 12 || least == 4) << "two candidates in each of two rounds";
  }
}

TEST(Preparation, ALargeVocabularyIsProbedAtFewPositionsOfSeveralRows) {
  const auto train = toy_rows(200, 4, 40, 46);
  const auto small = probe_rows(train, 24), large = probe_rows(train, 151936);
  int64_t positions = 0;
  for (const TokenRow& row : large) positions += learnt_positions(row);
  EXPECT_LE(positions, (int64_t{1} << 27) / 151936 + 60);
  EXPECT_GE(large.size(), 16u);
  EXPECT_EQ(small.front().tokens, train.front().tokens) << "whole rows where they cost nothing";
}

TEST(Preparation, WhatIsGivenStaysAndTheRestFollows) {
  auto target = std::make_shared<model::Decoder>(toy_decoder(3, 1));
  model::Decoder draft = keep_layers(*target, {0, 2});
  const auto rows = toy_rows(60, 5);
  ModelTeacher teacher(target, rows, 1 << 20);
  const ManualClock clock(0, 0.01);  // each reading adds 10 ms, so the gradient of every step takes 10 ms
  Stages stages({});
  const GradientSource source{&draft, &teacher, {}, {}};
  const auto parameters = TrainedDraft(draft).trainable();
  const auto chosen = [&](DistillOptions o) {
    o.draft = "prune:2";
    const Json json = choose_settings(o, run_limits(o, 1000), {source, parameters, rows}, stages, clock);
    EXPECT_EQ(json["batch_tokens"], o.batch_tokens);
    EXPECT_EQ(json["accumulate"], o.accumulate);
    EXPECT_EQ(json["learning_rate"], o.learning_rate);
    DistillOptions again;
    apply_settings(json, again);
    EXPECT_EQ(again.batch_tokens, o.batch_tokens);
    return o;
  };
  DistillOptions o;
  o.time_limit_seconds = 5;
  EXPECT_EQ(chosen(o).batch_tokens, kLeastStepTokens);
  EXPECT_EQ(chosen(o).accumulate, 1);
  EXPECT_NEAR(chosen(o).learning_rate, 0.012, 1e-12);
  o.time_limit_seconds = 5000;
  EXPECT_GT(chosen(o).batch_tokens, kLeastStepTokens);
  o.batch_tokens = 77;
  o.learning_rate = 1;
  EXPECT_EQ(chosen(o).batch_tokens, 77) << "a flag wins";
  EXPECT_EQ(chosen(o).learning_rate, 1);
  for (const NamedTensor& p : parameters) EXPECT_FALSE(p.tensor.grad().defined()) << "measuring a step changes nothing";
}

}  // namespace
}  // namespace specdec::distill
