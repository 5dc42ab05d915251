#include "distill/teacher/label_teacher.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "distill/loss/losses.h"
#include "distill/run/run.h"
#include "distill/teacher/label_target.h"
#include "distill/train/evaluate.h"
#include "tests/distill/toy.h"

namespace specdec::distill {
namespace {

using namespace specdec::testing;

using Row = std::vector<double>;

Row softmax_of(const at::Tensor& logits, double temperature) {
  const at::Tensor p = at::softmax(logits.to(at::kDouble) / temperature, -1);
  return {p.const_data_ptr<double>(), p.const_data_ptr<double>() + p.numel()};
}

// The divergences of two distributions, computed from the definitions.
struct Divergence {
  double kl = 0, rkl = 0, jsd = 0, tv = 0, acceptance = 0;
};
Divergence divergence(const Row& p, const Row& q) {
  Divergence d;
  for (size_t v = 0; v < p.size(); ++v) {
    const double m = (p[v] + q[v]) / 2;
    if (p[v] > 0) d.kl += p[v] * std::log(p[v] / q[v]), d.jsd += p[v] / 2 * std::log(p[v] / m);
    if (q[v] > 0) d.rkl += q[v] * std::log(q[v] / p[v]), d.jsd += q[v] / 2 * std::log(q[v] / m);
    d.acceptance += std::min(p[v], q[v]);
  }
  d.tv = 1 - d.acceptance;
  return d;
}
double named(const Divergence& d, const std::string& loss) {
  return loss == "kl"    ? d.kl
         : loss == "rkl" ? d.rkl
         : loss == "jsd" ? d.jsd
         : loss == "tv"  ? d.tv
                         : -std::log(d.acceptance);
}

// Returns p with the probabilities of all tokens outside `known` merged into entry 0.
Row bucketed(const Row& p, const std::set<int64_t>& known) {
  Row out(1, 0);
  for (size_t v = 0; v < p.size(); ++v) {
    if (known.contains(static_cast<int64_t>(v)))
      out.push_back(p[v]);
    else
      out[0] += p[v];
  }
  return out;
}

TopK top_k_of(const at::Tensor& logits, int64_t k, double temperature) {
  at::Tensor all = at::log_softmax(logits / temperature, -1);
  const auto [values, ids] = all.topk(k, -1);
  const at::Tensor others = all.scatter(1, ids, -INFINITY);
  return {ids, values, others.logsumexp(-1).clamp_min(kLeastLogRest)};
}
std::set<int64_t> known_tokens(const TopK& labels, int64_t row) {
  const int64_t* ids = labels.ids[row].const_data_ptr<int64_t>();
  return {ids, ids + labels.ids.size(1)};
}

constexpr const char* kDivergences[] = {"kl", "rkl", "jsd", "tv", "nla"};
constexpr int64_t kRows = 40, kTokens = 24;

LossInput loss_input(const at::Tensor& draft, const at::Tensor& target) {
  LossInput in;
  in.draft = draft, in.target = target;
  in.labels = at::zeros({draft.size(0)}, at::kLong);
  in.rows = at::arange(draft.size(0), at::kLong);
  return in;
}

TEST(TopK, EveryLossIsTheBucketsAndBoundsTheTrueOne) {
  at::manual_seed(5);
  for (const double temperature : {1.0, 0.7}) {
    const at::Tensor target = 2 * at::randn({kRows, kTokens}), draft = 2 * at::randn({kRows, kTokens});
    const TopK labels = top_k_of(target, 5, temperature);
    const at::Tensor completed = complete_top_k(labels, {draft, {}}, temperature, kTokens);
    const double unresolved = labels.rest.exp().mean().item<double>();
    EXPECT_GT(unresolved, 0.02);
    for (const char* name : kDivergences) {
      const LossOptions options{parse_loss(name), 3.0, temperature};
      const LossResult found = loss_and_grad(options, loss_input(draft, completed)),
                       exact = loss_and_grad(options, loss_input(draft, target));
      double expected = 0;
      for (int64_t row = 0; row < kRows; ++row) {
        const auto known = known_tokens(labels, row);
        const Divergence d = divergence(bucketed(softmax_of(target[row], temperature), known),
                                        bucketed(softmax_of(draft[row], temperature), known));
        const Divergence full = divergence(softmax_of(target[row], temperature), softmax_of(draft[row], temperature));
        expected += named(d, name) / kRows;
        EXPECT_LE(named(d, name), named(full, name) + 1e-12) << name << ": merging tokens brings them nearer";
        EXPECT_GE(d.acceptance, full.acceptance);
        EXPECT_LE(d.acceptance - labels.rest.exp()[row].item<double>(), full.acceptance + 1e-6);
      }
      EXPECT_NEAR(found.loss, expected, 1e-5) << name;
      EXPECT_LT(found.loss, exact.loss) << name;
      EXPECT_GT(found.acceptance, exact.acceptance);
      EXPECT_LT(found.acceptance - unresolved, exact.acceptance);
    }
  }
}

TEST(TopK, TheGradientIsTheBuckets) {
  at::manual_seed(6);
  const at::Tensor target = 2 * at::randn({1, kTokens}), draft = at::randn({1, kTokens});
  const TopK labels = top_k_of(target, 5, 1);
  const auto known = known_tokens(labels, 0);
  const Row p = bucketed(softmax_of(target[0], 1), known);
  for (const char* name : kDivergences) {
    const LossResult found =
        loss_and_grad({parse_loss(name)}, loss_input(draft, complete_top_k(labels, {draft, {}}, 1, kTokens)));
    const auto loss_at = [&](int64_t v, double step) {
      at::Tensor moved = draft.to(at::kDouble);
      moved[0][v] += step;
      return named(divergence(p, bucketed(softmax_of(moved[0], 1), known)), name);
    };
    for (int64_t v = 0; v < kTokens; ++v)
      EXPECT_NEAR(found.grad[0][v].item<double>(), (loss_at(v, 1e-5) - loss_at(v, -1e-5)) / 2e-5, 1e-5)
          << name << ", token " << v;
  }
}

TEST(TopK, AllTokensOrTheDraftsOwnTailAreExact) {
  at::manual_seed(7);
  const at::Tensor target = 2 * at::randn({kRows, kTokens}), draft = at::randn({kRows, kTokens});
  const at::Tensor all = complete_top_k(top_k_of(target, kTokens, 1), {draft, {}}, 1, kTokens);
  EXPECT_LT((at::softmax(all, -1) - at::softmax(target, -1)).abs().max().item<double>(), 1e-6);
  // complete_top_k() keeps the probabilities of the labels, and each completed row sums to 1.
  const TopK labels = top_k_of(target, 5, 1);
  const at::Tensor same_tail = complete_top_k(labels, {draft, {}}, 1, kTokens);
  const at::Tensor known = at::softmax(same_tail, -1).gather(1, labels.ids);
  EXPECT_LT((known - labels.logprobs.exp()).abs().max().item<double>(), 1e-6);
  EXPECT_LT((at::softmax(same_tail, -1).sum(-1) - 1).abs().max().item<double>(), 1e-6);
}

TEST(TopK, DraftsWithAReducedVocabularyAreCompleted) {
  at::manual_seed(8);
  const at::Tensor kept = at::tensor({1, 4, 5, 9, 13, 17, 20}, at::kLong), target = at::randn({kRows, kTokens}),
                   draft = at::randn({kRows, 7});
  const TopK labels = top_k_of(target, 5, 1);
  const at::Tensor completed = complete_top_k(labels, {draft, kept}, 1, kTokens);
  ASSERT_EQ(completed.sizes(), at::IntArrayRef({kRows, kTokens}));
  LossInput exact = loss_input(draft, target), found = loss_input(draft, completed);
  exact.kept = found.kept = kept;
  const LossResult a = loss_and_grad({parse_loss("tv")}, exact), b = loss_and_grad({parse_loss("tv")}, found);
  EXPECT_GT(b.acceptance, a.acceptance);
  EXPECT_LT(b.acceptance - labels.rest.exp().mean().item<double>(), a.acceptance);
  // If the draft's vocabulary has no token outside the top k, the target's probability of all other tokens is dropped,
  // and no value is NaN.
  const at::Tensor only = std::get<0>(labels.ids.slice(0, 0, 1).flatten().sort());
  const TopK one{labels.ids.slice(0, 0, 1), labels.logprobs.slice(0, 0, 1), labels.rest.slice(0, 0, 1)};
  const at::Tensor narrow = complete_top_k(one, {at::randn({1, 5}), only}, 1, kTokens);
  EXPECT_FALSE(narrow.isnan().any().item<bool>());
  EXPECT_EQ(narrow.isinf().sum().item<int64_t>(), kTokens - 5);
}

struct Labelled {
  Scratch scratch;
  SystemClock clock;
  DistillOptions options;
  LabelOptions labels;

