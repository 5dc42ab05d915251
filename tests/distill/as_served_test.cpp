// Tests that a target of a GGUF file teaches with the blocks and the passes with which it serves.
#include "distill/teacher/as_served.h"

#include <gtest/gtest.h>

#include "distill/teacher/teacher.h"
#include "engine/kernels/block_quantised.h"
#include "tests/model/gguf_decoder.h"

namespace specdec::distill {
namespace {

using testing::kVocab;
using testing::WrittenModel;

// Texts of which the first three begin with the same 150 tokens. The last tokens of each are in the loss.
std::vector<TokenRow> texts() {
  std::vector<TokenRow> rows;
  for (uint64_t r = 0; r < 5; ++r) {
    TokenRow row;
    PhiloxStream beginning(11, r < 3 ? 0 : r), end(12, r);
    for (int i = 0; i < 150; ++i) row.tokens.push_back(static_cast<int32_t>(beginning.below(kVocab)));
    for (uint64_t i = 0; i < 8 + r; ++i) row.tokens.push_back(static_cast<int32_t>(end.below(kVocab)));
    row.loss_mask.assign(row.tokens.size(), 0);
    std::fill(row.loss_mask.begin() + 151, row.loss_mask.end(), 1);
    rows.push_back(row);
  }
  return rows;
}

double error_of(const at::Tensor& found, const at::Tensor& expected) {
  return ((found - expected).pow(2).sum() / expected.pow(2).sum()).item<double>();
}

TEST(AsServed, KeepsTheBlocksUnlessADtypeIsNamed) {
  const WrittenModel written("llama", {"Q4_0"}, "Q8_0");
  const model::DecoderConfig config = model::load_decoder_config(written.directory());
  EXPECT_TRUE(runs_as_served("auto", config, at::kCPU));
  EXPECT_FALSE(runs_as_served("fp32", config, at::kCPU));
  EXPECT_FALSE(runs_as_served("auto", config, at::Device(at::kCUDA, 0)));
  model::Decoder target = load_teacher(written.directory(), at::kCPU, "auto");
  target.weights.visit(target.config, [](const std::string& name, at::Tensor& t) {
    EXPECT_TRUE(kernels::is_block_quantised(t) || t.scalar_type() == at::kFloat) << name;
  });
  EXPECT_TRUE(kernels::is_block_quantised(target.weights.lm_head));
  EXPECT_EQ(load_teacher(written.directory(), at::kCPU, "fp32").weights.lm_head.scalar_type(), at::kFloat);
}

TEST(AsServed, AnswersAsTheDequantisedWeightsWouldInFp32) {
  for (const char* architecture : {"llama", "gemma3"}) {
    const WrittenModel written(architecture, {"Q4_0", "Q4_1"}, "Q8_0");
    const auto target = std::make_shared<model::Decoder>(load_teacher(written.directory(), at::kCPU, "auto"));
    const model::Decoder wide = model::load_decoder(written.directory(), at::kCPU, at::kFloat);
    const std::vector<TokenRow> rows = texts();
    const Batch batch = make_batch(rows, {0, 3, 4});
    const int64_t count = batch.rows.numel();
    const at::Tensor expected = row_logits(wide, batch)(0, count);
    const auto served = ServedTarget::of(target);
    ASSERT_NE(served, nullptr);
    EXPECT_LT(error_of(row_logits(*target, batch, nullptr, served.get())(0, count), expected), 1e-5) << architecture;
    EXPECT_LT(error_of(row_logits(*target, batch)(0, count), expected), 1e-5) << "side by side, " << architecture;
    EXPECT_EQ(ServedTarget::of(std::make_shared<model::Decoder>(wide)), nullptr);
  }
}

TEST(AsServed, TextsThatBeginAlikeGetTheSameStatesAsAlone) {
  const WrittenModel written("llama", {"Q4_1"}, "Q8_0");
  const auto target = std::make_shared<model::Decoder>(load_teacher(written.directory(), at::kCPU, "auto"));
  const std::vector<TokenRow> rows = texts();
  const auto served = ServedTarget::of(target);
  for (const size_t row : {0, 1, 2, 3, 0}) {
    const Batch batch = make_batch(rows, {row});
    EXPECT_TRUE(at::equal(served->hidden_rows(batch), ServedTarget::of(target)->hidden_rows(batch))) << row;
  }
}

TEST(AsServed, ACopyForTrainingHasTheDequantisedWeights) {
  const WrittenModel written("gemma3", {"Q4_K", "Q6_K"}, "Q6_K");
  const model::Decoder target = load_teacher(written.directory(), at::kCPU, "auto");
  model::Decoder copy = model::trainable_copy(target, at::kFloat);
  copy.weights.visit(copy.config, [&](const std::string& name, at::Tensor& t) {
    if (name.find("proj") != std::string::npos)
      EXPECT_TRUE(at::allclose(t, written.expected(name), 1e-6, 1e-7)) << name;
    EXPECT_EQ(t.scalar_type(), at::kFloat) << name;
  });
  EXPECT_TRUE(copy.weights.lm_head.is_same(copy.weights.embed));
  EXPECT_EQ(copy.config.quantisation.method, model::Quantisation::Method::kNone);
}

}  // namespace
}  // namespace specdec::distill
