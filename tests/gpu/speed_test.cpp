// How fast the machine is: products, and steps of a decoder with the shape of an 8B model, as shares of the bandwidth
// of copies on the device. Nothing is asserted but that the figures are numbers.
#include <gtest/gtest.h>

#include <algorithm>

#include "base/clock.h"
#include "engine/model/forward.h"
#include "engine/model/memory_plan.h"
#include "tests/gpu/machine.h"
#include "tests/model/toy_decoders.h"

namespace specdec::gpu {
namespace {

// Returns the seconds of one call of run(), the median of some rounds of several calls each.
template <class F>
double seconds_of(int calls, const F& run) {
  constexpr int kRounds = 7;
  const SystemClock clock;
  std::vector<double> rounds;
  for (int round = 0; round <= kRounds; ++round) {
    machine().wait();
    const double start = clock.seconds();
    for (int call = 0; call < calls; ++call) run();
    machine().wait();
    if (round > 0) rounds.push_back((clock.seconds() - start) / calls);  // the first one loads the kernels
  }
  std::nth_element(rounds.begin(), rounds.begin() + kRounds / 2, rounds.end());
  return rounds[kRounds / 2];
}

int64_t free_bytes() {
  int64_t free_now = 0, total = 0;
  EXPECT_EQ(machine().library->memory(machine().index(), &free_now, &total), 0);
  return free_now;
}

double copies() {
  static const double bandwidth = [] {
    const auto memory = machine().memory();
    return copy_bandwidth(machine().test_device(*memory), free_bytes(), SystemClock());
  }();
  return bandwidth;
}

at::TensorOptions bf16() { return at::TensorOptions().dtype(at::kBFloat16).device(machine().device); }

TEST(Speed, Products) {
  const int64_t n = machine().real ? 14336 : 40, k = machine().real ? 4096 : 64;
  const at::Tensor weight = at::randn({n, k}, bf16());
  for (const int64_t rows : {1, 4, 16, 64}) {
    const at::Tensor x = at::randn({rows, k}, bf16()), out = at::empty({rows, n}, bf16());
    kernels::RowsProduct call = {};
    call.rows = rows, call.n = n, call.k = k, call.stride = n;
    call.x = x.const_data_ptr(), call.weight = weight.const_data_ptr(), call.out = out.mutable_data_ptr();
    const double seconds = seconds_of(machine().real ? 50 : 1, [&] {
      ASSERT_EQ(machine().library->rows_product(kernels::CudaDtype::kBFloat16, machine().index(), &call), 0);
    });
    const double bytes = 2.0 * static_cast<double>(n * k + rows * (n + k));
    EXPECT_GT(seconds, 0);
    figures()["products"][std::to_string(rows) + " rows"] = {
        {"n", n}, {"k", k}, {"seconds", seconds}, {"share_of_copies", bytes / seconds / copies()}};
  }
}

// The same with the codes of quantised checkpoints, in groups of 128.
TEST(Speed, ProductsOfCodes) {
  constexpr std::pair<const char*, kernels::Packing> kPackings[] = {
      {"4 bits", kernels::Packing::kCodes4}, {"8 bits", kernels::Packing::kCodes8}, {"E4M3", kernels::Packing::kE4m3}};
  const int64_t n = machine().real ? 14336 : 40, k = machine().real ? 4096 : 64, group = 128;
  for (const auto& [name, packing] : kPackings)
    for (const int64_t rows : {1, 4, 16, 64}) {
      const at::Tensor weight = at::zeros({n, kernels::coded_row_bytes(packing, k, group)}, bf16().dtype(at::kByte)),
                       x = at::randn({rows, k}, bf16()), out = at::empty({rows, n}, bf16());
      kernels::RowsProduct call = {};
      call.rows = rows, call.n = n, call.k = k, call.stride = n, call.packing = packing,
      call.group = std::min(group, k);
      call.x = x.const_data_ptr(), call.weight = weight.const_data_ptr(), call.out = out.mutable_data_ptr();
      const double seconds = seconds_of(machine().real ? 50 : 1, [&] {
        ASSERT_EQ(machine().library->rows_product(kernels::CudaDtype::kBFloat16, machine().index(), &call), 0);
      });
      const double bytes = static_cast<double>(weight.nbytes()) + 2.0 * static_cast<double>(rows * (n + k));
      EXPECT_GT(seconds, 0);
      figures()["products"][std::to_string(rows) + " rows, " + name] = {
          {"n", n}, {"k", k}, {"seconds", seconds}, {"share_of_copies", bytes / seconds / copies()}};
    }
}

// The shape of Llama 3 8B, with as many layers as fit into two thirds of the free memory.
Json config_of_8b(int64_t layers) {
  Json config = model::toy_config("llama", layers);
  if (!machine().real) return config;
  config.update({{"vocab_size", 128256},
                 {"hidden_size", 4096},
                 {"intermediate_size", 14336},
                 {"num_attention_heads", 32},
                 {"num_key_value_heads", 8},
                 {"head_dim", 128},
                 {"max_position_embeddings", 8192}});
  return config;
}

// Random weights are made on the machine, since 8 billion of them would take the host minutes.
std::shared_ptr<model::Decoder> random_8b() {
  model::DecoderConfig config;
  for (int64_t layers = machine().real ? 32 : 1; layers > 0; --layers) {
    config = model::parse_decoder_config(config_of_8b(layers), "a decoder of 8B");
    if (!machine().real || model::weight_bytes(config, at::kBFloat16) < free_bytes() * 2 / 3) break;
  }
  auto decoder = std::make_shared<model::Decoder>(model::Decoder{config, {}});
  for (const model::Parameter& p : list_parameters(decoder->weights, config))
    *p.tensor = p.shape.size() == 1 ? at::ones(p.shape, bf16()) : at::randn(p.shape, bf16()).mul_(0.02);
  decoder->config.dtype = at::kBFloat16;
  if (!machine().real) decoder->library = machine().library;
  join_projections(*decoder);
  return decoder;
}

// One pass that gives each of a batch's sequences a token, after `context` tokens.
double step_seconds(const model::Decoder& decoder, int64_t batch, int64_t context) {
  const std::vector<int32_t> text(static_cast<size_t>(context), 7), next(1, 9);
  std::vector<std::unique_ptr<model::KvCache>> caches;
  std::vector<model::SequencePart> parts;
  for (int64_t i = 0; i < batch; ++i) {
    caches.push_back(std::make_unique<model::KvCache>(decoder.config, machine().device, at::kBFloat16));
    const model::SequencePart prompt = {.cache = caches.back().get(), .tokens = text, .num_logits = 0};
    forward(decoder, {&prompt, 1});
    parts.push_back({.cache = caches.back().get(), .tokens = next, .num_logits = 1});
  }
  return seconds_of(machine().real ? 5 : 1, [&] {
    forward(decoder, parts);
    for (const auto& cache : caches) cache->truncate(context);
  });
}

// The sweeps of a block over a row of the vocabulary, which come after every pass of a round.
TEST(Speed, SamplingOfARow) {
  const int64_t vocab = machine().real ? 128256 : 200;
  for (const double temperature : {0.0, 1.0}) {
    const at::Tensor logits = at::randn({1, vocab}, bf16()).to(at::kFloat);
    kernels::SampleRow row = {};
    row.temperature = temperature, row.top_p = 1;
    const at::Tensor rows = at::from_blob(&row, {static_cast<int64_t>(sizeof row)}, at::kByte).to(machine().device),
                     tokens = at::empty({1}, at::TensorOptions(machine().device).dtype(at::kInt));
    const kernels::SamplePass pass = {.rows = static_cast<const kernels::SampleRow*>(rows.const_data_ptr()),
                                      .logits = logits.mutable_data_ptr<float>(),
                                      .tokens = tokens.mutable_data_ptr<int32_t>(),
                                      .choices = nullptr,
                                      .num_rows = 1,
                                      .vocab = static_cast<int32_t>(vocab)};
    const double seconds =
        seconds_of(machine().real ? 50 : 1, [&] { ASSERT_EQ(machine().library->sample(machine().index(), &pass), 0); });
    EXPECT_GT(seconds, 0);
    figures()["sample"][temperature == 0 ? "greedy" : "T 1"] = {{"vocab", vocab}, {"seconds", seconds}};
  }
}

TEST(Speed, StepsOfAnEightBillionShape) {
  const int64_t context = machine().real ? 512 : 10;
  const auto decoder = random_8b();
  const auto& config = decoder->config;
  const int64_t head_and_layers =
      model::weight_bytes(config, at::kBFloat16) - 2 * config.vocab_size * config.hidden_size;  // one row is looked up
  Json& told = figures()["steps"];
  told["layers"] = config.num_layers;
  told["copy_bytes_per_second"] = copies();
  for (const int64_t batch : machine().real ? std::vector<int64_t>{1, 16, 64} : std::vector<int64_t>{1, 2}) {
    const double seconds = step_seconds(*decoder, batch, context);
    const auto bytes =
        static_cast<double>(head_and_layers + batch * context * model::KvCache::bytes_per_token(config, at::kBFloat16));
    EXPECT_GT(seconds, 0);
    told["batch " + std::to_string(batch)] = {{"seconds", seconds},
                                              {"context", context},
                                              {"bytes", bytes},
                                              {"share_of_copies", bytes / seconds / copies()},
                                              {"tokens_per_second", static_cast<double>(batch) / seconds}};
  }
}

}  // namespace
}  // namespace specdec::gpu
