#include "distill/train/evaluate.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "distill/run/draft_init.h"
#include "distill/run/output.h"
#include "distill/teacher/teacher.h"
#include "engine/forward/forward.h"
#include "tests/distill/toy.h"

namespace specdec::distill {
namespace {

using namespace specdec::testing;

// Compares evaluate() with acceptance that is computed row by row as docs/contract.md defines it.
TEST(Evaluate, IsTheTeacherForcedOverlap) {
  const model::Decoder target = toy_decoder(3, 1), draft = toy_decoder(2, 2);
  const auto rows = toy_rows(13, 4);
  const Evaluation e = evaluate(draft, &target, rows, {.temperature = 0.8, .batch_tokens = 64});
  double by_request = 0, by_token = 0, entropy = 0;
  int64_t tokens = 0, agreed = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    const at::Tensor ids =
        at::tensor(std::vector<int64_t>(rows[i].tokens.begin(), rows[i].tokens.end()), at::kLong).unsqueeze(0);
    const at::Tensor p = at::softmax(model::forward(target, {.tokens = ids})[0] / 0.8, -1),
                     q = at::softmax(model::forward(draft, {.tokens = ids})[0] / 0.8, -1);
    double sum = 0;
    for (int64_t t = 1; t + 1 < static_cast<int64_t>(rows[i].tokens.size()); ++t) {  // the answer begins at token 2
      sum += at::minimum(p[t], q[t]).sum().item<double>();
      agreed += p[t].argmax().item<int64_t>() == q[t].argmax().item<int64_t>();
      entropy -= std::log(q[t][rows[i].tokens[static_cast<size_t>(t) + 1]].item<double>());
      ++tokens;
    }
    by_token += sum;
    by_request += sum / static_cast<double>(rows[i].tokens.size() - 2);
    EXPECT_NEAR(e.rows[i].acceptance, sum / static_cast<double>(rows[i].tokens.size() - 2), 1e-5);
  }
  EXPECT_EQ(e.tokens, tokens);
  EXPECT_NEAR(e.acceptance, by_request / 13, 1e-5);
  EXPECT_NEAR(e.acceptance_tokens, by_token / static_cast<double>(tokens), 1e-5);
  EXPECT_NEAR(e.greedy_agreement, static_cast<double>(agreed) / static_cast<double>(tokens), 1e-9);
  EXPECT_NEAR(e.cross_entropy, entropy / static_cast<double>(tokens), 1e-4);
  EXPECT_NEAR(evaluate(target, &target, rows, {.temperature = 1, .batch_tokens = 64}).acceptance, 1, 1e-6);
  ModelTeacher teacher(std::make_shared<model::Decoder>(target), rows, 1 << 20);
  EXPECT_NEAR(evaluate(draft, teacher, rows, {.temperature = 0.8, .batch_tokens = 64}).acceptance, e.acceptance, 1e-3);
  const Evaluation alone = evaluate(draft, nullptr, rows, {.temperature = 0.8, .batch_tokens = 64});
  EXPECT_TRUE(std::isnan(alone.acceptance));
  EXPECT_NEAR(alone.cross_entropy, e.cross_entropy, 1e-6);
}

// Returns rows with two answers each: the first is tokens 2 to 21 (counted from 0), the second begins at token 25.
std::vector<TokenRow> rows_of_two_answers(size_t count) {
  std::vector<TokenRow> rows = toy_rows(count, 4, 30, 40);
  for (TokenRow& row : rows) std::fill(row.loss_mask.begin() + 22, row.loss_mask.begin() + 25, 0);
  return rows;
}

TEST(Evaluate, PositionsAreCountedWithinEachAnswer) {
  const model::Decoder target = toy_decoder(3, 1), draft = toy_decoder(2, 2);
  const auto rows = rows_of_two_answers(7);
  const Evaluation e = evaluate(draft, &target, rows, {.batch_tokens = 90});
  double first_mean = 0, later_mean = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    const auto size = static_cast<int64_t>(rows[i].tokens.size());
    const at::Tensor ids =
        at::tensor(std::vector<int64_t>(rows[i].tokens.begin(), rows[i].tokens.end()), at::kLong).unsqueeze(0);
    const at::Tensor p = at::softmax(model::forward(target, {.tokens = ids})[0], -1),
                     q = at::softmax(model::forward(draft, {.tokens = ids})[0], -1);
    const auto sum = [&](int64_t begin, int64_t end) {  // acceptance summed over the tokens [begin, end)
      double total = 0;
      for (int64_t t = begin; t < end; ++t) total += at::minimum(p[t - 1], q[t - 1]).sum().item<double>();
      return total;
    };
    const double first = sum(2, 18) + sum(25, size), later = sum(18, 22);
    const int64_t first_tokens = 16 + size - 25;
    EXPECT_EQ(e.rows[i].stretch_tokens, (std::array<int64_t, 4>{first_tokens, 4, 0, 0}));
    EXPECT_NEAR(e.rows[i].stretch_acceptance[0], first, 1e-4);
    EXPECT_NEAR(e.rows[i].stretch_acceptance[1], later, 1e-4);
    first_mean += first / static_cast<double>(first_tokens) / 7;
    later_mean += later / 4 / 7;
  }
  const Evaluation kept = evaluation_from_json(to_json(e));
  EXPECT_EQ(kept.rows[3].stretch_acceptance, e.rows[3].stretch_acceptance) << "as a checkpoint keeps it";
  EXPECT_EQ(kept.rows[3].stretch_tokens, e.rows[3].stretch_tokens);
  const std::vector<PartScore> parts = by_stretch(rows, e);
  ASSERT_EQ(parts.size(), 2u) << "no answer is longer";
  EXPECT_EQ(parts[0].name, "1-16");
  EXPECT_EQ(parts[1].name, "17-64");
  EXPECT_NEAR(parts[0].acceptance.value, first_mean, 1e-5);
  EXPECT_NEAR(parts[1].acceptance.value, later_mean, 1e-5);
  EXPECT_EQ(parts[1].tokens, 28);
  EXPECT_EQ(parts[1].conversations, 7);
  EXPECT_LT(parts[1].acceptance.ci.low, later_mean);
  EXPECT_GT(parts[1].acceptance.ci.high, later_mean);
}

