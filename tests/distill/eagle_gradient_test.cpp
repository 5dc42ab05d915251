// Trains toy EAGLE-3 heads. Tests which tokens a training step sees, how acceptance is measured, and that a head can
// memorise a small sample.
#include "distill/gradient/eagle_gradient.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "distill/gradient/gradient_sums.h"
#include "distill/gradient/optimizer.h"
#include "distill/gradient/trained_draft.h"
#include "distill/train/evaluate.h"
#include "engine/weights/draft_vocab.h"
#include "tests/distill/toy.h"

namespace specdec::distill {
namespace {

using namespace specdec::testing;

EagleDraft toy_eagle(std::vector<int32_t> ids = {}) {
  const auto target = std::make_shared<const model::Decoder>(toy_decoder(8, 1, 6));
  return {model::new_eagle_head(*target, std::move(ids), 3, at::kFloat), target, 5, 0.8};
}

// Returns rows whose second token has loss_mask 0, because a head predicts from the third token on.
std::vector<TokenRow> eagle_rows(size_t count, uint64_t seed, uint64_t low = 6, uint64_t high = 20) {
  std::vector<TokenRow> rows = toy_rows(count, seed, low, high);
  for (TokenRow& row : rows) row.loss_mask[1] = 0;
  return rows;
}

TEST(EagleGradient, OneSampleIsLearntByHeartAtEveryPosition) {
  EagleDraft draft = toy_eagle();
  const std::vector<TokenRow> rows = eagle_rows(1, 4, 16, 16);
  const std::vector<Batch> batches = {make_batch(rows, {0})};
  const std::vector<NamedTensor> parameters = TrainedDraft(draft).trainable();
  AdamW optimizer(parameters, {.clip = 1});
  GradientSums sums(parameters);
  EagleFigures figures;
  const auto learnt = [&] {
    return figures.steps.size() == 5 && std::all_of(figures.steps.begin(), figures.steps.end(),
                                                    [](const EagleStepFigures& f) { return f.acceptance > 0.97; });
  };
  for (int step = 0; step < 3000 && !learnt(); ++step) {
    sums.clear();
    figures = add_eagle_gradients(draft, {parse_loss("kl"), 3, 1}, batches, sums);
    sums.publish();
    optimizer.step(1e-2 * std::pow(0.5, step / 400), optimizer.grad_norm());
  }
  ASSERT_EQ(figures.steps.size(), 5u);
  for (size_t i = 0; i < figures.steps.size(); ++i) {
    EXPECT_EQ(figures.steps[i].rows, 14 - static_cast<int64_t>(i)) << i;
    EXPECT_GT(figures.steps[i].acceptance, 0.97) << i;
  }
}

// Training and evaluation compute the same acceptance at the first draft position, with a full and a reduced
// vocabulary. With a reduced vocabulary, the target's probability of tokens outside of it counts as not accepted.
TEST(EagleGradient, TheFirstPositionIsWhatIsMeasured) {
  for (const bool reduced : {false, true}) {
    EagleDraft draft = toy_eagle(reduced ? std::vector<int32_t>{1, 2, 3, 5, 8, 13, 21} : std::vector<int32_t>());
    GradientSums sums(TrainedDraft(draft).trainable());
    const std::vector<TokenRow> rows = eagle_rows(3, 9, 12, 12);
    const EagleFigures figures =
        add_eagle_gradients(draft, {parse_loss("tv"), 3, 0.7}, {make_batch(rows, {0, 1}), make_batch(rows, {2})}, sums);
    const Evaluation measured =
        evaluate(TrainedDraft(draft), draft.target.get(), rows, {.temperature = 0.7, .batch_tokens = 24});
    EXPECT_NEAR(figures.steps[0].acceptance, measured.acceptance_tokens, 1e-6);
    EXPECT_NEAR(figures.steps[0].loss, 1 - measured.acceptance_tokens, 1e-6);
    if (!reduced) continue;
    ModelTeacher teacher(draft.target, rows, 0);
    const Batch batch = make_batch(rows, {0, 1, 2});
    const at::Tensor p = at::softmax(teacher.rows(batch)(0, batch.rows.numel(), {}) / 0.7, -1);
    const at::Tensor ids = model::draft_vocab_index(draft.head.config.layer.draft_vocab, at::kCPU);
    EXPECT_LT(measured.acceptance_tokens, p.index_select(1, ids).sum(-1).mean().item<double>() + 1e-6);
  }
}

// Chunks of any size give the same loss and the same gradients, with a full and a reduced vocabulary.
TEST(EagleGradient, ChunksAddUp) {
  for (const char* loss : {"kl", "tv", "lk_hybrid", "0.5*ce+0.5*kl"})
    for (const bool reduced : {false, true}) {
      const std::vector<TokenRow> rows = eagle_rows(3, 9, 9, 14);
      std::vector<at::Tensor> whole;
      double whole_loss = 0;
      for (const int64_t chunk : {1000, 7, 1}) {
        EagleDraft draft = toy_eagle(reduced ? std::vector<int32_t>{1, 2, 3, 5, 8, 13, 21} : std::vector<int32_t>());
        draft.chunk_rows = chunk;
        const std::vector<NamedTensor> parameters = TrainedDraft(draft).trainable();
        GradientSums sums(parameters);
        const EagleFigures figures = add_eagle_gradients(draft, {.mix = parse_loss(loss), .acceptance = 0.4},
                                                         {make_batch(rows, {0, 1, 2})}, sums);
        sums.publish();
        for (size_t i = 0; i < parameters.size(); ++i) {
          const at::Tensor& found = parameters[i].tensor.grad();
          ASSERT_TRUE(found.defined()) << parameters[i].name;
          if (chunk == 1000)
            whole.push_back(found.clone());
          else
            EXPECT_TRUE(at::allclose(found, whole[i], 1e-4, 1e-6)) << loss << " " << parameters[i].name << " " << chunk;
        }
        if (chunk == 1000) whole_loss = figures.steps[1].loss;
        EXPECT_NEAR(figures.steps[1].loss, whole_loss, 1e-6) << loss;
      }
    }
}

// Changing a token changes the predictions of later tokens only.
TEST(EagleGradient, RowsDoNotSeeTheTokenThatTheyPredict) {
  EagleDraft draft = toy_eagle();
  std::vector<TokenRow> rows = eagle_rows(1, 9, 12, 12);
  const auto logits = [&] {
    const Batch batch = make_batch(rows, {0});
    return eagle_row_logits(draft, batch)(0, batch.rows.numel());
  };
  const at::Tensor before = logits();
  rows[0].tokens[7] = (rows[0].tokens[7] + 1) % 24;
  const at::Tensor after = logits();
  ASSERT_EQ(before.size(0), 10);  // row 0 predicts token 2, row 9 predicts token 11
  for (int64_t row = 0; row < 10; ++row)
    EXPECT_EQ(at::allclose(before[row], after[row], 1e-5, 1e-6), row + 2 <= 7) << row;
}

TEST(EagleGradient, TheSecondTokenCannotBePredicted) {
  const EagleDraft draft = toy_eagle();
  std::vector<TokenRow> rows = eagle_rows(1, 9);
  rows[0].loss_mask[1] = 1;
  expect_error(ErrorKind::kInternal, {"second token"}, [&] { eagle_row_logits(draft, make_batch(rows, {0})); });
}

}  // namespace
}  // namespace specdec::distill
