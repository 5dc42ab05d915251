#include "deploy/validate/acceptance.h"

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/philox.h"
#include "engine/forward/eagle_forward.h"
#include "engine/forward/forward.h"
#include "engine/weights/draft_vocab.h"

namespace specdec::deploy {
namespace {

model::DecoderConfig config(int64_t vocab, int64_t max_position) {
  model::DecoderConfig c;
  c.model_type = "llama";
  c.vocab_size = vocab;
  c.hidden_size = 16;
  c.intermediate_size = 24;
  c.num_layers = 1;
  c.num_heads = 4;
  c.num_kv_heads = 2;
  c.head_dim = 4;
  c.max_position = max_position;
  c.layers.resize(1);
  return c;
}
// Makes a random decoder. Its weights are scaled up, because Normal(0, 0.02) weights give nearly flat distributions.
model::Decoder decoder(uint64_t seed, int64_t vocab = 50, int64_t max_position = 128) {
  model::Decoder d = model::random_decoder(config(vocab, max_position), seed, at::kCPU, at::kFloat);
  d.weights.visit(d.config, [](const std::string& name, at::Tensor& t) {
    if (t.dim() == 2)
      t.mul_(name.find("embed") != std::string::npos || name.find("lm_head") != std::string::npos ? 40 : 15);
  });
  return d;
}

TokenRow random_row(uint64_t seed, int64_t length, int64_t vocab = 50) {
  TokenRow r;
  r.id = "row-" + std::to_string(seed);
  PhiloxStream random(seed, 1);
  for (int64_t i = 0; i < length; ++i) {
    r.tokens.push_back(static_cast<int32_t>(random.below(static_cast<uint64_t>(vocab))));
    r.loss_mask.push_back(random.uniform() < 0.6);
  }
  r.prompt_tokens = 1;
  return r;
}

// Computes the distribution from which serving samples, by its definition in plain loops and doubles: softmax(logits /
// T), then top-k, top-p and min-p, with renormalisation after each.
std::vector<double> served(const float* logits, int64_t vocab, const SamplingOptions& o) {
  std::vector<double> p(static_cast<size_t>(vocab));
  double total = 0;
  for (int64_t i = 0; i < vocab; ++i)
    total += p[static_cast<size_t>(i)] = std::exp(static_cast<double>(logits[i]) / o.temperature);
  std::vector<size_t> order(p.size());
  for (size_t i = 0; i < p.size(); ++i) {
    p[i] /= total;
    order[i] = i;
  }
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return p[a] > p[b]; });
  const auto keep = [&](size_t n) {
    double kept = 0;
    for (size_t i = 0; i < order.size(); ++i) i < n ? kept += p[order[i]] : p[order[i]] = 0;
    for (double& x : p) x /= kept;
  };
  if (o.top_k > 0) keep(static_cast<size_t>(o.top_k));
  if (o.top_p < 1) {
    size_t n = 0;
    for (double mass = 0; mass < o.top_p && n < order.size(); ++n) mass += p[order[n]];
    keep(n);
  }
  if (o.min_p > 0) {
    size_t n = 0;
    while (n < order.size() && p[order[n]] >= o.min_p * p[order[0]]) ++n;
    keep(n);
  }
  return p;
}

RowScore brute_force(const model::Decoder& target, const model::Decoder& draft, const TokenRow& row,
                     const SamplingOptions& o) {
  const int64_t n = std::min<int64_t>(
      {static_cast<int64_t>(row.tokens.size()), target.config.max_position, draft.config.max_position});
  const std::vector<int64_t> ids(row.tokens.begin(), row.tokens.begin() + n);
  const at::Tensor tokens = at::tensor(ids, at::kLong).unsqueeze(0);
  const at::Tensor p = model::forward(target, model::TrainBatch{tokens, {}, {}})[0].to(at::kFloat).contiguous();
  const at::Tensor q = model::forward(draft, model::TrainBatch{tokens, {}, {}})[0].to(at::kFloat).contiguous();
  const int64_t vocab = target.config.vocab_size;
  RowScore s;
  for (int64_t t = 1; t < n; ++t) {
    if (!row.loss_mask[static_cast<size_t>(t)]) continue;
    const float *a = p.data_ptr<float>() + (t - 1) * vocab, *b = q.data_ptr<float>() + (t - 1) * vocab;
    const bool agree = std::max_element(a, a + vocab) - a == std::max_element(b, b + vocab) - b;
    ++s.tokens;
    s.agreement += agree;
    if (o.greedy()) {
      s.alpha += agree;
      continue;
    }
    const auto x = served(a, vocab, o), y = served(b, vocab, o);
    for (size_t i = 0; i < x.size(); ++i) {
      s.alpha += std::min(x[i], y[i]);
      if (x[i] > 0) s.entropy -= x[i] * std::log(x[i]);
    }
  }
  if (s.tokens) {
    s.alpha /= static_cast<double>(s.tokens);
    s.agreement /= static_cast<double>(s.tokens);
    s.entropy /= static_cast<double>(s.tokens);
  }
  return s;
}