TEST(Evaluate, DomainsAreReportedApart) {
  auto rows = toy_rows(10, 4);
  Evaluation e;
  for (size_t i = 0; i < rows.size(); ++i) e.rows.push_back({i < 6 ? 0.8 : 0.2, 0, 0, 10});
  EXPECT_TRUE(by_domain(rows, e).empty()) << "no row has one";
  for (size_t i = 0; i < rows.size(); ++i) rows[i].domain = i < 6 ? "code" : i < 9 ? "chat" : "";
  rows[1].conversation = rows[0].conversation;
  const std::vector<PartScore> parts = by_domain(rows, e);
  ASSERT_EQ(parts.size(), 3u);
  EXPECT_EQ(parts[0].name, "");
  EXPECT_EQ(parts[1].name, "chat");
  EXPECT_EQ(parts[2].name, "code");
  EXPECT_NEAR(parts[1].acceptance.value, 0.2, 1e-12);
  EXPECT_NEAR(parts[2].acceptance.value, 0.8, 1e-12);
  EXPECT_EQ(parts[2].requests, 6);
  EXPECT_EQ(parts[2].conversations, 5);
  EXPECT_EQ(parts[2].tokens, 60);
}

TEST(Evaluate, TeacherGivesTheSameRowsCachedOrNot) {
  const auto target = std::make_shared<model::Decoder>(toy_decoder(3, 1));
  const auto rows = toy_rows(40, 4);
  ModelTeacher cached(target, rows, 1 << 20), direct(target, rows, 0);
  ASSERT_TRUE(cached.cached());
  ASSERT_FALSE(direct.cached());
  for (const std::vector<size_t>& index : {std::vector<size_t>{3, 9, 1}, {9, 20}, {3}}) {
    const Batch batch = make_batch(rows, index);
    const int64_t count = batch.rows.numel();
    const at::Tensor a = at::softmax(cached.rows(batch)(0, count, {}).to(at::kFloat), -1);
    const at::Tensor b = at::softmax(direct.rows(batch)(0, count, {}), -1);
    EXPECT_LT((a - b).abs().max().item<double>(), 1e-3);  // the cache holds fp16 log-probabilities
  }
  // The cached logits of a row are bit-identical whichever batch needed the row first, so that a resumed run gives the
  // same result.
  ModelTeacher other(target, rows, 1 << 20);
  const Batch one = make_batch(rows, {9});
  const int64_t count = one.rows.numel();
  EXPECT_TRUE(at::equal(other.rows(one)(0, count, {}), cached.rows(one)(0, count, {})));
}

