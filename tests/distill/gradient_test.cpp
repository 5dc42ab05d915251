#include "distill/gradient/gradient.h"

#include <gtest/gtest.h>

#include <map>

#include "distill/gradient/trained_draft.h"
#include "distill/teacher/head_loss.h"
#include "engine/forward/forward.h"
#include "engine/weights/draft_vocab.h"
#include "tests/distill/toy.h"

namespace specdec::distill {
namespace {

using namespace specdec::testing;

double largest_gap(const at::Tensor& a, const at::Tensor& b) {
  return (a.to(at::kFloat) - b.to(at::kFloat)).abs().max().item<double>();
}

struct HeadCase {
  at::Tensor hidden = at::randn({50, 12}), head = at::randn({40, 12}), target = 2 * at::randn({50, 40}),
             labels = at::randint(40, {50}, at::kLong);
  LossOptions options;
  double soft_cap = 0;

  HeadLossInput input(int64_t chunk_rows) const {
    HeadLossInput in;
    in.hidden = hidden, in.head = head, in.soft_cap = soft_cap, in.labels = labels, in.chunk_rows = chunk_rows;
    in.target = [this](int64_t begin, int64_t end, const DraftRows&) { return target.slice(0, begin, end); };
    in.weight = 0.7;
    return in;
  }
};

// Loss and gradients computed in chunks equal those of autograd over all rows at once.
TEST(HeadLoss, ChunksAreTheWhole) {
  at::manual_seed(3);
  for (const char* name : {"kl", "lk_hybrid", "0.5*ce+0.5*tv", "ce", "jsd+rkl"}) {
    for (const double cap : {0.0, 1.5}) {
      HeadCase c;
      c.options = {parse_loss(name), 2.0, 1.3, 0.4};
      c.soft_cap = cap;
      const at::Tensor hidden = c.hidden.clone().requires_grad_(true), head = c.head.clone().requires_grad_(true);
      const at::Tensor raw = at::mm(hidden, head.t()), logits = cap > 0 ? cap * at::tanh(raw / cap) : raw;
      LossInput whole;
      whole.draft = logits.detach(), whole.target = c.target, whole.labels = c.labels;
      whole.rows = at::arange(50, at::kLong), whole.weight = 0.7;
      const LossResult expected = loss_and_grad(c.options, whole);
      logits.backward(expected.grad);
      for (const int64_t rows : {7, 50, 64}) {
        at::Tensor head_grad = at::ones({40, 12});
        const HeadLoss result = head_loss(c.options, c.input(rows), head_grad);
        EXPECT_NEAR(result.loss, expected.loss, 1e-6) << name;
        EXPECT_LT(largest_gap(result.hidden_grad, hidden.grad()), 1e-6) << name << " " << rows << " " << cap;
        EXPECT_LT(largest_gap(head_grad, 1 + head.grad()), 1e-6) << name << " " << rows << ": it is added";
      }
    }
  }
}

// With bf16 weights, gradients of many chunks are summed in fp32, so that small addends are not lost.
TEST(HeadLoss, SumsLowPrecisionInFp32) {
  at::manual_seed(4);
  HeadCase c;
  c.options.mix = parse_loss("kl");
  c.hidden = c.hidden.to(at::kBFloat16), c.head = c.head.to(at::kBFloat16);
  at::Tensor one = at::zeros({40, 12}), many = at::zeros({40, 12});
  head_loss(c.options, c.input(50), one);
  head_loss(c.options, c.input(1), many);
  EXPECT_LT(largest_gap(one, many), 0.02 * one.abs().max().item<double>());
  at::Tensor large = at::full({40, 12}, 256.0);
  head_loss(c.options, c.input(1), large);
  EXPECT_LT(largest_gap(large - 256, many), 1e-3) << "bf16 has steps of 2 at 256";
}

TEST(HeadLoss, RefusesWhatDoesNotFit) {
  HeadCase c;
  c.options.acceptance = 0;
  at::Tensor narrow = at::zeros({40, 11}), right = at::zeros({40, 12});
  expect_error(ErrorKind::kInternal, {"head [V, E]"}, [&] { head_loss(c.options, c.input(0), narrow); });
  c.options.acceptance = {};
  expect_error(ErrorKind::kInternal, {"mean acceptance"}, [&] { head_loss(c.options, c.input(0), right); });
}

TEST(HeadLoss, ChunksAreBounded) {
  EXPECT_EQ(head_loss_rows(151936), 208);
  EXPECT_EQ(head_loss_rows(int64_t{1} << 40), 16);
}

// Returns reference gradients, by autograd through forward() and the loss of all rows at once.
std::map<std::string, at::Tensor> plain_gradients(model::Decoder& draft, const model::Decoder& target,
                                                  const std::vector<Batch>& batches, const GradientSource& source) {
  const std::vector<NamedTensor> parameters = TrainedDraft(draft).trainable();
  double rows = 0;
  for (const Batch& b : batches) rows += static_cast<double>(b.rows.numel());
  for (const Batch& b : batches) {
    const at::Tensor logits = model::forward(draft, {.tokens = b.tokens}).flatten(0, 1);
    LossInput input;
    {
      at::NoGradGuard guard;
      input.target = model::forward(target, {.tokens = b.tokens}).flatten(0, 1);
    }
    input.draft = logits.detach(), input.labels = b.labels, input.rows = b.rows, input.kept = source.kept;
    input.weight = static_cast<double>(b.rows.numel()) / rows;
    logits.backward(loss_and_grad(source.loss, input).grad);
  }
  std::map<std::string, at::Tensor> out;
  for (const NamedTensor& p : parameters) {
    out[p.name] = p.tensor.grad().clone();
    p.tensor.mutable_grad() = at::Tensor();
  }
  return out;
}

// The gradient of every parameter equals that of autograd, with tied and separate heads, soft caps, scaled embeddings
// and a reduced vocabulary.
TEST(Gradient, IsThatOfAutograd) {
  const auto rows = toy_rows(9, 4);
  const std::vector<Batch> batches = {make_batch(rows, {0, 1, 2, 3}), make_batch(rows, {4, 5}),
                                      make_batch(rows, {6, 7, 8})};
  const auto target = std::make_shared<model::Decoder>(toy_decoder(3, 1));
  struct Case {
    const char* name;
    bool tied = true;
    double cap = 0, scale = 1;
    std::vector<int32_t> kept = {};
  };
  for (const Case& c : {Case{"tied"}, Case{"own head", false}, Case{"capped", true, 2.0, 3.0},
                        Case{"reduced", true, 0, 1, {1, 2, 5, 9, 20, 23}}, Case{"reduced", false, 0, 1, {0, 7, 8}}}) {
    model::DecoderConfig config = toy_config(2);
    config.tie_embeddings = c.tied, config.final_soft_cap = c.cap, config.embedding_scale = c.scale;
    config.draft_vocab = c.kept;
    model::Decoder draft = model::random_decoder(config, 6, at::kCPU, at::kFloat);
    const std::vector<NamedTensor> parameters = TrainedDraft(draft).trainable();
    ModelTeacher teacher(target, rows, 0);
    GradientSource source{&draft, &teacher, {parse_loss("lk_hybrid+0.3*ce"), 3.0, 1.2, 0.3}, {}};
    if (!c.kept.empty()) source.kept = model::draft_vocab_index(c.kept, at::kCPU);
    const auto expected = plain_gradients(draft, *target, batches, source);
    GradientSums sums(parameters);
    for (int round = 0; round < 2; ++round) {  // the second round tests that no sums are left from the first
      const GradientFigures f = compute_gradients(source, batches, sums);
      EXPECT_TRUE(f.finite);
      for (const NamedTensor& p : parameters)
        EXPECT_LT(largest_gap(p.tensor.grad(), expected.at(p.name)), 1e-6) << c.name << " " << p.name;
    }
  }
}

// With recomputed activations, the gradients of every kind of layer are bit-identical.
TEST(Gradient, IsTheSameWithRecomputedActivations) {
  const auto rows = toy_rows(9, 4);
  const std::vector<Batch> batches = {make_batch(rows, {0, 1, 2, 3}), make_batch(rows, {4, 5, 6, 7, 8})};
  const auto target = std::make_shared<model::Decoder>(toy_decoder(3, 1));
  model::DecoderConfig plain = toy_config(4), windowed = plain, experts = plain;
  windowed.layers[1].window = 5, windowed.layers[2].rope = model::LayerRope::kNone;
  windowed.layers[3].qk_norm = model::QkNorm::kHead;
  experts.model_type = "mixtral", experts.num_experts = 4, experts.experts_per_token = 2,
  experts.expert_intermediate_size = 12;
  experts.layers[2].experts = true;
  for (const model::DecoderConfig& config : {plain, windowed, experts}) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      model::Decoder draft = model::random_decoder(config, 6, at::kCPU, dtype);
      const std::vector<NamedTensor> parameters = TrainedDraft(draft).trainable();
      ModelTeacher teacher(target, rows, 0);
      GradientSource source{&draft, &teacher, {parse_loss("lk_hybrid+0.3*ce"), 3.0, 1.2, 0.3}, {}};
      GradientSums sums(parameters);
      const GradientFigures kept = compute_gradients(source, batches, sums);
      std::vector<at::Tensor> expected;
      for (const NamedTensor& p : parameters) expected.push_back(p.tensor.grad().clone());
      source.recompute = true;
      const GradientFigures again = compute_gradients(source, batches, sums);
      EXPECT_EQ(again.loss, kept.loss);
      for (size_t i = 0; i < parameters.size(); ++i)
        EXPECT_TRUE(at::equal(parameters[i].tensor.grad(), expected[i])) << parameters[i].name << " " << dtype;
    }
  }
}