  Labelled() {
    fs::create_directories(scratch / "target");
    model::save_decoder(toy_decoder(3, 1), scratch / "target");
    toy_tokenizer(scratch / "target");
    write_data(scratch / "data", scratch / "target", toy_rows(60, 5), toy_rows(40, 6));
    options.target = labels.target = (scratch / "target").string();
    options.data = labels.data = (scratch / "data").string();
    labels.out = (scratch / "labels").string();
    options.draft = "prune:2";
    options.learning_rate = 5e-3;
    options.batch_tokens = 200;
    options.max_steps = 60;
    options.teacher_cache_mib = 0;
    options.contexts = "data";  // measures on the answers in the data, which have labels
    options.device.device = labels.device.device = "cpu";
    options.device.threads = labels.device.threads = 1;
  }
  DistillResult run(const std::string& name, const std::string& teacher) {
    options.out = (scratch / name).string();
    options.teacher = teacher;
    return distill::run(options, {}, clock);
  }
  LabelResult label(const std::string& name) {
    labels.out = (scratch / name).string();
    return label_by_target(labels, {});
  }
};

double after_of(const DistillResult& r) { return r.json["acceptance"]["after"]["value"].get<double>(); }

TEST(Labels, ADraftFromAllProbabilitiesEqualsTheOneDistilledInProcess) {
  Labelled f;
  f.labels.top_k = 24;
  const LabelResult made = f.label("labels");
  EXPECT_EQ(made.made, 100);
  EXPECT_EQ(made.index.top_k, 24);
  const DistillResult here = f.run("here", "target"), labelled = f.run("there", "labels:" + f.labels.out);
  EXPECT_NEAR(after_of(labelled), after_of(here), 1e-4);
  EXPECT_NEAR(labelled.json["acceptance"]["rest"].get<double>(), 0, 1e-6);
  EXPECT_EQ(labelled.json["verdict"], "improved");
  // A second run with the same labels gives the same result.
  const DistillResult again = f.run("again", "labels:" + f.labels.out);
  EXPECT_EQ(after_of(again), after_of(labelled));
}

TEST(Labels, HiddenStatesInBf16AreNearTheTarget) {
  Labelled f;
  f.labels.hidden = true;
  f.label("labels");
  const DistillResult here = f.run("here", "target"), labelled = f.run("there", "labels:" + f.labels.out);
  EXPECT_NEAR(after_of(labelled), after_of(here), 0.02);
  EXPECT_FALSE(labelled.json["acceptance"].contains("rest")) << "all probabilities are known";
}

TEST(Labels, TheBoundsHoldTheTrueAcceptance) {
  Labelled f;
  f.labels.top_k = 6;
  f.label("labels");
  const DistillResult r = f.run("there", "labels:" + f.labels.out);
  const double rest = r.json["acceptance"]["rest"].get<double>();
  EXPECT_GT(rest, 0.005);
  const model::Decoder target = model::load_decoder(f.scratch / "target", at::kCPU, at::kFloat),
                       draft = model::load_decoder(f.scratch / "there/draft", at::kCPU, at::kFloat);
  const HeldOut h = split_held_out(toy_rows(40, 6), 64, 1000);
  const double exact = evaluate(draft, &target, h.verdict, {}).acceptance;
  EXPECT_GT(after_of(r), exact);
  EXPECT_LT(after_of(r) - rest, exact);
}

TEST(Labels, AreRefusedForAnotherTargetOrOtherData) {
  Labelled f;
  f.label("labels");
  const std::string labels = "labels:" + f.labels.out;
  f.options.temperature = 0.5;
  expect_error(ErrorKind::kUsage, {"temperature of 1", "0.5"}, [&] { f.run("a", labels); });
  f.options.temperature = 1;
  const std::string data = f.options.data, target = f.options.target;
  write_data(f.scratch / "more", f.scratch / "target", toy_rows(61, 5), toy_rows(40, 6));
  f.options.data = (f.scratch / "more").string();
  expect_error(ErrorKind::kData, {"labels for other data", "more"}, [&] { f.run("b", labels); });
  f.options.data = data;
  fs::create_directories(f.scratch / "other");
  model::save_decoder(toy_decoder(3, 2), f.scratch / "other");
  toy_tokenizer(f.scratch / "other");
  f.options.target = (f.scratch / "other").string();
  expect_error(ErrorKind::kData, {"labels of another target", "other"}, [&] { f.run("c", labels); });
  f.options.target = target;
  expect_error(ErrorKind::kUsage, {"has labels already"}, [&] { f.label("labels"); });
  f.labels.resume = true;
  EXPECT_EQ(f.label("labels").kept, 100);
  f.labels.top_k = 7;
  expect_error(ErrorKind::kUsage, {"these differ: top_k"}, [&] { f.label("labels"); });
  // The target's weights are not needed to distil from labels. The draft is then bound to the target that the labels
  // name.
  fs::create_directories(f.scratch / "tokenizer");
  for (const char* name : {"tokenizer.json", "tokenizer_config.json", "config.json"})
    fs::copy_file(f.scratch / "target" / name, f.scratch / "tokenizer" / name);
  f.options.target = (f.scratch / "tokenizer").string();
  f.options.draft = "model:" + target;
  f.options.max_steps = 2;
  f.run("d", labels);
  EXPECT_TRUE(fs::exists(f.scratch / "d/draft/specdec.json"));
}

}  // namespace
}  // namespace specdec::distill
