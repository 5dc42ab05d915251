// Times decode passes over cached sequences with a random model. By default it has 97 million parameters, which exceeds
// CPU caches in every dtype.
//
// Usage: decode_bench [--layers N] [--hidden N] [--intermediate N] [--heads N] [--kv-heads N] [--head-dim N]
//   [--vocab N] [--context N] [--threads N] [--seconds S (per figure)]
//
// Prints one JSON object. For each dtype it has the microseconds of a pass with 1 to 16 rows, each also divided by the
// time of a pass with one row, the tokens/s of plain decoding, and the read bandwidth, which limits a pass with one
// row. Passes and reads alternate. Each time is the shortest of all repetitions, because other processes only add time.
#include <ATen/Parallel.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "base/json.h"
#include "engine/forward/forward.h"
#include "engine/forward/memory_plan.h"
#include "engine/kernels/cpu/cpu.h"
#include "engine/kernels/team.h"
#include "engine/kernels/tensor_block.h"

namespace specdec {
namespace {

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

int64_t flag(int argc, char** argv, const char* name, int64_t fallback) {
  for (int i = 1; i + 1 < argc; ++i) {
    if (std::strcmp(argv[i], name) == 0) return std::atoll(argv[i + 1]);
  }
  return fallback;
}

struct Setting {
  int rows;
  double best = 1e9;
};

typedef int32_t Vector __attribute__((vector_size(16), aligned(4)));

// Reads all values and returns their exclusive or. Eight independent accumulators hide the latency of the exclusive or,
// so that only memory limits the speed. Even the machines with the fewest vector registers have enough registers for
// eight.
int32_t read_all(const int32_t* data, int64_t count) {
  Vector folded[8] = {};
  for (int64_t i = 0; i + 32 <= count; i += 32) {
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) folded[j] ^= *reinterpret_cast<const Vector*>(data + i + 4 * j);
  }
  int32_t all = 0;
#pragma GCC unroll 8
  for (int j = 0; j < 8; ++j) all ^= folded[j][0] ^ folded[j][1] ^ folded[j][2] ^ folded[j][3];
  return all;
}

// Returns the seconds that `threads` threads take to read `memory` (int32) once: the shortest of five measurements.
double read_seconds(const at::Tensor& memory, int threads) {
  const int32_t* data = memory.const_data_ptr<int32_t>();
  double best = 1e9;
  for (int round = 0; round < 5; ++round) {
    std::vector<int32_t> found(static_cast<size_t>(16 * threads));
    const double start = now();
    kernels::run_team(threads, [&](const kernels::Member& member) {
      const auto [begin, end] = member.part(memory.numel(), 256);
      found[static_cast<size_t>(16 * member.id)] = read_all(data + begin, end - begin);
    });
    best = std::min(best, now() - start);
    if (found[0] == 12345) std::abort();  // keeps the compiler from removing the loop
  }
  return best;
}

Json measure(const model::DecoderConfig& config, at::ScalarType dtype, int64_t context, double seconds) {
  model::Decoder decoder = model::random_decoder(config, 1, at::kCPU, dtype);
  model::pack_matrices(decoder);  // as load_for_decoding() does
  model::KvCache cache(config, at::kCPU, decoder.config.dtype);
  std::vector<int32_t> ids(static_cast<size_t>(context + 16));
  for (size_t i = 0; i < ids.size(); ++i)
    ids[i] = static_cast<int32_t>(i * 37 % static_cast<size_t>(config.vocab_size));
  const auto pass = [&](int64_t from, int64_t count, int64_t logits) {
    const model::SequencePart part{
        .cache = &cache,
        .tokens = std::span(ids).subspan(static_cast<size_t>(from), static_cast<size_t>(count)),
        .num_logits = logits};
    model::forward(decoder, std::span(&part, 1));
  };
  pass(0, context, 0);
  // Counts the bytes that a pass reads: every matrix once. If the embedding is not also lm_head, only one row of it is
  // read per token.
  const at::Tensor& embed = decoder.weights.embed;
  const int64_t bytes = model::weight_bytes(config, dtype) -
                        (embed.is_same(decoder.weights.lm_head) ? 0 : static_cast<int64_t>(embed.nbytes()));
  model::TensorBlock block(static_cast<size_t>(bytes) + 64);  // in pages of the same size as those of the weights
  const at::Tensor memory = block.take({bytes / 4}, at::kInt).fill_(1);
  double read = 1e9;
  std::vector<Setting> settings;
  for (const int rows : {1, 2, 3, 4, 5, 8, 16}) settings.push_back({rows});
  for (const double start = now(); now() - start < seconds * static_cast<double>(settings.size());) {
    read = std::min(read, read_seconds(memory, at::get_num_threads()));
    for (Setting& s : settings) {
      for (int i = 0; i < 3; ++i) {
        const double begin = now();
        pass(context, s.rows, s.rows);
        s.best = std::min(s.best, now() - begin);
        cache.truncate(context);
      }
    }
  }
  Json rows = Json::array();
  for (const Setting& setting : settings) {
    rows.push_back({{"rows", setting.rows},
                    {"microseconds", setting.best * 1e6},
                    {"verify_cost", setting.best / settings[0].best},
                    {"rows_per_second", setting.rows / setting.best}});
  }
  return {{"dtype", model::dtype_flag(dtype)},
          {"passes", rows},
          {"decode_tokens_per_second", 1 / settings[0].best},
          {"weight_bytes", bytes},
          {"read_gigabytes_per_second", static_cast<double>(bytes) / read / 1e9},
          {"read_limit_microseconds", read * 1e6},
          {"share_of_read_bandwidth", read / settings[0].best}};
}

}  // namespace
}  // namespace specdec

int main(int argc, char** argv) {
  using namespace specdec;
  const auto number = [&](const char* name, int64_t fallback) { return flag(argc, argv, name, fallback); };
  at::set_num_threads(static_cast<int>(number("--threads", 1)));
  model::DecoderConfig config;
  config.model_type = "llama";
  config.num_layers = number("--layers", 12);
  config.hidden_size = number("--hidden", 768);
  config.intermediate_size = number("--intermediate", 2048);
  config.num_heads = number("--heads", 12);
  config.num_kv_heads = number("--kv-heads", config.num_heads);
  config.head_dim = number("--head-dim", config.hidden_size / config.num_heads);
  config.vocab_size = number("--vocab", 8192);
  config.layers.resize(static_cast<size_t>(config.num_layers));
  const int64_t context = number("--context", 200);
  const double seconds = static_cast<double>(number("--seconds", 1));
  Json out = {{"model", model::to_json(config)},
              {"context", context},
              {"threads", at::get_num_threads()},
              {"instruction_set", kernels::cpu::kernels<float>().name}};
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kChar})
    out["dtypes"].push_back(measure(config, dtype, context, seconds));
  std::printf("%s\n", out.dump(2).c_str());
  return 0;
}