TEST(Evaluate, HalvesShareNoConversation) {
  auto rows = toy_rows(60, 4);
  for (size_t i = 0; i < 60; ++i) rows[i].conversation = "talk " + std::to_string(i / 3);
  const HeldOut h = split_held_out(rows, 1000, 1000);
  EXPECT_EQ(h.selection.size() + h.verdict.size(), 60u);
  EXPECT_EQ(h.selection_conversations, 10);
  EXPECT_EQ(h.verdict_conversations, 10);
  std::set<std::string> choosing;
  for (const TokenRow& r : h.selection) choosing.insert(r.conversation);
  for (const TokenRow& r : h.verdict) EXPECT_EQ(choosing.count(r.conversation), 0u);
  std::reverse(rows.begin(), rows.end());  // which half a conversation joins depends on its name only
  const HeldOut again = split_held_out(rows, 1000, 1000);
  for (const TokenRow& r : again.selection) EXPECT_EQ(choosing.count(r.conversation), 1u);
  const HeldOut few = split_held_out(rows, 7, 12);
  EXPECT_LE(few.selection.size(), 7u);
  EXPECT_LE(few.verdict.size(), 12u);
  EXPECT_EQ(split_held_out({}, 5, 5).verdict_conversations, 0);
}

TEST(Evaluate, TheBestMeasuredCheckpointIsKeptNotTheLowestLoss) {
  // The loss falls throughout, but acceptance peaks at step 200.
  const std::vector<Measured> run = {
      {0, 0.60, 3.0}, {100, 0.68, 2.0}, {200, 0.71, 1.5}, {300, 0.70, 1.2}, {400, 0.66, 1.0}};
  EXPECT_EQ(rank_checkpoints(run), (std::vector<int64_t>{200, 300, 100, 400, 0}));
  EXPECT_EQ(rank_checkpoints({{10, 0.5, 1}, {20, 0.5, 0.5}}).front(), 10) << "the earlier of equals";
  EXPECT_EQ(rank_checkpoints({{10, 0.5, 1}, {20, std::nan(""), 0.5}}), (std::vector<int64_t>{10}));
}

Evaluation scores(const std::vector<double>& acceptance) {
  Evaluation e;
  for (const double a : acceptance) {
    e.rows.push_back({a, a, 2 - a, 10});
    e.acceptance += a / static_cast<double>(acceptance.size());
    e.tokens += 10;
  }
  return e;
}