void expect_same(const RowScore& found, const RowScore& expected, double tolerance = 2e-5) {
  EXPECT_EQ(found.tokens, expected.tokens);
  EXPECT_NEAR(found.alpha, expected.alpha, tolerance);
  EXPECT_NEAR(found.agreement, expected.agreement, 1e-12);
  EXPECT_NEAR(found.entropy, expected.entropy, 10 * tolerance);
}

TEST(Acceptance, EqualsBruteForceUnderEverySampling) {
  const auto target = decoder(1), draft = decoder(2);
  std::vector<TokenRow> rows;
  for (const int64_t n : {5, 40, 2, 17, 90}) rows.push_back(random_row(static_cast<uint64_t>(n), n));
  std::vector<SamplingOptions> samplings(6);
  samplings[1].temperature = 0.6;
  samplings[2].top_k = 5;
  samplings[3].top_p = 0.8;
  samplings[4].min_p = 0.1;
  samplings[4].temperature = 1.3;
  samplings[4].top_k = 20;
  samplings[4].top_p = 0.95;
  samplings[5].temperature = 0;
  for (const SamplingOptions& o : samplings) {
    const auto scores = score_rows(target, draft, rows, o);
    ASSERT_EQ(scores.size(), rows.size());
    for (size_t i = 0; i < rows.size(); ++i) expect_same(scores[i], brute_force(target, draft, rows[i], o));
  }
  // Checks that the case is not trivial: the draft differs from the target, and a model agrees with itself.
  EXPECT_LT(score_rows(target, draft, rows, {})[1].alpha, 0.95);
  EXPECT_GT(score_rows(target, draft, rows, {})[1].alpha, 0.05);
  EXPECT_NEAR(score_rows(target, target, rows, {})[1].alpha, 1, 1e-6);
}

TEST(Acceptance, OnlyMaskedTokensAfterTheFirstCount) {
  const auto target = decoder(1), draft = decoder(2);
  TokenRow row = random_row(3, 12);
  std::fill(row.loss_mask.begin(), row.loss_mask.end(), 0);
  EXPECT_EQ(score_rows(target, draft, {{row}}, {})[0].tokens, 0);
  row.loss_mask[0] = 1;  // the first token cannot be predicted
  EXPECT_EQ(score_rows(target, draft, {{row}}, {})[0].tokens, 0);
  row.loss_mask[7] = 1;
  const RowScore s = score_rows(target, draft, {{row}}, {})[0];
  EXPECT_EQ(s.tokens, 1);
  expect_same(s, brute_force(target, draft, row, {}));
  TokenRow single = random_row(4, 1);
  single.loss_mask[0] = 1;
  EXPECT_EQ(score_rows(target, draft, {{single}}, {})[0].tokens, 0);
}

TEST(Acceptance, RowsAreCutAtTheShorterContext) {
  const auto target = decoder(1), draft = decoder(2, 50, 20);
  TokenRow row = random_row(5, 60);
  std::fill(row.loss_mask.begin(), row.loss_mask.end(), 1);
  const RowScore s = score_rows(target, draft, {{row}}, {})[0];
  EXPECT_EQ(s.tokens, 19);
  expect_same(s, brute_force(target, draft, row, {}));
}

