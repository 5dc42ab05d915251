#include "distill/teacher/branches.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <set>

#include "distill/gradient/gradient.h"
#include "distill/gradient/optimizer.h"
#include "distill/gradient/trained_draft.h"
#include "distill/loss/losses.h"
#include "distill/teacher/teacher.h"
#include "engine/forward/forward.h"
#include "engine/weights/draft_vocab.h"
#include "tests/distill/toy.h"

namespace specdec::distill {
namespace {

using namespace specdec::testing;

// Returns the expected number of accepted tokens per speculative step, given the acceptance at each draft position.
double accepted(const std::vector<double>& acceptance) {
  double sum = 0, reached = 1;
  for (const double a : acceptance) sum += reached *= a;
  return sum;
}

TEST(DepthWeights, AreTheSlopesOfTheAcceptedLength) {
  const std::vector<double> a = {0.8, 0.6, 0.5, 0.7};
  const std::vector<double> weights = depth_weights(a);
  std::vector<double> slopes(a.size());
  double sum = 0;
  for (size_t j = 0; j < a.size(); ++j) {
    std::vector<double> up = a, down = a;
    up[j] += 1e-6, down[j] -= 1e-6;
    slopes[j] = (accepted(up) - accepted(down)) / 2e-6;
    sum += slopes[j];
  }
  for (size_t j = 0; j < a.size(); ++j) EXPECT_NEAR(weights[j], slopes[j] / sum, 1e-9) << j;
  EXPECT_EQ(depth_weights({0, 0, 0}), (std::vector<double>{1, 0, 0})) << "nothing is reached behind a refused token";
  for (const double w : depth_weights({1, 1})) EXPECT_GT(w, 0);
}

model::Decoder small_draft(const std::vector<int32_t>& kept = {}) {
  model::DecoderConfig config = toy_config(2);
  config.draft_vocab = kept;
  model::Decoder draft = model::random_decoder(config, 6, at::kCPU, at::kFloat);
  at::NoGradGuard guard;
  draft.weights.visit(config, [](const std::string&, at::Tensor& t) {
    if (t.dim() == 2) t.mul_(6);
  });
  return draft;
}

// A branch (tokens that the draft generated after an anchor position) as a separate row: the text up to the anchor,
// then the tokens of the branch. Only the last position is in the loss.
struct OwnRow {
  std::vector<int64_t> tokens;
  int64_t depth = 0;
  at::Tensor ids() const { return at::tensor(tokens, at::kLong).unsqueeze(0); }
};
// Returns one OwnRow for each position of the branches (the draft's roll-outs) that is in the loss, in the order of
// Branches::rows.
std::vector<OwnRow> own_rows(const Batch& batch, const Branches& branches, int64_t length) {
  const int64_t all = branches.tokens.size(1), width = all / (length - 1);
  const auto tokens = branches.tokens.accessor<int64_t, 2>(), places = branches.positions.accessor<int64_t, 2>();
  const auto text = batch.tokens.accessor<int64_t, 2>();
  std::vector<OwnRow> out;
  for (int64_t depth = 2; depth <= length; ++depth) {
    const at::Tensor& rows = branches.rows[static_cast<size_t>(depth - 2)];
    for (int64_t i = 0; i < rows.numel(); ++i) {
      const int64_t b = rows[i].item<int64_t>() / all, a = rows[i].item<int64_t>() % width;
      EXPECT_EQ(rows[i].item<int64_t>() % all / width, depth - 2);
      OwnRow row{{}, depth};
      for (int64_t t = 0; t < places[b][a]; ++t) row.tokens.push_back(text[b][t]);
      for (int64_t j = 0; j + 1 < depth; ++j) {
        EXPECT_EQ(places[b][j * width + a], static_cast<int64_t>(row.tokens.size()));
        row.tokens.push_back(tokens[b][j * width + a]);
      }
      out.push_back(std::move(row));
    }
  }
  return out;
}

struct BranchCase {
  std::vector<TokenRow> rows = toy_rows(9, 4);
  std::shared_ptr<model::Decoder> target = std::make_shared<model::Decoder>(toy_decoder(3, 1));
  std::vector<Batch> batches = {make_batch(rows, {0, 1, 2, 3}), make_batch(rows, {4, 5, 6, 7, 8})};
  OnPolicyOptions options{.length = 4, .share = 0.4, .seed = 3};
  double temperature = 1.2;

