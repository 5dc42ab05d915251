// Counts what a round asks of a GPU: launches of kernels, LibTorch's operations, copies and waits. Forecasts of speed
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

// Operations of LibTorch that start nothing on a device: they make tensors and views, or contain others of this list.
const std::set<std::string> kStartNothing = {
    "aten::empty",         "aten::narrow",           "aten::slice",      "aten::view",      "aten::to", "aten::select",
    "aten::empty_strided", "aten::split_with_sizes", "aten::as_strided", "aten::empty_like"};

std::map<std::string, int>& operations() {
  static std::map<std::string, int> all;
  return all;
}

// Counts the operations of LibTorch while it lives.
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
  int64_t graphs;  // that were launched or captured
  int64_t copies;  // of the CUDA library
  std::map<std::string, int> operations;
};

// Counts the second round of `batch` sequences that draft k tokens each.
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
      // Of each pass the embedding, the last norm, the head and the drawing; and the scores and the verification. All
      // of a pass but the drawing is one graph.
      EXPECT_EQ(counts.launches, k * (9 * 2 + 4) + (9 * 3 + 4) + 2) << "batch " << batch << ", K " << k;
      EXPECT_EQ(counts.graphs, k + 1) << "batch " << batch << ", K " << k;
    }
}

TEST(RoundCosts, OneUploadOneCopyBackAndTwoOperationsAPass) {
  for (const int batch : {1, 4})
    for (const int k : {1, 3}) {
      const Counts counts = round_of(1, 1, batch, k);
      // A pass copies its input to the graph's and the graph's logits to fp32 rows.
      std::map<std::string, int> expected = {{"aten::copy_", 2 * (k + 1) + 1}};
      std::map<std::string, int> found = counts.operations;
      // The draft's first pass reads one or two tokens of each text; where some have two, it picks the rows to score.
      EXPECT_LE(found["aten::index_select"], 1);
      found.erase("aten::index_select");
      EXPECT_EQ(found, expected) << "batch " << batch << ", K " << k;
      EXPECT_EQ(counts.copies, 1) << "batch " << batch << ", K " << k;
    }
}

}  // namespace
}  // namespace specdec::decode