// The row has more tokens than one pass may take, so the KV caches are kept between passes.
TEST(Acceptance, LongRowsGoInSeveralPasses) {
  const auto target = decoder(1, 50, 6000), draft = decoder(2, 50, 6000);
  TokenRow row = random_row(6, 4500);
  const std::vector<TokenRow> rows = {random_row(7, 30), row, random_row(8, 30)};
  const auto scores = score_rows(target, draft, rows, {});
  for (size_t i = 0; i < rows.size(); ++i) expect_same(scores[i], brute_force(target, draft, rows[i], {}), 1e-4);
}

// An EAGLE-3 head is scored as at the first drafted position, with the target's hidden states of all earlier text,
// whether the row takes one pass or several. The other draft is scored at the same positions.
TEST(Acceptance, HeadsReadTheTargetsStates) {
  model::DecoderConfig deep = config(50, 6000);
  deep.num_layers = 8;
  deep.layers.resize(8);
  model::Decoder target = model::random_decoder(deep, 1, at::kCPU, at::kFloat);
  target.weights.visit(target.config, [](const std::string&, at::Tensor& t) {
    if (t.dim() == 2) t.mul_(8);
  });
  for (const bool reduced : {false, true}) {
    const auto head = std::make_shared<const model::EagleHead>(model::new_eagle_head(
        target, reduced ? std::vector<int32_t>{1, 4, 7, 22, 49} : std::vector<int32_t>(), 3, at::kFloat));
    const auto other = std::make_shared<const model::Decoder>(decoder(2, 50, 6000));
    const std::vector<TokenRow> rows = {random_row(7, 30), random_row(6, 4300), random_row(8, 2)};
    const decode::DraftPtr drafts[] = {decode::make_draft(head), decode::make_draft(other)};
    const auto scores = score_rows(target, drafts, rows, {});
    for (size_t i = 0; i < rows.size(); ++i) {
      const c10::InferenceMode guard;
      const auto length = static_cast<int64_t>(rows[i].tokens.size());
      const at::Tensor tokens = at::tensor(rows[i].tokens, at::kLong).unsqueeze(0);
      model::TapReader taps(head->config);
      const at::Tensor p = model::forward(target, {tokens, {}, {}}, taps.observer()).softmax(-1)[0];
      model::KvCache cache(head->config.layer, at::kCPU, at::kFloat);
      const model::SequencePart part{.cache = &cache, .tokens = std::span(rows[i].tokens).subspan(1)};
      const at::Tensor fused = model::fuse_taps(*head, taps.rows()[0].narrow(0, 0, length - 1));
      const at::Tensor logits = model::eagle_logits(*head, model::eagle_pass(*head, {&part, 1}, fused).normed);
      const at::Tensor q = model::spread_logits(logits, head->config.layer.draft_vocab, 50).softmax(-1);
      double sum = 0;
      int64_t count = 0;
      for (int64_t t = 2; t < length; ++t)
        if (rows[i].loss_mask[static_cast<size_t>(t)]) {
          sum += at::minimum(p[t - 1], q[t - 2]).sum().item<double>();
          ++count;
        }
      EXPECT_EQ(scores[0][i].tokens, count) << i;
      EXPECT_EQ(scores[1][i].tokens, count) << i;
      if (count > 0) {
        EXPECT_NEAR(scores[0][i].alpha, sum / static_cast<double>(count), 1e-4) << i;
      }
    }
  }
}

TEST(Acceptance, BadInputNamesTheRow) {
  const auto target = decoder(1), draft = decoder(2);
  TokenRow row = random_row(9, 10);
  row.tokens[4] = 50;
  row.loss_mask.back() = 1;
  try {
    score_rows(target, draft, {{row}}, {});
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::kData);
    EXPECT_NE(std::string(e.what()).find("row-9"), std::string::npos);
  }
  EXPECT_THROW(score_rows(target, decoder(2, 40), {{row}}, {}), Error);
  auto broken = decoder(1);
  broken.weights.norm.fill_(std::nan(""));
  row.tokens[4] = 1;
  try {
    score_rows(target, broken, {{row}}, {});
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::kModel);
  }
}

ValidationReport summarised(std::span<const TokenRow> rows, std::span<const RowScore> scores) {
  AcceptanceGate gate({});
  observe(gate, rows, scores);
  ValidationReport r;
  summarise(rows, scores, gate, r);
  return r;
}