TEST(Evaluate, VerdictNeedsAGainBeyondItsInterval) {
  const auto rows = toy_rows(20, 4);
  std::vector<double> before(20), better(20), noisy(20);
  for (size_t i = 0; i < 20; ++i) {
    before[i] = 0.5 + 0.01 * static_cast<double>(i);
    better[i] = before[i] + 0.03 + 0.001 * static_cast<double>(i % 3);
    noisy[i] = before[i] + (i % 2 ? 0.06 : -0.055);
  }
  // In these made-up scores the cross entropy falls as acceptance grows.
  for (const bool by_acceptance : {true, false}) {
    const Judgement up = judge(rows, scores(before), scores(better), by_acceptance);
    EXPECT_EQ(up.verdict, Verdict::kImproved);
    EXPECT_NEAR(up.difference.value, 0.031, 5e-4);
    EXPECT_GT(up.difference.ci.low, 0.03);
    EXPECT_EQ(judge(rows, scores(before), scores(noisy), by_acceptance).verdict, Verdict::kNoSignificantGain);
    EXPECT_EQ(judge(rows, scores(better), scores(before), by_acceptance).verdict, Verdict::kNoSignificantGain);
    EXPECT_EQ(judge(rows, scores(before), scores(before), by_acceptance).verdict, Verdict::kNoSignificantGain);
  }
  EXPECT_NEAR(judge(rows, scores(before), scores(better), true).before.value, 0.595, 1e-9);
}

TEST(Evaluate, TheUnitIsTheConversation) {
  auto rows = toy_rows(21, 4);
  for (TokenRow& r : rows) r.conversation = r.conversation.size() % 2 ? "a" : "b";
  const std::vector<double> before(21, 0.5), after(21, 0.7);
  EXPECT_EQ(judge(rows, scores(before), scores(after), true).verdict, Verdict::kInconclusive)
      << "21 requests of 2 conversations";
  EXPECT_EQ(judge({}, {}, {}, true).verdict, Verdict::kInconclusive);
}

TEST(DraftInit, KeepsTheLayersAsked) {
  const model::Decoder target = toy_decoder(3, 1);
  const model::Decoder kept = keep_layers(target, {0, 2});
  EXPECT_EQ(kept.config.num_layers, 2);
  EXPECT_TRUE(at::equal(kept.weights.layers[1].gate, target.weights.layers[2].gate));
  EXPECT_FALSE(kept.weights.embed.is_same(target.weights.embed)) << "a draft must not share memory with its target";
  EXPECT_TRUE(kept.weights.lm_head.is_same(kept.weights.embed)) << "tied stays tied";
}

TEST(DraftInit, RemovesTheLayerThatCostsLeast) {
  model::Decoder target = toy_decoder(4, 1);
  at::NoGradGuard guard;
  target.weights.layers[2].o.zero_();  // layer 2 adds nothing to the residual stream
  target.weights.layers[2].down.zero_();
  const auto shared = std::make_shared<model::Decoder>(target);
  const ChosenLayers three = choose_layers(shared, 3, toy_rows(20, 4), 1);
  EXPECT_EQ(three.layers, (std::vector<int64_t>{0, 1, 3}));
  EXPECT_NEAR(three.record["acceptance"].get<double>(), 1, 1e-3)
      << "the target's answers are kept as fp16 log-probabilities";
  EXPECT_EQ(three.record["trials"].size(), 2u) << "first and last layer are no candidates";
  const auto two = choose_layers(shared, 2, toy_rows(20, 4), 1).layers;
  EXPECT_EQ(two, (std::vector<int64_t>{0, 3}));
  EXPECT_EQ(choose_layers(shared, 1, toy_rows(20, 4), 1).layers.size(), 1u);
  expect_error(ErrorKind::kUsage, {"prune:5", "4 layers"}, [&] { choose_layers(shared, 5, toy_rows(4, 4), 1); });
}

TEST(DraftInit, SpecsAreChecked) {
  EXPECT_EQ(parse_draft_spec("prune:12").layers, 12);
  EXPECT_EQ(parse_draft_spec("model:a:b").argument, "a:b");
  EXPECT_EQ(parse_draft_spec("config:x.json").kind, "config");
  for (const char* bad : {"", "prune", "prune:", "prune:0", "prune:-1", "prune:2x", "prune:99999999999999999999",
                          "model:", "eagle9:1", "stories"})
    expect_error(ErrorKind::kUsage, {"--draft", std::string("'") + bad + "'"}, [&] { parse_draft_spec(bad); });
}

}  // namespace
}  // namespace specdec::distill
