#include "tests/gpu/speed.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "engine/forward/forward.h"
#include "engine/forward/forward_cuda.h"
#include "engine/forward/memory_plan.h"
#include "engine/forward/pass_graphs.h"
#include "tests/model/toy_decoders.h"

namespace specdec::gpu {

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

int64_t free_bytes() {
  int64_t free_now = 0, total = 0;
  EXPECT_EQ(machine().library->memory(machine().index(), &free_now, &total), 0);
  return free_now;
}

double copy_bytes_per_second() {
  static const double bandwidth = [] {
    const auto memory = machine().memory();
    return copy_bandwidth(machine().test_device(*memory), free_bytes(), SystemClock());
  }();
  return bandwidth;
}

namespace {

Json config_of(Shape shape, int64_t layers) {
  Json config = model::toy_config("llama", layers);
  if (!machine().real) return config;
  const bool large = shape == Shape::k8b;
  config.update({{"vocab_size", 128256},
                 {"hidden_size", large ? 4096 : 2048},
                 {"intermediate_size", large ? 14336 : 8192},
                 {"num_attention_heads", 32},
                 {"num_key_value_heads", 8},
                 {"head_dim", large ? 128 : 64},
                 {"max_position_embeddings", 8192},
                 {"rope_theta", 500000.0}});
  return config;
}

int64_t layers_of(Shape shape) {
  if (!machine().real) return shape == Shape::k8b ? 4 : 2;
  return shape == Shape::k8b ? 32 : 16;
}

}  // namespace

std::shared_ptr<model::Decoder> random_decoder(Shape shape) {
  model::DecoderConfig config;
  for (int64_t layers = layers_of(shape); layers > 0; --layers) {
    config = model::parse_decoder_config(config_of(shape, layers), "a decoder with random weights");
    if (!machine().real || model::weight_bytes(config, at::kBFloat16) < free_bytes() * 2 / 3) break;
  }
  at::manual_seed(17);
  auto decoder = std::make_shared<model::Decoder>(model::Decoder{config, {}});
  for (const model::Parameter& p : list_parameters(decoder->weights, config))
    *p.tensor = p.shape.size() == 1 ? at::ones(p.shape, bf16()) : at::randn(p.shape, bf16()).mul_(0.02);
  decoder->config.dtype = at::kBFloat16;
  if (!machine().real) decoder->library = machine().library;
  join_projections(*decoder);
  return decoder;
}

std::shared_ptr<model::Decoder> in_int8(const model::Decoder& decoder) {
  std::shared_ptr<model::Decoder> out = on_machine(decoder, at::kChar);
  join_projections(*out);
  return out;
}

double bytes_of(const model::Decoder& decoder, const PassSize& size) {
  model::DecoderConfig config = decoder.config;
  const at::ScalarType dtype = dtype_of(decoder), side = decoder.weights.embed.scalar_type();
  const int64_t embedding = config.vocab_size * config.hidden_size * static_cast<int64_t>(c10::elementSize(side));
  const int64_t matrices = model::weight_bytes(config, dtype) - embedding;  // a pass reads few rows of the embedding
  return static_cast<double>(matrices + size.sequences * size.context * model::KvCache::bytes_per_token(config, side));
}

double pass_seconds(const model::Decoder& decoder, const PassSize& size, bool graph) {
  std::vector<std::unique_ptr<model::KvCache>> caches;
  const std::vector<int32_t> next(static_cast<size_t>(size.tokens_each), 9);
  model::CudaPass pass(decoder);
  for (int64_t i = 0; i < size.sequences; ++i) {
    std::vector<int32_t> text;
    for (int64_t at = 0; at < size.context; ++at) text.push_back(static_cast<int32_t>((at * 7 + i) % 61));
    caches.push_back(
        std::make_unique<model::KvCache>(decoder.config, machine().device, decoder.weights.embed.scalar_type()));
    const model::SequencePart prompt = {.cache = caches.back().get(), .tokens = text, .num_logits = 0};
    forward(decoder, {&prompt, 1});
    add_part({.cache = caches.back().get(), .tokens = next, .num_logits = size.tokens_each}, size.tokens_each, pass);
  }
  model::PassGraphs graphs(decoder);
  model::DeviceUpload upload(machine().device);
  pass.describe(upload, graph ? &graphs : nullptr);
  upload.send();
  const double seconds = seconds_of(machine().real ? 5 : 1, [&](int64_t) { pass.run(upload); });
  EXPECT_EQ(graphs.captured(), graph ? 1 : 0);
  return seconds;
}

}  // namespace specdec::gpu