TEST(Acceptance, SeveralDraftsInOnePassOfTheTarget) {
  const auto target = decoder(1), a = decoder(2), b = decoder(3);
  std::vector<TokenRow> rows;
  for (const int64_t n : {40, 17, 90}) rows.push_back(random_row(static_cast<uint64_t>(n), n));
  SamplingOptions cut;
  cut.top_k = 5;
  for (const SamplingOptions& sampling : {SamplingOptions{}, cut}) {
    const auto borrowed = [](const model::Decoder& d) {
      return decode::make_draft(std::shared_ptr<const model::Decoder>(std::shared_ptr<const void>(), &d));
    };
    const decode::DraftPtr drafts[] = {borrowed(a), borrowed(b)};
    const auto both = score_rows(target, drafts, rows, sampling);
    ASSERT_EQ(both.size(), 2u);
    for (size_t i = 0; i < rows.size(); ++i) {
      expect_same(both[0][i], brute_force(target, a, rows[i], sampling));
      expect_same(both[1][i], brute_force(target, b, rows[i], sampling));
    }
  }
}

TEST(Acceptance, MeansIntervalsAndSegments) {
  std::vector<TokenRow> rows(6);
  std::vector<RowScore> scores(6);
  const double alphas[] = {0.5, 0.7, 0.9, 0.3, 0.6, 0.0};
  const int64_t tokens[] = {10, 10, 80, 10, 10, 0};
  for (size_t i = 0; i < 6; ++i) {
    rows[i].id = "r" + std::to_string(i);
    rows[i].conversation = i < 2 ? "c" : "";
    rows[i].domain = i < 3 ? "story" : i < 5 ? "code" : "empty";
    scores[i] = {alphas[i], alphas[i] / 2, 2.0, tokens[i]};
  }
  const ValidationReport r = summarised(rows, scores);
  EXPECT_EQ(r.alpha.n, 5);
  EXPECT_NEAR(r.alpha.value, 0.6, 1e-12);
  EXPECT_LE(r.alpha.ci.low, 0.6);
  EXPECT_GE(r.alpha.ci.high, 0.6);
  EXPECT_NEAR(r.alpha_tokens, (5 + 7 + 72 + 3 + 6) / 120.0, 1e-12);
  EXPECT_NEAR(r.greedy_agreement, (5 + 7 + 72 + 3 + 6) / 240.0, 1e-12);
  EXPECT_NEAR(r.entropy, 2, 1e-12);
  EXPECT_EQ(r.tokens, 120);
  EXPECT_EQ(r.request_ids, (std::vector<std::string>{"r0", "r1", "r2", "r3", "r4"}));
  ASSERT_EQ(r.segments.size(), 2u);  // a domain without measured tokens gets no segment
  EXPECT_EQ(r.segments[0].name, "code");
  EXPECT_NEAR(r.segments[0].alpha.value, 0.45, 1e-12);
  EXPECT_EQ(r.segments[1].alpha.n, 3);
  EXPECT_NEAR(r.segments[1].alpha.value, 0.7, 1e-12);
}

// Many requests of one conversation say little more than a single request, so the interval is over conversations.
TEST(Acceptance, IntervalCountsConversations) {
  std::vector<TokenRow> rows(200);
  std::vector<RowScore> scores(200);
  for (size_t i = 0; i < 200; ++i) {
    rows[i].id = std::to_string(i);
    scores[i] = {i % 2 ? 0.4 : 0.8, 0, 0, 5};
  }
  const ValidationReport apart = summarised(rows, scores);
  // The 200 requests form 20 conversations, and the requests of each are similar.
  for (size_t i = 0; i < 200; ++i) rows[i].conversation = std::to_string(i / 2 * 2 % 20 + i % 2);
  const ValidationReport together = summarised(rows, scores);
  EXPECT_NEAR(apart.alpha.value, together.alpha.value, 1e-12);
  EXPECT_GT(together.alpha.ci.high - together.alpha.ci.low, 2 * (apart.alpha.ci.high - apart.alpha.ci.low));
}

}  // namespace
}  // namespace specdec::deploy
