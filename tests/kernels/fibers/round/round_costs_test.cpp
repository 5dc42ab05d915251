// Counts what a round asks of a GPU: kernel launches, LibTorch operations, copies and waits. Forecasts of speed
// (tests/bench/cuda_forecast.py) use these numbers.
#include <ATen/record_function.h>
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>

#include "engine/decode/device/device_round.h"
#include "engine/decode/runners/model_runner.h"
#include "engine/decode/step.h"
#include "tests/kernels/fibers/fibers.h"
#include "tests/kernels/fibers/model/toy_decoders.h"

namespace specdec::decode {
namespace {

// LibTorch operations that start no work on a device: they make tensors and views, or only call other operations.
const std::set<std::string> kStartNothing = {
    "aten::empty",         "aten::narrow",           "aten::slice",      "aten::view",      "aten::to", "aten::select",
    "aten::empty_strided", "aten::split_with_sizes", "aten::as_strided", "aten::empty_like"};

std::map<std::string, int>& operations() {
  static std::map<std::string, int> all;
  return all;
}

// Counts the LibTorch operations and kernel launches during its lifetime.
class Counted {
 public:
  Counted() {
    operations().clear();
    fibers::settings().launches = 0;
    handle_ = at::addGlobalCallback(
        at::RecordFunctionCallback([](const at::RecordFunction& f) -> std::unique_ptr<at::ObserverContext> {
          if (!kStartNothing.contains(f.name())) ++operations()[f.name()];
          return nullptr;
        }).scopes({at::RecordScope::FUNCTION}));
  }
  ~Counted() { at::removeCallback(handle_); }
  int64_t launches() const { return fibers::settings().launches; }

 private:
  at::CallbackHandle handle_;
};

struct Counts {
  int64_t launches;
  int64_t graphs;  // launched or captured
  int64_t copies;  // calls of CudaLibrary::copy()
  std::map<std::string, int> operations;
};

// Returns the counts of the second round of `batch` sequences that draft k tokens each.
Counts round_of(int64_t target_layers, int64_t draft_layers, int batch, int k) {
  const auto decoder = [](int64_t layers) {
    auto made = on_fibers(model::toy_decoder(model::toy_config("llama", layers)), at::kBFloat16);
    join_projections(*made);
    return made;
  };
  const auto target = with_rounds(make_model_runner(decoder(target_layers)));
  const auto draft = make_model_runner(decoder(draft_layers));
  Stepper stepper(*target, draft.get());
  Drafting drafting;
  drafting.model.emplace();
  drafting.model->fixed_k = k;
  std::vector<std::unique_ptr<Sequence>> sequences;
  std::vector<Sequence*> steps;
  for (int i = 0; i < batch; ++i) {
    const Request request{{1, 2, 3 + i}, static_cast<uint64_t>(i), {.max_tokens = 40, .sampling = {.temperature = 1}}};
    sequences.push_back(std::make_unique<Sequence>(stepper, request, drafting));
    stepper.start(*sequences.back());
    steps.push_back(sequences.back().get());
  }
  stepper.step(steps);
  const Counted counted;
  const fibers::GraphCounts before = fibers::graph_counts();
  stepper.step(steps);
  const fibers::GraphCounts& after = fibers::graph_counts();
  return {.launches = counted.launches(),
          .graphs = after.launched - before.launched + after.captured - before.captured,
          .copies = after.copies - before.copies,
          .operations = operations()};
}

TEST(RoundCosts, FourLaunchesAPassBesideNineALayer) {
  for (const int batch : {1, 4})
    for (const int k : {1, 3}) {
      const Counts counts = round_of(3, 2, batch, k);
      // Besides nine per layer, each pass launches four kernels: embedding, last norm, head and the drawing of tokens.
      // A round launches two more, for scores and verification. All kernels of a pass but the drawing are one graph.
      EXPECT_EQ(counts.launches, k * (9 * 2 + 4) + (9 * 3 + 4) + 2) << "batch " << batch << ", K " << k;
      EXPECT_EQ(counts.graphs, k + 1) << "batch " << batch << ", K " << k;
    }
}

TEST(RoundCosts, OneUploadOneCopyBackAndTwoOperationsAPass) {
  for (const int batch : {1, 4})
    for (const int k : {1, 3}) {
      const Counts counts = round_of(1, 1, batch, k);
      // Each pass makes two copies: its input to the graph's input, and the graph's logits to fp32 rows.
      std::map<std::string, int> expected = {{"aten::copy_", 2 * (k + 1) + 1}};
      std::map<std::string, int> found = counts.operations;
      // The draft's first pass reads one or two tokens per sequence. If some have two, index_select picks the rows to
      // score.
      EXPECT_LE(found["aten::index_select"], 1);
      found.erase("aten::index_select");
      EXPECT_EQ(found, expected) << "batch " << batch << ", K " << k;
      EXPECT_EQ(counts.copies, 1) << "batch " << batch << ", K " << k;
    }
}

}  // namespace
}  // namespace specdec::decode
