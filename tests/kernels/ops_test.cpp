// Compares every variant of every operation with the reference, over dtypes and awkward sizes.
#include "engine/kernels/ops.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <functional>
#include <vector>

#include "engine/kernels/variants.h"

namespace specdec::kernels {
namespace {

at::Tensor random(at::IntArrayRef shape, at::ScalarType dtype, uint64_t seed = 1) {
  at::manual_seed(seed + 17 * static_cast<uint64_t>(shape.size()));
  return at::randn(shape, at::kFloat).to(dtype);
}
double tolerance(at::ScalarType dtype) { return dtype == at::kFloat ? 1e-5 : 4e-2; }
void expect_close(const at::Tensor& found, const at::Tensor& expected) {
  ASSERT_EQ(found.sizes(), expected.sizes());
  ASSERT_EQ(found.scalar_type(), expected.scalar_type());
  const double scale = std::max(1.0, expected.abs().max().item<double>());
  EXPECT_LT((found.to(at::kDouble) - expected.to(at::kDouble)).abs().max().item<double>(),
            tolerance(expected.scalar_type()) * scale);
}

class Ops : public ::testing::TestWithParam<at::ScalarType> {
 protected:
  at::ScalarType dtype = GetParam();
};

TEST_P(Ops, RmsNorm) {
  for (const int64_t n : {3, 8, 44, 160}) {
    const at::Tensor x = random({5, n}, dtype), w = random({n}, dtype);
    expect_close(rms_norm(x, w, 1e-5), ref::rms_norm(x, w, 1e-5, {}));
    const NormOptions gemma{1e-5, 1.0, true};
    expect_close(rms_norm(x, w, gemma), ref::rms_norm(x, w, gemma, {}));
  }
}

TEST_P(Ops, Linear) {
  for (const int64_t k : {3, 8, 44, 160}) {
    for (const int64_t rows : {1, 2, 3, 5, 8, 17}) {
      const at::Tensor x = random({rows, k}, dtype), w = random({13, k}, dtype), b = random({13}, dtype);
      expect_close(kernels::linear(x, w), ref::linear(x, w, {}, {}));
      expect_close(kernels::linear(x, w, b), ref::linear(x, w, b, {}));
    }
  }
}

TEST_P(Ops, Rope) {
  const at::Tensor angles = random({7, 6}, at::kFloat), x = random({2, 7, 3, 12}, dtype);
  expect_close(rope(x, angles.cos(), angles.sin()), ref::rope(x, angles.cos(), angles.sin(), {}));
  const at::Tensor wider = random({2, 7, 3, 20}, dtype), part = rope(wider, angles.cos(), angles.sin());
  expect_close(part, ref::rope(wider, angles.cos(), angles.sin(), {}));
  EXPECT_TRUE(at::equal(part.narrow(-1, 12, 8), wider.narrow(-1, 12, 8)));
}

// Compares the result of `f` and the gradients of its inputs with those of `reference`, which is computed in fp32.
void expect_gradients(const std::vector<at::Tensor>& inputs,
                      const std::function<at::Tensor(const std::vector<at::Tensor>&)>& f,
                      const std::function<at::Tensor(const std::vector<at::Tensor>&)>& reference) {
  std::vector<at::Tensor> leaves, wide;
  for (const at::Tensor& x : inputs) {
    leaves.push_back(x.clone().requires_grad_(true));
    wide.push_back(x.to(at::kFloat).clone().requires_grad_(true));
  }
  const at::Tensor found = f(leaves), expected = reference(wide),
                   upstream = random(found.sizes(), found.scalar_type(), 9);
  expect_close(found.detach(), expected.detach().to(found.scalar_type()));
  found.backward(upstream);
  expected.backward(upstream.to(at::kFloat));
  for (size_t i = 0; i < inputs.size(); ++i) expect_close(leaves[i].grad(), wide[i].grad().to(inputs[i].scalar_type()));
}

TEST_P(Ops, GradientsOfNormRopeAndGate) {
  for (const int64_t n : {3, 8, 44, 160})
    for (const int64_t rows : {1, 5, 150}) {
      for (const NormOptions& options : {NormOptions{1e-5}, NormOptions{1e-2, 1.0, true}})
        expect_gradients(
            {random({2, rows, n}, dtype), random({n}, dtype)},
            [&](const auto& in) { return rms_norm(in[0], in[1], options); },
            [&](const auto& in) { return ref::rms_norm(in[0], in[1], options, {}); });
      expect_gradients(
          {random({rows, n}, dtype) * 8, random({rows, n}, dtype, 2)},
          [](const auto& in) { return silu_mul(in[0], in[1]); },
          [](const auto& in) { return ref::silu_mul(in[0], in[1], {}); });
    }
  const at::Tensor angles = random({7, 6}, at::kFloat), c = angles.cos(), s = angles.sin();
  for (const int64_t d : {12, 20})
    expect_gradients(
        {random({2, 7, 3, d}, dtype)}, [&](const auto& in) { return rope(in[0], c, s); },
        [&](const auto& in) { return ref::rope(in[0], c, s, {}); });
  // The rows of this input are not contiguous in memory.
  expect_gradients(
      {random({3, 7, 2, 12}, dtype)},
      [&](const auto& in) { return rope(in[0].transpose(1, 2).contiguous().transpose(1, 2), c, s); },
      [&](const auto& in) { return ref::rope(in[0], c, s, {}); });
}

TEST_P(Ops, SiluMul) {
  const at::Tensor gate = random({3, 45}, dtype) * 8, up = random({3, 45}, dtype, 2);
  expect_close(silu_mul(gate, up), ref::silu_mul(gate, up, {}));
  expect_close(gelu_tanh_mul(gate, up), ref::gelu_tanh_mul(gate, up, {}));
}

TEST_P(Ops, Attention) {
  for (const int64_t d : {6, 8, 20, 32, 64}) {
    for (const int64_t groups : {1, 2, 4}) {
      const at::Tensor q = random({2, 3, 4, d}, dtype), k = random({2, groups, 21, d}, dtype),
                       v = random({2, groups, 21, d}, dtype, 3);
      expect_close(attention(q, k, v), ref::attention(q, k, v, {}, {}, {}));
      at::Tensor allowed = at::rand({2, 3, 21}) > 0.5;
      allowed.select(2, 0).fill_(true);
      expect_close(attention(q, k, v, allowed), ref::attention(q, k, v, allowed, {}, {}));
      for (const AttentionOptions& options :
           {AttentionOptions{.window = 5}, AttentionOptions{.scale = 0.3, .soft_cap = 2},
            AttentionOptions{.soft_cap = 2, .window = 3}}) {
        expect_close(attention(q, k, v, {}, options), ref::attention(q, k, v, {}, options, {}));
        expect_close(attention(q, k, v, allowed, options), ref::attention(q, k, v, allowed, options, {}));
      }
    }
  }
}

TEST_P(Ops, WriteIntoGivenOutput) {
  const at::Tensor x = random({4, 24}, dtype), w = random({24}, dtype), out = at::zeros({4, 24}, dtype);
  const at::Tensor result = rms_norm(x, w, 1e-5, out);
  EXPECT_TRUE(result.is_same(out));
  expect_close(out, ref::rms_norm(x, w, 1e-5, {}));
  const at::Tensor sum = at::zeros({4, 24}, dtype);
  EXPECT_TRUE(add(x, x, sum).is_same(sum));
  expect_close(sum, x + x);
}

INSTANTIATE_TEST_SUITE_P(Dtypes, Ops, testing::Values(at::kFloat, at::kBFloat16, at::kHalf),
                         [](const auto& info) { return std::string(c10::toString(info.param)); });

// Diagonal attention is one softmax over the causal keys and the keys of each query's own position. The reference is
// compared with attention over all keys under a mask, and the kernel with the reference; both with gradients.
TEST(DiagonalAttention, ValuesAndGradients) {
  const auto leaf = [](const at::Tensor& x) { return x.clone().requires_grad_(true); };
  for (const int64_t length : {1, 5, 40}) {
    for (const int64_t groups : {1, 2, 4}) {
      for (const int64_t steps : {0, 1, 3}) {
        const int64_t d = 12;
        const at::Tensor q = random({2, length, 4, d}, at::kFloat), up = random({2, length, 4, d}, at::kFloat, 4);
        std::vector<at::Tensor> sources;
        for (int64_t i = 0; i < 2 * (steps + 1); ++i)
          sources.push_back(3 * random({2, length, groups, d}, at::kFloat, static_cast<uint64_t>(10 + i)));
        std::vector<std::vector<at::Tensor>> results;
        for (int variant = 0; variant < 3; ++variant) {
          std::vector<at::Tensor> leaves = {leaf(q)};
          for (const at::Tensor& x : sources) leaves.push_back(leaf(x));
          const KeysValues causal{leaves[1].transpose(1, 2), leaves[2].transpose(1, 2)};
          std::vector<KeysValues> own;
          for (size_t i = 3; i < leaves.size(); i += 2) own.push_back({leaves[i], leaves[i + 1]});
          at::Tensor out;
          if (variant == 2) {
            at::Tensor allowed = at::ones({length, length}, at::kBool).tril();
            std::vector<at::Tensor> k = {causal.k}, v = {causal.v}, masks = {allowed};
            for (const KeysValues& pair : own) {
              k.push_back(pair.k.transpose(1, 2)), v.push_back(pair.v.transpose(1, 2));
              masks.push_back(at::eye(length, at::kBool));
            }
            out = ref::attention(leaves[0], at::cat(k, 2), at::cat(v, 2), at::cat(masks, 1).unsqueeze(0), {}, {});
          } else {
            out = variant == 0 ? diagonal_attention(leaves[0], causal, own)
                               : ref::diagonal_attention(leaves[0], causal, own, 0);
          }
          (out * up).sum().backward();
          std::vector<at::Tensor>& found = results.emplace_back(1, out.detach());
          for (const at::Tensor& x : leaves) found.push_back(x.grad());
        }
        for (size_t i = 0; i < results[2].size(); ++i) {
          expect_close(results[0][i], results[2][i]);
          expect_close(results[1][i], results[2][i]);
        }
      }
    }
  }
}

// The kernel computes heads in bf16 with fp32 arithmetic, so results and gradients are close to the fp32 reference.
TEST(SequenceAttention, ShortHeadsInBf16) {
  for (const int64_t d : {8, 64}) {
    const at::Tensor q = random({2, 40, 4, d}, at::kBFloat16), k = random({2, 2, 40, d}, at::kBFloat16, 2),
                     v = random({2, 2, 40, d}, at::kBFloat16, 3);
    expect_gradients(
        {q, k, v}, [](const auto& in) { return attention(in[0], in[1], in[2]); },
        [](const auto& in) { return ref::attention(in[0], in[1], in[2], {}, {}, {}); });
  }
}

// Attention over whole sequences has its own kernel. Its values and gradients are compared with ATen's, with keys in
// the layout of training (transposed) and contiguous. One thread and two threads must give the same bits.
TEST(SequenceAttention, ValuesAndGradients) {
  for (const int64_t length : {17, 40, 131}) {
    for (const int64_t d : {6, 8, 24, 64}) {
      for (const int64_t groups : {1, 2, 4}) {
        for (const bool transposed : {true, false}) {
          const auto leaf = [](const at::Tensor& x) { return x.clone().requires_grad_(true); };
          const at::Tensor q = random({3, length, 4, d}, at::kFloat), k = random({3, length, groups, d}, at::kFloat, 2),
                           v = random({3, length, groups, d}, at::kFloat, 3),
                           up = random({3, length, 4, d}, at::kFloat, 4);
          const auto heads_first = [&](const at::Tensor& x) {
            const at::Tensor t = x.transpose(1, 2);
            return transposed ? t : t.contiguous();
          };
          std::vector<at::Tensor> found, expected;
          for (auto* results : {&found, &expected}) {
            const at::Tensor ql = leaf(q), kl = leaf(k), vl = leaf(v);
            const at::Tensor out = results == &found ? attention(ql, heads_first(kl), heads_first(vl))
                                                     : ref::attention(ql, heads_first(kl), heads_first(vl), {}, {}, {});
            (out * up).sum().backward();
            *results = {out.detach(), ql.grad(), kl.grad(), vl.grad()};
          }
          for (size_t i = 0; i < found.size(); ++i) expect_close(found[i], expected[i]);
          const int threads = at::get_num_threads();
          at::set_num_threads(threads == 1 ? 2 : 1);
          const at::Tensor ql = leaf(q), kl = leaf(k), vl = leaf(v),
                           out = attention(ql, heads_first(kl), heads_first(vl));
          (out * up).sum().backward();
          at::set_num_threads(threads);
          EXPECT_TRUE(out.equal(found[0]) && ql.grad().equal(found[1]) && kl.grad().equal(found[2]) &&
                      vl.grad().equal(found[3]));
        }
      }
    }
  }
}

// Checks the reference itself against formulas that are written out here.
TEST(Reference, MatchesTheFormulas) {
  const at::Tensor x = random({2, 6}, at::kFloat), w = random({6}, at::kFloat), d = x.to(at::kDouble);
  expect_close(ref::rms_norm(x, w, 0.1, {}), (d / (d.pow(2).mean(-1, true) + 0.1).sqrt() * w).to(at::kFloat));
  expect_close(ref::silu_mul(x, x, {}), (d / (1 + (-d).exp()) * d).to(at::kFloat));
  const at::Tensor angle = at::tensor({0.3, 1.1, 2.0}),
                   turned = ref::rope(x.view({2, 1, 6}), angle.cos().expand({2, 3}), angle.sin().expand({2, 3}), {});
  for (int64_t i = 0; i < 3; ++i) {
    EXPECT_NEAR(turned[1][0][i].item<double>(),
                (x[1][i] * angle[i].cos() - x[1][i + 3] * angle[i].sin()).item<double>(), 1e-5);
    EXPECT_NEAR(turned[1][0][i + 3].item<double>(),
                (x[1][i + 3] * angle[i].cos() + x[1][i] * angle[i].sin()).item<double>(), 1e-5);
  }
  const at::Tensor q = random({1, 2, 2, 4}, at::kFloat), k = random({1, 1, 3, 4}, at::kFloat),
                   v = random({1, 1, 3, 4}, at::kFloat, 5);
  const at::Tensor out = ref::attention(q, k, v, {}, {}, {});
  for (int64_t s = 0; s < 2; ++s) {
    for (int64_t h = 0; h < 2; ++h) {
      const at::Tensor seen = k[0][0].narrow(0, 0, 2 + s), p = (seen.mv(q[0][s][h]) / 2).softmax(0);
      EXPECT_LT((out[0][s][h] - p.matmul(v[0][0].narrow(0, 0, 2 + s))).abs().max().item<double>(), 1e-5);
    }
  }
}

// A window keeps the last keys that a query may see, not counting masked keys in between.
TEST(Reference, WindowKeepsTheLastVisibleKeys) {
  const at::Tensor q = random({1, 3, 2, 4}, at::kFloat), k = random({1, 1, 7, 4}, at::kFloat),
                   v = random({1, 1, 7, 4}, at::kFloat, 5);
  const at::Tensor kept = at::zeros({1, 3, 7}, at::kBool), allowed = at::zeros({1, 3, 7}, at::kBool);
  for (int64_t s = 0; s < 3; ++s) {
    for (int64_t key = 3 + s; key <= 4 + s; ++key) kept[0][s][key] = true;
  }
  expect_close(ref::attention(q, k, v, {}, {.window = 2}, {}), ref::attention(q, k, v, kept, {}, {}));
  const int64_t seen[] = {0, 1, 4, 6};
  kept.fill_(false);
  for (int64_t s = 0; s < 3; ++s) {
    for (const int64_t key : seen) allowed[0][s][key] = true;
    for (const int64_t key : {1, 4, 6}) kept[0][s][key] = true;
  }
  expect_close(ref::attention(q, k, v, allowed, {.window = 3}, {}), ref::attention(q, k, v, kept, {}, {}));
  // A soft cap takes another code path, so a cap too large to have an effect must give the result without a cap.
  expect_close(ref::attention(q, k, v, allowed, {.soft_cap = 1e4, .window = 3}, {}),
               ref::attention(q, k, v, kept, {}, {}));
}

TEST(Dispatch, GradientsFlowThroughTheReference) {
  const at::Tensor x = random({2, 8}, at::kFloat).requires_grad_(), w = random({8}, at::kFloat);
  rms_norm(x, w, 1e-5).sum().backward();
  EXPECT_TRUE(x.grad().defined());
}

TEST(Dispatch, ReferenceCanBeForced) {
  const at::Tensor x = random({3, 333}, at::kFloat), w = random({9, 333}, at::kFloat);
  force_reference(true);
  const at::Tensor forced = kernels::linear(x, w);
  force_reference(false);
  EXPECT_TRUE(at::equal(forced, at::linear(x, w)));
  EXPECT_FALSE(reference_forced());
}

}  // namespace
}  // namespace specdec::kernels
