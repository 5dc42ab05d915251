// Compares loss and gradients of every family with those of transformers, tests the files that are written for each
// family, and prints the table of docs/models.md.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <set>

#include "engine/kernels/ops.h"
#include "tests/base/scratch.h"
#include "tests/parity/cases.h"

namespace specdec::parity {
namespace {

class Families : public ::testing::TestWithParam<std::string> {};

TEST_P(Families, LossAndGradients) {
  Case c = load_case(GetParam());
  const LossAndGradients found = train_once(c);
  EXPECT_NEAR(found.loss.item<double>(), c.golden.at("loss")[0].item<double>(), 1e-5);
  for (const auto& [name, gradient] : found.gradients) {
    ASSERT_TRUE(c.golden.contains("grad." + name)) << name;
    const at::Tensor& expected = c.golden.at("grad." + name);
    ASSERT_TRUE(gradient.defined()) << name;
    EXPECT_LT(largest_difference(gradient, expected), 1e-5 * std::max(1.0, expected.abs().max().item<double>()))
        << name;
  }
  for (const auto& [name, tensor] : c.golden) {
    EXPECT_TRUE(!name.starts_with("grad.") || found.gradients.contains(name.substr(5))) << name;
  }
}

// Fails if a model in golden/families is missing in case_names(), because no test would compare it.
TEST(FamilyGoldens, AllAreCases) {
  for (const auto& entry : std::filesystem::directory_iterator(golden_path("families")))
    if (entry.is_directory()) {
      const std::string name = "families/" + entry.path().filename().string();
      EXPECT_NE(std::find(case_names().begin(), case_names().end(), name), case_names().end())
          << name << " is not in tests/parity/cases.h";
    }
}

INSTANTIATE_TEST_SUITE_P(Trained, Families, ::testing::ValuesIn(trained_case_names()),
                         [](const auto& info) { return test_name(info.param); });

class Written : public ::testing::TestWithParam<std::string> {};

// Loads a checkpoint of transformers, saves it and loads it again: config, logits and tensor names must be the same.
TEST_P(Written, IsReadBack) {
  const specdec::testing::Scratch scratch;
  Case c = load_case(GetParam());
  model::save_decoder(c.decoder, scratch.root());
  const model::Decoder again = model::load_decoder(scratch.root(), at::kCPU, c.decoder.config.dtype);
  EXPECT_EQ(model::to_json(again.config), model::to_json(c.decoder.config));
  const at::Tensor before = model::forward(c.decoder, {.tokens = c.tokens, .positions = c.positions});
  EXPECT_TRUE(at::equal(model::forward(again, {.tokens = c.tokens, .positions = c.positions}), before));
  const SafetensorsFile theirs(golden_path(GetParam()) / "model.safetensors"), ours(scratch / "model.safetensors");
  EXPECT_EQ(theirs.tensors().size(), ours.tensors().size());
  for (const auto& [name, entry] : theirs.tensors()) EXPECT_TRUE(ours.tensors().contains(name)) << name;
}

INSTANTIATE_TEST_SUITE_P(Models, Written, ::testing::ValuesIn(case_names()),
                         [](const auto& info) { return test_name(info.param); });

// Removes a layer. The other layers keep their attention windows, RoPE settings and experts.
model::Decoder without_layer(const model::Decoder& decoder, int64_t layer) {
  model::Decoder out = decoder;
  out.config.layers.erase(out.config.layers.begin() + layer);
  out.weights.layers.erase(out.weights.layers.begin() + layer);
  --out.config.num_layers;
  return out;
}

TEST_P(Written, KeepsItsMeaningWithoutALayer) {
  const Case c = load_case(GetParam());
  for (int64_t layer = 0; layer < c.decoder.config.num_layers; ++layer) {
    const model::Decoder pruned = without_layer(c.decoder, layer);
    const model::Decoder again{model::parse_decoder_config(model::to_json(pruned.config), "written"), pruned.weights};
    const at::Tensor logits = model::forward(pruned, {.tokens = c.tokens, .positions = c.positions});
    EXPECT_TRUE(at::equal(model::forward(again, {.tokens = c.tokens, .positions = c.positions}), logits)) << layer;
    EXPECT_GT(largest_difference(logits, c.logits), 1e-3) << layer;
  }
}

// Writes every model to a folder, complete and with each of its layers removed, and also its logits. check_written.py
// compares the logits with those of transformers.
TEST(WrittenModels, ForTransformers) {
  const char* directory = std::getenv("SPECDEC_PARITY_WRITE");
  if (!directory) GTEST_SKIP() << "SPECDEC_PARITY_WRITE=DIR writes models there for check_written.py";
  for (const std::string& name : case_names()) {
    const Case c = load_case(name);
    for (int64_t layer = -1; layer < c.decoder.config.num_layers; ++layer) {
      const model::Decoder decoder = layer < 0 ? c.decoder : without_layer(c.decoder, layer);
      const auto to =
          std::filesystem::path(directory) / (test_name(name) + (layer < 0 ? "" : "_without_" + std::to_string(layer)));
      std::filesystem::create_directories(to);
      model::save_decoder(decoder, to);
      const at::Tensor logits =
          model::forward(decoder, {.tokens = c.tokens, .positions = c.positions}).to(at::kFloat).contiguous();
      const auto view = [](const at::Tensor& t) {
        return std::span(static_cast<const std::byte*>(t.const_data_ptr()), t.nbytes());
      };
      write_safetensors(to / "expected.safetensors",
                        {{"tokens", "I64", c.tokens.sizes().vec(), view(c.tokens)},
                         {"positions", "I64", c.positions.sizes().vec(), view(c.positions)},
                         {"logits", "F32", logits.sizes().vec(), view(logits)}});
    }
  }
}

// Returns the largest difference from transformers' logits over all combinations of kernels (ours, reference) and ways
// to run a pass.
double largest_logit_error(const Case& c) {
  double worst = 0;
  for (const bool reference : {false, true}) {
    kernels::force_reference(reference);
    worst = std::max(
        worst, largest_difference(model::forward(c.decoder, {.tokens = c.tokens, .positions = c.positions}), c.logits));
    for (int64_t row = 0; row < c.tokens.size(0); ++row) {
      const std::vector<int32_t> ids = c.ids(row);
      for (const size_t chunk : {ids.size(), size_t{7}, size_t{1}}) {
        model::KvCache kv(c.decoder.config, at::kCPU, c.decoder.config.dtype);
        std::vector<at::Tensor> pieces;
        for (size_t at = 0; at < ids.size(); at += chunk) {
          const size_t n = std::min(chunk, ids.size() - at);
          model::SequencePart part{
              .cache = &kv, .tokens = std::span(ids).subspan(at, n), .num_logits = static_cast<int64_t>(n)};
          for (size_t i = at; i < at + n; ++i)
            part.positions.push_back(c.positions[row][static_cast<int64_t>(i)].item<int64_t>());
          pieces.push_back(model::forward(c.decoder, std::span(&part, 1)));
        }
        worst = std::max(worst, largest_difference(at::cat(pieces), c.stepwise[row]));
      }
    }
    kernels::force_reference(false);
  }
  return worst;
}

TEST(ParityTable, OverAllFamilies) {
  if (!std::getenv("SPECDEC_PARITY_TABLE")) GTEST_SKIP() << "SPECDEC_PARITY_TABLE=1 prints the table of docs/models.md";
  std::puts("| case | dtype | largest logit | logit error | loss error | gradient error |\n|---|---|---|---|---|---|");
  for (const std::string& name : case_names()) {
    Case c = load_case(name);
    const double logits = largest_logit_error(c);
    std::printf("| %s | %s | %.2f | %.1e |", name.substr(name.find('/') + 1).c_str(),
                model::dtype_name(c.decoder.config.dtype), c.logits.abs().max().item<double>(), logits);
    if (!c.golden.contains("loss")) {
      std::puts(" | |");
      continue;
    }
    const LossAndGradients found = train_once(c);
    double worst = 0;
    for (const auto& [parameter, gradient] : found.gradients)
      worst = std::max(worst, largest_difference(gradient, c.golden.at("grad." + parameter)));
    std::printf(" %.1e | %.1e |\n", std::abs(found.loss.item<double>() - c.golden.at("loss")[0].item<double>()), worst);
  }
}

}  // namespace
}  // namespace specdec::parity