TEST(Gradient, OfBf16ParametersIsSummedInFp32) {
  const auto rows = toy_rows(8, 4);
  const auto target = std::make_shared<model::Decoder>(toy_decoder(3, 1));
  model::Decoder draft = model::random_decoder(toy_config(2), 6, at::kCPU, at::kBFloat16);
  const std::vector<NamedTensor> parameters = TrainedDraft(draft).trainable();
  ModelTeacher teacher(target, rows, 0);
  GradientSums sums(parameters);
  compute_gradients({&draft, &teacher, {}, {}}, {make_batch(rows, {0, 1}), make_batch(rows, {2, 3})}, sums);
  bool finer = false;
  for (const NamedTensor& p : parameters) {
    ASSERT_EQ(p.tensor.grad().scalar_type(), at::kFloat) << p.name;
    finer = finer || !at::equal(p.tensor.grad().to(at::kBFloat16).to(at::kFloat), p.tensor.grad());
  }
  EXPECT_TRUE(finer) << "sums have digits that bf16 does not";
}

TEST(Gradient, ANonFiniteLossIsReported) {
  const auto rows = toy_rows(4, 4);
  const auto target = std::make_shared<model::Decoder>(toy_decoder(3, 1));
  model::Decoder draft = model::random_decoder(toy_config(2), 6, at::kCPU, at::kFloat);
  const std::vector<NamedTensor> parameters = TrainedDraft(draft).trainable();
  {
    at::NoGradGuard guard;
    draft.weights.norm[0] = std::numeric_limits<float>::infinity();
  }
  ModelTeacher teacher(target, rows, 0);
  GradientSums sums(parameters);
  EXPECT_FALSE(compute_gradients({&draft, &teacher, {}, {}}, {make_batch(rows, {0, 1})}, sums).finite);
}

TEST(GradientSums, KnowTheirParameters) {
  const at::Tensor a = at::ones({2}).requires_grad_(true), b = at::ones({2});
  GradientSums sums({{"a", a}});
  expect_error(ErrorKind::kInternal, {"not a parameter"}, [&] { sums.of(b); });
  sums.clear();
  sums.publish();
  EXPECT_FALSE(a.grad().defined()) << "nothing was added";
}

}  // namespace
}  // namespace specdec::distill
