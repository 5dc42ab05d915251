// Times the host's part of a round (one step of drafting and verification on a GPU): planning, describing, uploading
// and committing. Between two rounds a GPU waits for this part. The kernels of this benchmark do nothing, and its
// device memory is host memory.
//
// Usage: round_host_bench [--layers N] [--draft-layers N] [--k K] [--context N] [--rounds N]
//
// Prints one JSON object with the median and the shortest time of a round in microseconds, for 1, 16 and 64 sequences.
// K is reduced if a round would otherwise have more rows than the kernels support.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <span>

#include "engine/decode/device/device_round.h"
#include "engine/decode/runners/model_runner.h"
#include "engine/decode/step.h"
#include "engine/kernels/cuda.h"
#include "tests/model/toy_decoders.h"

namespace specdec::decode {
namespace {

using kernels::CudaDtype;

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

int64_t flag(int argc, char** argv, const char* name, int64_t fallback) {
  for (int i = 1; i + 1 < argc; ++i)
    if (std::strcmp(argv[i], name) == 0) return std::atoll(argv[i + 1]);
  return fallback;
}

// Kernels that compute nothing and only write outcomes: half of the drafted tokens count as accepted.
const kernels::CudaLibrary& idle_library() {
  static const kernels::CudaLibrary library = [] {
    kernels::CudaLibrary idle = {};
    idle.error_text = [](int32_t) { return ""; };
    idle.rms_norm = [](CudaDtype, int32_t, const void*, const void*, float, int64_t, int64_t, void*) { return 0; };
    idle.gather_rows = [](CudaDtype, int32_t, const void*, const int32_t*, int64_t, int64_t, void*) { return 0; };
    idle.copy = [](int32_t, void* to, const void* from, int64_t bytes) {
      std::memcpy(to, from, static_cast<size_t>(bytes));
      return 0;
    };
    idle.synchronize = [](int32_t) { return 0; };
    idle.rows_product = [](CudaDtype, int32_t, const kernels::RowsProduct* product) {  // clears the logits of prefill
      for (int64_t row = 0; row < product->rows; ++row)
        std::memset(static_cast<uint16_t*>(product->out) + row * product->stride, 0,
                    static_cast<size_t>(product->n) * sizeof(uint16_t));
      return 0;
    };
    idle.prepare_heads = [](CudaDtype, int32_t, const kernels::PagedPass*, const kernels::PagedHeads*) { return 0; };
    idle.paged_attention = [](CudaDtype, int32_t, const kernels::PagedPass*, const kernels::PagedLayer*) { return 0; };
    idle.sample = [](int32_t, const kernels::SamplePass* pass) {
      std::fill_n(pass->tokens, pass->num_rows, 0);
      if (pass->choices) std::fill_n(pass->choices, pass->num_rows, 1);
      return 0;
    };
    idle.draft = [](int32_t, const kernels::DraftPass* pass) {
      for (const kernels::DraftRow& row : std::span(pass->rows, static_cast<size_t>(pass->num_rows)))
        for (int32_t node = row.first_child; node < row.first_child + row.width; ++node)
          pass->nodes[node].token = pass->tokens[node] = 0, pass->confidences[node] = 0.5f;
      return 0;
    };
    idle.verify = [](int32_t, const kernels::VerifyPass* pass) {
      for (int32_t i = 0; i < pass->num_tasks; ++i) {
        const int32_t accepted = pass->tasks[i].count / 2;
        pass->outcomes[i] = {accepted, 0, accepted - 1, 0, {}};
        for (int32_t node = 0; node < pass->tasks[i].count; ++node) pass->scores[pass->tasks[i].first + node] = {1, 1};
      }
      return 0;
    };
    idle.begin_capture = [](int32_t) { return 0; };
    idle.end_capture = [](int32_t, void** graph) {
      static int some = 0;
      *graph = &some;
      return 0;
    };
    idle.launch_graph = [](int32_t, void*) { return 0; };
    idle.free_graph = [](void*) {};
    return idle;
  }();
  return library;
}

std::shared_ptr<model::Decoder> idle_decoder(int64_t layers, int64_t positions) {
  Json config = model::toy_config("llama", layers);
  config["max_position_embeddings"] = positions;
  auto out = std::make_shared<model::Decoder>(model::toy_decoder(config));
  out->weights.visit(out->config, [](const std::string&, at::Tensor& tensor) { tensor = tensor.to(at::kBFloat16); });
  out->config.dtype = at::kBFloat16;
  out->library = &idle_library();
  return out;
}

Json run(int argc, char** argv) {
  const int64_t context = flag(argc, argv, "--context", 2048), rounds = flag(argc, argv, "--rounds", 300),
                most = flag(argc, argv, "--k", 4), positions = context + (rounds + 2) * (most + 1);
  const auto target = idle_decoder(flag(argc, argv, "--layers", 32), positions),
             draft = idle_decoder(flag(argc, argv, "--draft-layers", 16), positions);
  Json out = {{"schema", "specdec.bench-round-host/1"}, {"context", context}};
  for (const int64_t batch : {1, 16, 64}) {
    const int64_t k = std::min(most, kernels::kMaxProductRows / batch - 1);
    const auto target_runner = with_rounds(make_model_runner(target)), draft_runner = make_model_runner(draft);
    Stepper stepper(*target_runner, draft_runner.get());
    Drafting drafting;
    drafting.model.emplace().fixed_k = static_cast<int>(k);
    std::vector<std::unique_ptr<Sequence>> sequences;
    std::vector<Sequence*> all;
    for (int64_t i = 0; i < batch; ++i) {
      Request request{{}, static_cast<uint64_t>(i), {.max_tokens = rounds * (k + 1), .sampling = {.temperature = 1}}};
      for (int64_t at = 0; at < context; ++at) request.prompt.push_back(static_cast<int32_t>((at * 7 + i) % 61));
      sequences.push_back(std::make_unique<Sequence>(stepper, request, drafting));
      stepper.start(*sequences.back());
      all.push_back(sequences.back().get());
    }
    std::vector<double> times;
    for (int64_t i = 0; i < rounds; ++i) {
      const double begin = now();
      stepper.step(all);
      times.push_back((now() - begin) * 1e6);
    }
    std::sort(times.begin(), times.end());
    out["batch_" + std::to_string(batch)] = {
        {"k", k}, {"median_microseconds", times[times.size() / 2]}, {"least_microseconds", times.front()}};
  }
  return out;
}

}  // namespace
}  // namespace specdec::decode

int main(int argc, char** argv) {
  std::printf("%s\n", specdec::decode::run(argc, argv).dump(1).c_str());
  return 0;
}
