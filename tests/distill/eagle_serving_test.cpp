// Compares the acceptance that training measures with the acceptance in serving. The latter is Σ min(p, q) at every
// draft position after every position of a text, computed by decoding with the target, the head and their KV caches.
#include <gtest/gtest.h>

#include <algorithm>

#include "distill/gradient/eagle_gradient.h"
#include "distill/gradient/trained_draft.h"
#include "engine/decode/runners/eagle_runner.h"
#include "engine/decode/runners/model_runner.h"
#include "tests/distill/toy.h"

namespace specdec::distill {
namespace {

using namespace specdec::testing;

double overlap_rows(const decode::LogitRows& a, int64_t first, const decode::LogitRows& b) {
  const auto softmax = [](std::span<const float> row) {
    return at::tensor(std::vector<float>(row.begin(), row.end())).softmax(-1);
  };
  return at::minimum(softmax(a.row(first)), softmax(b.row(0))).sum().item<double>();
}

TEST(EagleServing, DraftsWhatWasTrained) {
  for (const bool reduced : {false, true}) {
    const auto target = std::make_shared<const model::Decoder>(toy_decoder(8, 1, 6));
    std::vector<int32_t> ids;
    if (reduced) ids = {1, 2, 3, 5, 8, 13, 21};
    EagleDraft draft{model::new_eagle_head(*target, ids, 3, at::kFloat), target, 4, 0.8};
    GradientSums gradients(TrainedDraft(draft).trainable());
    std::vector<TokenRow> rows = toy_rows(1, 12, 14, 14);
    const auto length = static_cast<int64_t>(rows[0].tokens.size());
    rows[0].loss_mask.assign(rows[0].tokens.size(), 1);
    rows[0].loss_mask[0] = rows[0].loss_mask[1] = 0;
    const EagleFigures trained =
        add_eagle_gradients(draft, {parse_loss("tv"), 3, 1}, {make_batch(rows, {0})}, gradients);

    const std::vector<int32_t>& text = rows[0].tokens;
    const auto runner = decode::make_model_runner(target);
    const auto head = decode::make_eagle_runner(std::make_shared<const model::EagleHead>(draft.head), *runner);
    decode::LogitRows p, q, none;
    const decode::SequenceId whole = runner->open();
    runner->extend(std::vector<decode::Extension>{{whole, text, length}}, p);
    std::vector<double> sums(4);
    std::vector<int64_t> counts(4);
    for (int64_t n = 2; n < length; ++n) {
      const decode::SequenceId a = runner->open(), b = head->open();
      EXPECT_EQ(head->follow(b, a), 0);
      runner->extend(std::vector<decode::Extension>{{a, std::span(text).first(static_cast<size_t>(n - 1)), 0}}, none);
      EXPECT_EQ(head->follow(b, a), n);
      head->extend(std::vector<decode::Extension>{{b, std::span(text).first(static_cast<size_t>(n)), 1}}, q);
      for (int64_t i = 0; i < 4 && n + i < length; ++i) {
        if (i > 0)
          head->extend(
              std::vector<decode::Extension>{{b, std::span(text).subspan(static_cast<size_t>(n + i - 1), 1), 1}}, q);
        sums[static_cast<size_t>(i)] += overlap_rows(p, n + i - 1, q);
        ++counts[static_cast<size_t>(i)];
      }
      head->close(b);
      runner->close(a);
    }
    ASSERT_EQ(trained.steps.size(), 4u);
    for (size_t i = 0; i < 4; ++i) {
      EXPECT_EQ(trained.steps[i].rows, counts[i]) << i;
      EXPECT_NEAR(trained.steps[i].acceptance, sums[i] / static_cast<double>(counts[i]), 1e-5) << i;
    }
  }
}

// Returns a row of two random tokens and the target's greedy continuation, with loss_mask 1 throughout.
TokenRow greedy_row(decode::CausalModel& target, int64_t length) {
  TokenRow row = toy_rows(1, 12, 6, 6)[0];
  row.tokens.resize(2);
  decode::LogitRows p;
  const decode::SequenceId all = target.open();
  row.tokens.reserve(static_cast<size_t>(length));
  std::span<const int32_t> next = row.tokens;
  while (static_cast<int64_t>(row.tokens.size()) < length) {
    target.extend(std::vector<decode::Extension>{{all, next, 1}}, p);
    row.tokens.push_back(static_cast<int32_t>(std::max_element(p.row(0).begin(), p.row(0).end()) - p.row(0).begin()));
    next = std::span<const int32_t>(row.tokens).last(1);
  }
  target.close(all);
  row.loss_mask.assign(row.tokens.size(), 1);
  row.loss_mask[0] = row.loss_mask[1] = 0;
  return row;
}

// Returns the mean number of tokens that a greedy speculative step with K = 4 yields (accepted tokens plus the target's
// own). The mean is over all positions of a greedy text that have four tokens after them.
double tokens_of_step(const EagleDraft& draft, const std::vector<int32_t>& text) {
  constexpr size_t kDrafted = 4;
  const auto runner = decode::make_model_runner(draft.target);
  const auto head = decode::make_eagle_runner(std::make_shared<const model::EagleHead>(draft.head), *runner);
  decode::LogitRows q, none;
  double tokens = 0;
  size_t steps = 0;
  for (size_t n = 2; n + kDrafted <= text.size(); ++n) {
    const decode::SequenceId a = runner->open(), b = head->open();
    head->follow(b, a);
    runner->extend(std::vector<decode::Extension>{{a, std::span(text).first(n - 1), 0}}, none);
    head->follow(b, a);
    std::span<const int32_t> next = std::span(text).first(n);
    size_t accepted = 0;
    for (; accepted < kDrafted; ++accepted) {
      head->extend(std::vector<decode::Extension>{{b, next, 1}}, q);
      const auto drafted = std::max_element(q.row(0).begin(), q.row(0).end()) - q.row(0).begin();
      if (drafted != text[n + accepted]) break;
      next = std::span(text).subspan(n + accepted, 1);
    }
    tokens += static_cast<double>(accepted) + 1;
    ++steps;
    head->close(b);
    runner->close(a);
  }
  return tokens / static_cast<double>(steps);
}

TEST(EagleServing, AnOverfittedSampleIsDraftedWhole) {
  const auto target = std::make_shared<const model::Decoder>(toy_decoder(8, 1, 6));
  EagleDraft draft{model::new_eagle_head(*target, {}, 3, at::kFloat), target, 4, 0.8};
  const auto runner = decode::make_model_runner(target);
  const std::vector<TokenRow> rows = {greedy_row(*runner, 40)};
  const std::vector<NamedTensor> parameters = TrainedDraft(draft).trainable();
  AdamW optimizer(parameters, {});
  GradientSums sums(parameters);
  const double before = tokens_of_step(draft, rows[0].tokens);
  for (int step = 0; step < 300; ++step) {
    sums.clear();
    ASSERT_TRUE(add_eagle_gradients(draft, {parse_loss("ce"), 3, 1}, {make_batch(rows, {0})}, sums).finite);
    sums.publish();
    optimizer.step(5e-3, optimizer.grad_norm());
  }
  EXPECT_LT(before, 2.5);
  EXPECT_GT(tokens_of_step(draft, rows[0].tokens), 4.9) << "K + 1 = 5";
}

}  // namespace
}  // namespace specdec::distill