  DraftedBranches drafted(const model::Decoder& draft, const Batch& batch, int64_t step = 0) const {
    const at::NoGradGuard guard;
    model::TrainPass pass(draft, {.tokens = batch.tokens});
    const at::Tensor temperatures = at::full({batch.tokens.size(0)}, temperature);
    return draft_branches(options, {rows, batch, step, temperatures}, draft, pass);
  }
};

// A branch (a roll-out of the draft) gives the same logits whether it is packed into one pass with its text and other
// branches, or run as a separate text. This holds for target and draft.
TEST(Branches, AreReadAsTextsOfTheirOwn) {
  const BranchCase c;
  const model::Decoder draft = small_draft();
  for (const Batch& batch : c.batches) {
    const DraftedBranches drafted = c.drafted(draft, batch);
    const std::vector<OwnRow> own = own_rows(batch, drafted.branches, c.options.length);
    ASSERT_GT(own.size(), 10u);
    Batch branched = batch;
    branched.branches = &drafted.branches;
    const int64_t learnt = batch.rows.numel(), count = static_cast<int64_t>(own.size());
    const at::Tensor answers = row_logits(*c.target, branched)(0, learnt + count),
                     texts = row_logits(*c.target, batch)(0, learnt), said = at::cat(drafted.hidden);
    EXPECT_LT((answers.slice(0, 0, learnt) - texts).abs().max().item<double>(), 1e-4);
    for (int64_t i = 0; i < count; ++i) {
      const at::Tensor ids = own[static_cast<size_t>(i)].ids();
      EXPECT_LT((answers[learnt + i] - model::forward(*c.target, {.tokens = ids})[0][-1]).abs().max().item<double>(),
                1e-4);
      EXPECT_LT((said[i] - model::last_hidden(draft, {.tokens = ids})[0][-1]).abs().max().item<double>(), 1e-4);
    }
  }
}

TEST(Branches, AreDrawnByTheDraftsDistribution) {
  BranchCase c;
  c.options.share = 1, c.options.length = 2;
  const std::vector<int32_t> kept = {0, 3, 4, 9, 11, 17, 20};
  const model::Decoder draft = small_draft(kept);
  const Batch& batch = c.batches[0];
  const at::Tensor q = at::softmax(model::forward(draft, {.tokens = batch.tokens}) / c.temperature, -1);
  at::Tensor expected = at::zeros({24}), variance = at::zeros({24}), seen = at::zeros({24});
  for (int64_t step = 0; step < 400; ++step) {
    const Branches branches = c.drafted(draft, batch, step).branches;
    const at::Tensor ids = model::draft_vocab_index(kept, at::kCPU);
    for (size_t b = 0; b < 4; ++b) {
      const int64_t anchors = anchor_count(c.rows[batch.row_index[b]], c.options, draft.config.max_position);
      for (int64_t a = 0; a < anchors; ++a) {
        const auto row = static_cast<int64_t>(b);
        const at::Tensor p = q[row][branches.positions[row][a].item<int64_t>() - 1];
        expected.index_add_(0, ids, p);
        variance.index_add_(0, ids, p * (1 - p));
        seen[branches.tokens[row][a].item<int64_t>()] += 1;
      }
    }
  }
  for (int64_t v = 0; v < 24; ++v)
    EXPECT_NEAR(seen[v].item<double>(), expected[v].item<double>(), 4.5 * std::sqrt(variance[v].item<double>()) + 1e-6)
        << v;
}

// The branches (the draft's roll-outs) of a row do not depend on the other rows of its batch, and differ between
// training steps.
TEST(Branches, DependOnSeedStepAndRow) {
  const BranchCase c;
  const model::Decoder draft = small_draft();
  const auto of_row_2 = [&](const std::vector<size_t>& index, int64_t step) {
    const Batch batch = make_batch(c.rows, index);
    const Branches branches = c.drafted(draft, batch, step).branches;
    std::vector<std::vector<int64_t>> out;
    for (const OwnRow& row : own_rows(batch, branches, c.options.length))
      if (std::equal(c.rows[2].tokens.begin(), c.rows[2].tokens.begin() + 2, row.tokens.begin()))
        out.push_back(row.tokens);
    return out;
  };
  EXPECT_GT(of_row_2({2}, 7).size(), 3u);
  EXPECT_EQ(of_row_2({5, 2, 6}, 7), of_row_2({2}, 7));
  EXPECT_NE(of_row_2({2}, 7), of_row_2({2}, 8));
}

// Tokens after an EOS token are not in the loss, and branches (the draft's roll-outs) do not exceed the context of the
// model.
TEST(Branches, EndWhereTheTextEnds) {
  BranchCase c;
  c.options.share = 1;
  model::Decoder draft = small_draft();
  draft.config.eos_ids = {2, 5, 7, 9, 11, 13};
  const std::set<int64_t> eos(draft.config.eos_ids.begin(), draft.config.eos_ids.end());
  size_t ended = 0;
  for (const Batch& batch : c.batches) {
    const Branches branches = c.drafted(draft, batch).branches;
    for (const OwnRow& row : own_rows(batch, branches, c.options.length))
      for (int64_t i = 0; i + 1 < row.depth; ++i)
        EXPECT_FALSE(
            eos.contains(row.tokens[row.tokens.size() - static_cast<size_t>(row.depth) + 1 + static_cast<size_t>(i)]));
    ended += branches.rows[0].numel() > branches.rows[2].numel();
  }
  EXPECT_GT(ended, 0u);
  draft.config.max_position = 9;
  for (const TokenRow& row : c.rows) {
    EXPECT_EQ(anchor_count(row, c.options, 9), std::min<int64_t>(5, static_cast<int64_t>(row.tokens.size()) - 2))
        << "anchors are the positions 1 to 5";
    EXPECT_EQ(anchor_count(row, c.options, 3), 0);
  }
}

// Loss and gradients of a reference implementation: autograd over each branch (roll-out of the draft) as a separate
// row.
struct AutogradFigures {
  double loss = 0;
  std::map<std::string, at::Tensor> gradients;
};
AutogradFigures autograd_of_branches(const BranchCase& c, const model::Decoder& draft, const GradientSource& source,
                                     const std::vector<NamedTensor>& parameters) {
  std::vector<double> acceptance = {*source.loss.acceptance};
  acceptance.insert(acceptance.end(), source.deeper.begin(), source.deeper.end());
  double learnt = 0, anchors = 0, scale = 0;
  std::vector<double> slopes;
  for (size_t j = 0; j < acceptance.size(); ++j) {
    slopes.push_back(0);
    for (size_t m = j; m < acceptance.size(); ++m) {
      double product = 1;
      for (size_t i = 0; i <= m; ++i) product *= i == j ? 1 : acceptance[i];
      slopes[j] += product;
    }
    scale += slopes[j];
  }
  for (const Batch& batch : c.batches) {
    learnt += static_cast<double>(batch.rows.numel());
    for (const size_t row : batch.row_index)
      anchors += std::ceil(c.options.share * static_cast<double>(learnt_positions(c.rows[row])));
  }
  at::Tensor loss = at::zeros({}, at::kDouble);
  const auto add = [&](const at::Tensor& logits, const at::Tensor& answers, size_t depth, double rows) {
    const at::Tensor log_q = at::log_softmax(logits / c.temperature, -1),
                     log_p = at::log_softmax(answers / c.temperature, -1);
    const double lambda = std::exp(-source.loss.eta * acceptance[depth]);
    const at::Tensor kl = (log_p.exp() * (log_p - log_q)).sum(), tv = 0.5 * (log_p.exp() - log_q.exp()).abs().sum();
    loss = loss + (slopes[depth] / scale / rows) * (lambda * kl + (1 - lambda) * tv);
  };
  for (const Batch& batch : c.batches) {
    const at::Tensor said = model::forward(draft, {.tokens = batch.tokens}).flatten(0, 1).index_select(0, batch.rows),
                     answers =
                         model::forward(*c.target, {.tokens = batch.tokens}).flatten(0, 1).index_select(0, batch.rows);
    for (int64_t i = 0; i < said.size(0); ++i) add(said[i], answers[i].detach(), 0, learnt);
    for (const OwnRow& row : own_rows(batch, c.drafted(draft, batch, source.step).branches, c.options.length)) {
      const model::TrainBatch text{.tokens = row.ids()};
      add(model::forward(draft, text)[0][-1], model::forward(*c.target, text)[0][-1].detach(),
          static_cast<size_t>(row.depth - 1), anchors);
    }
  }
  for (const NamedTensor& p : parameters) p.tensor.mutable_grad() = at::Tensor();
  loss.backward();
  AutogradFigures out{loss.item<double>(), {}};
  for (const NamedTensor& p : parameters) {
    out.gradients[p.name] = p.tensor.grad().clone();
    p.tensor.mutable_grad() = at::Tensor();
  }
  return out;
}

TEST(OnPolicy, LossGradientsAndTenStepsAreThoseOfAutograd) {
  BranchCase c;
  model::Decoder draft = small_draft(), twin = small_draft();
  const std::vector<NamedTensor> ours = TrainedDraft(draft).trainable(), theirs = TrainedDraft(twin).trainable();
  ModelTeacher teacher(c.target, c.rows, 1 << 20);  // the cache has no logits of roll-outs
  GradientSums sums(ours);
  AdamW optimizer(ours, {}), plain(theirs, {});
  GradientSource source{&draft, &teacher, {parse_loss("lk_hybrid"), 3.0, c.temperature, 0.6}, {}};
  source.on_policy = c.options;
  source.rows = &c.rows;
  source.deeper = {0.5, 0.4, 0.7};
  for (source.step = 0; source.step < 10; ++source.step) {
    const GradientFigures f = compute_gradients(source, c.batches, sums);
    ASSERT_TRUE(f.finite);
    const AutogradFigures expected = autograd_of_branches(c, twin, source, theirs);
    EXPECT_NEAR(f.loss, expected.loss, 1e-5) << source.step;
    ASSERT_EQ(f.deeper.size(), 3u);
    for (size_t i = 0; i < ours.size(); ++i) {
      const at::Tensor& gradient = expected.gradients.at(theirs[i].name);
      EXPECT_LT((ours[i].tensor.grad() - gradient).abs().max().item<double>(), 1e-4) << ours[i].name;
      theirs[i].tensor.mutable_grad() = gradient;
    }
    optimizer.step(2e-3, optimizer.grad_norm());
    plain.step(2e-3, plain.grad_norm());
    for (size_t i = 0; i < ours.size(); ++i)
      EXPECT_LT((ours[i].tensor - theirs[i].tensor).detach().abs().max().item<double>(), 1e-4) << ours[i].name;
  }
}

// The acceptance reported for a depth (draft position) is the mean of Σ min(p, q) over the rows of that depth.
TEST(OnPolicy, ReportsTheAcceptanceByDepth) {
  BranchCase c;
  model::Decoder draft = small_draft();
  const std::vector<NamedTensor> parameters = TrainedDraft(draft).trainable();
  ModelTeacher teacher(c.target, c.rows, 0);
  GradientSums sums(parameters);
  GradientSource source{&draft, &teacher, {parse_loss("kl"), 3.0, c.temperature, 0.6}, {}};
  source.on_policy = c.options;
  source.rows = &c.rows;
  const GradientFigures f = compute_gradients(source, c.batches, sums);
  std::vector<double> overlap(4, 0), rows(4, 0);
  const at::NoGradGuard guard;
  for (const Batch& batch : c.batches) {
    for (const OwnRow& row : own_rows(batch, c.drafted(draft, batch).branches, c.options.length)) {
      const at::Tensor p = at::softmax(model::forward(*c.target, {.tokens = row.ids()})[0][-1] / 1.2, -1),
                       q = at::softmax(model::forward(draft, {.tokens = row.ids()})[0][-1] / 1.2, -1);
      overlap[static_cast<size_t>(row.depth - 1)] += at::minimum(p, q).sum().item<double>();
      rows[static_cast<size_t>(row.depth - 1)] += 1;
    }
  }
  for (size_t j = 1; j < 4; ++j) {
    EXPECT_EQ(f.deeper[j - 1].rows, rows[j]);
    EXPECT_NEAR(f.deeper[j - 1].acceptance, overlap[j], 1e-3) << j;
  }
}

}  // namespace
}  // namespace specdec::distill
