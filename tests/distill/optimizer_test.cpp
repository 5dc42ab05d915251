#include "distill/gradient/optimizer.h"

#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>

#include <numeric>

#include "distill/gradient/gradient_sums.h"
#include "distill/loss/losses.h"
#include "engine/forward/forward.h"
#include "tests/distill/optimizer_state.h"
#include "tests/distill/toy.h"
#include "tests/parallel/rank_threads.h"
#include "tests/source_folder.h"

namespace specdec::distill {
namespace {

using namespace specdec::testing;

struct Golden {
  std::map<std::string, at::Tensor> file =
      read_tensors(fs::path(source_folder()) / "tests/distill/golden/adamw.safetensors");
  std::vector<NamedTensor> parameters;
  AdamWOptions options{0.9, 0.95, 1e-8, 0.1, 1.0};

  Golden() {
    for (const char* name : {"matrix", "norm"})
      parameters.push_back({name, file.at(std::string("p0.") + name).clone().requires_grad_(true)});
  }
  void step(AdamW& optimizer, int64_t number) {
    for (NamedTensor& p : parameters)
      p.tensor.mutable_grad() = file.at("g" + std::to_string(number) + "." + p.name).clone();
    optimizer.step(1e-2, optimizer.grad_norm());
  }
};

TEST(Optimizer, TenStepsAsPyTorch) {
  Golden g;
  AdamW optimizer(g.parameters, g.options);
  for (int64_t i = 0; i < 10; ++i) g.step(optimizer, i);
  for (const NamedTensor& p : g.parameters)
    EXPECT_LT((p.tensor - g.file.at("p10." + p.name)).abs().max().item<double>(), 1e-6) << p.name;
}

// Compares whole training steps (forward pass, fused loss gradient, backward pass and update) with transformers and
// torch.optim. tests/parity/make_goldens.py made the golden values.
TEST(Optimizer, TenTrainingStepsOfADecoderAsTransformers) {
  for (const bool ce : {true, false}) {
    const fs::path path =
        fs::path(source_folder()) / "tests/parity/golden" / (ce ? "train_ce.safetensors" : "train_kl.safetensors");
    const auto golden = read_tensors(path);
    const auto metadata = SafetensorsFile(path).metadata();
    const Json config = Json::parse(metadata.at("config")), adamw = Json::parse(metadata.at("adamw"));
    model::Decoder decoder =
        model::random_decoder(model::parse_decoder_config(config, "golden"), 0, at::kCPU, at::kFloat);
    std::vector<NamedTensor> parameters;
    decoder.weights.visit(decoder.config, [&](const std::string& name, at::Tensor& t) {
      t = golden.at("init." + name).clone().requires_grad_(true);
      parameters.push_back({name, t});
    });
    if (decoder.config.tie_embeddings) decoder.weights.lm_head = decoder.weights.embed;
    AdamW optimizer(parameters, {adamw["betas"][0], adamw["betas"][1], adamw["eps"], adamw["weight_decay"], 0.0});
    const at::Tensor tokens = golden.at("tokens");
    const int64_t rows = tokens.size(0), width = tokens.size(1), vocab = decoder.config.vocab_size;
    LossInput input;
    input.labels = at::roll(tokens, -1, 1).reshape({-1});
    input.target = golden.at("teacher_logits").reshape({-1, vocab});
    const at::Tensor all = at::arange(rows * width, at::kLong);
    input.rows = ce ? all.index({all.remainder(width).ne(width - 1)}) : all;
    for (int64_t step = 0; step < 10; ++step) {
      const at::Tensor logits = model::forward(decoder, {tokens, {}, {}});
      input.draft = logits.detach().reshape({-1, vocab});
      const LossResult r = loss_and_grad({parse_loss(ce ? "ce" : "kl"), 3, 1}, input);
      if (step == 0) {
        EXPECT_NEAR(r.loss, golden.at("loss")[0].item<double>(), 1e-5);
      }
      logits.backward(r.grad.view_as(logits));
      optimizer.step(adamw["lr"], optimizer.grad_norm());
      GradientSums(parameters).clear();
    }
    for (const NamedTensor& p : parameters)
      EXPECT_LT((p.tensor - golden.at("after10_matrices." + p.name)).abs().max().item<double>(), 2e-5) << p.name;
  }
}

TEST(Optimizer, StateContinuesBitForBit) {
  Golden a, b;
  AdamW whole(a.parameters, a.options), first(b.parameters, b.options);
  for (int64_t i = 0; i < 10; ++i) a.step(whole, i);
  for (int64_t i = 0; i < 5; ++i) b.step(first, i);
  std::vector<NamedTensor> state = state_of(first);
  AdamW second(b.parameters, b.options);
  load_state(second, state);
  for (int64_t i = 5; i < 10; ++i) b.step(second, i);
  for (size_t i = 0; i < a.parameters.size(); ++i)
    EXPECT_TRUE(at::equal(a.parameters[i].tensor, b.parameters[i].tensor));
  state.pop_back();
  expect_error(ErrorKind::kData, {"steps", "missing"}, [&] { load_state(second, state); });
  state.push_back({"steps", at::zeros({2})});
  state.push_back({"exp_avg.other", at::zeros({2})});
  expect_error(ErrorKind::kData, {"exp_avg.other"}, [&] { load_state(second, state); });
  state.pop_back();
  state[0].tensor = at::zeros({7});
  expect_error(ErrorKind::kData, {"shape"}, [&] { load_state(second, state); });
}

TEST(Optimizer, GlobalNormCountsEveryTensor) {
  Golden g;
  AdamW optimizer(g.parameters, g.options);
  EXPECT_EQ(optimizer.grad_norm(), 0);
  g.parameters[0].tensor.mutable_grad() = at::full({5, 3}, 2.0);
  g.parameters[1].tensor.mutable_grad() = at::full({4}, 1.0);
  EXPECT_NEAR(optimizer.grad_norm(), 8.0, 1e-6);  // √(15·4 + 4)
  g.parameters[1].tensor.mutable_grad()[0] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(std::isnan(optimizer.grad_norm()));
}

TEST(Optimizer, LowPrecisionParametersKeepAMaster) {
  // Updates that are much smaller than the resolution of bf16 still add up in the fp32 master copy.
  std::vector<NamedTensor> parameters = {{"w", at::ones({2, 2}, at::kBFloat16).requires_grad_(true)}};
  AdamW optimizer(parameters, {});
  for (int i = 0; i < 100; ++i) {
    parameters[0].tensor.mutable_grad() = at::ones({2, 2}, at::kBFloat16);
    optimizer.step(1e-3, optimizer.grad_norm());
  }
  EXPECT_NEAR(parameters[0].tensor.to(at::kFloat)[0][0].item<double>(), 0.9, 0.01);
  bool master = false;
  for (const TensorShape& t : optimizer.layout()) master |= t.name == "master.w";
  EXPECT_TRUE(master);
}

TEST(Optimizer, SharesCoverEveryValueOnce) {
  for (const int ranks : {1, 2, 3, 7}) {
    const std::vector<int64_t> sizes = {1, 63, 64, 0, 1000, 4096, 129, 100000};
    const int64_t total = std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
    std::vector<int64_t> owned(static_cast<size_t>(ranks));
    int64_t first = 0;
    for (const int64_t size : sizes) {
      EXPECT_EQ(share_begin(first, size, total, 0, ranks), 0);
      EXPECT_EQ(share_begin(first, size, total, ranks, ranks), size);
      for (int r = 0; r < ranks; ++r) {
        const int64_t begin = share_begin(first, size, total, r, ranks),
                      end = share_begin(first, size, total, r + 1, ranks);
        EXPECT_LE(begin, end);
        EXPECT_TRUE(begin % 64 == 0 || begin == size) << begin;
        owned[static_cast<size_t>(r)] += end - begin;
      }
      first += size;
    }
    for (const int64_t values : owned) EXPECT_NEAR(values, total / ranks, 200) << ranks;
  }
}

// If ranks share the optimizer state, the updated parameters are bit-identical to those of one process, and each rank
// keeps only its share. Ranks that share can load a checkpoint of one process, and one process can load theirs.
TEST(Optimizer, RanksShareTheStateWithTheSameBits) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const std::vector<std::vector<int64_t>> shapes = {{50, 37}, {7}, {300}, {1}, {129, 8}};
    const auto parameters = [&] {
      std::vector<NamedTensor> out;
      for (size_t i = 0; i < shapes.size(); ++i) {
        const auto generator = at::make_generator<at::CPUGeneratorImpl>(i + 1);
        out.push_back({"p" + std::to_string(i), at::randn(shapes[i], generator).to(dtype).requires_grad_(true)});
      }
      return out;
    };
    const auto step = [&](AdamW& optimizer, std::vector<NamedTensor>& p, int number) {
      for (size_t i = 0; i < p.size(); ++i) {
        const auto generator = at::make_generator<at::CPUGeneratorImpl>(1000 * number + i);
        // In every second step, parameter 2 has no gradient.
        p[i].tensor.mutable_grad() = i == 2 && number % 2 ? at::Tensor() : at::randn(shapes[i], generator);
      }
      optimizer.step(1e-2, optimizer.grad_norm());
    };
    const AdamWOptions options{.weight_decay = 0.1};
    auto alone = parameters();
    AdamW one(alone, options);
    for (int i = 0; i < 6; ++i) step(one, alone, i);
    const auto expected = state_of(one);
    for (const int count : {2, 3}) {
      std::vector<NamedTensor> written;
      const auto errors = as_ranks(count, [&](const parallel::Ranks& ranks) {
        auto own = parameters();
        AdamW first(own, options, ranks, true);
        for (int i = 0; i < 3; ++i) step(first, own, i);
        auto state = state_of(first);
        EXPECT_EQ(state.empty(), !ranks.is_first());
        AdamW second(own, options, ranks, true);
        load_state(second, state);
        for (int i = 3; i < 6; ++i) step(second, own, i);
        for (size_t i = 0; i < own.size(); ++i)
          EXPECT_TRUE(at::equal(own[i].tensor.detach(), alone[i].tensor.detach())) << i << " of rank " << ranks.rank();
        state = state_of(second);
        if (ranks.is_first()) written = std::move(state);
      });
      for (const std::string& e : errors) EXPECT_EQ(e, "");
      ASSERT_EQ(written.size(), expected.size());
      for (size_t i = 0; i < written.size(); ++i) {
        EXPECT_EQ(written[i].name, expected[i].name);
        EXPECT_TRUE(at::equal(written[i].tensor, expected[i].tensor)) << written[i].name;
      }
    }
  }
}

}  // namespace
}  // namespace specdec::distill
