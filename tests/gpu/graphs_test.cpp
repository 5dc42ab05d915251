// Compares passes that run as CUDA graphs with the same passes launched kernel by kernel.
#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "engine/forward/forward_cuda.h"
#include "engine/forward/pass_graphs.h"
#include "tests/gpu/machine.h"
#include "tests/model/toy_batch.h"
#include "tests/model/toy_decoders.h"

namespace specdec::gpu {
namespace {

using model::Batch;
using model::Text;

// Returns the logits of a pass, followed by the hidden states that it reports at layers 0 and 1. The pass is not
// committed, so it can run again.
at::Tensor logits(const model::Decoder& decoder, const Batch& batch, model::PassGraphs* graphs) {
  model::CudaPass pass(decoder);
  for (const model::SequencePart& part : batch.parts()) model::add_part(part, part.num_logits, pass);
  model::DeviceUpload upload(decoder.weights.embed.device());
  pass.describe(upload, graphs);
  upload.send();
  std::vector<at::Tensor> seen;
  const auto observer = [&](int64_t, const at::Tensor& hidden) { seen.push_back(hidden.clone()); };
  at::Tensor out = pass.run(upload, observer, {0, 1}).clone();
  for (const at::Tensor& hidden : seen) out = at::cat({out.flatten(), hidden.flatten()});
  EXPECT_EQ(seen.size(), 2u);
  return out.to(at::kCPU, at::kFloat);
}

// Runs different texts in turn. Graphs share memory, so each graph finds the values that other graphs left there.
TEST(Graphs, GiveTheBitsOfSinglePasses) {
  Json windows = model::toy_config("mistral", 2);
  windows["sliding_window"] = 20;
  const std::vector<std::vector<Text>> passes = {model::kTexts,           {{9, 1, 1}},   {{200, 1, 1}, {3, 1, 1}},
                                                 {{7, 1, 1}, {64, 1, 1}}, {{5, 13, 13}}, {{0, 60, 1}, {1, 41, 2}}};
  for (const auto& [config, dtype] :
       {std::pair(model::toy_config("llama", 2), at::kChar), std::pair(windows, at::kHalf)}) {
    const auto decoder = on_machine(model::toy_decoder(config), dtype);
    model::PassGraphs graphs(*decoder);
    for (const std::vector<Text>& texts : {passes[0], passes[1], passes[2], passes[4], passes[1], passes[3], passes[0],
                                           passes[5], passes[2], passes[4], passes[0], passes[5]}) {
      const Batch batch(*decoder, texts);
      const at::Tensor alone = logits(*decoder, batch, nullptr);
      EXPECT_TRUE(at::equal(logits(*decoder, batch, &graphs), alone));
    }
    // Each of the six passes has its own graph. The passes of 15 and of 13 rows are both padded to 16 rows, but
    // attention splits their cached keys into different numbers of parts. The same holds for the two passes of two
    // rows.
    EXPECT_EQ(graphs.captured(), 6);
  }
}

TEST(Graphs, TheOneThatWasNotUsedForLongestMakesRoom) {
  const auto decoder = on_machine(model::toy_decoder(model::toy_config("llama", 1)), at::kBFloat16);
  model::PassGraphs graphs(*decoder, model::PassGraphs::kInputBytes, /*most=*/2);
  const Batch one(*decoder, {{9, 1, 1}}), two(*decoder, {{9, 2, 2}}), three(*decoder, {{9, 3, 3}});
  const auto captures = [&](const Batch& batch) {
    const int64_t before = model::PassGraphs::captures();
    EXPECT_TRUE(at::equal(logits(*decoder, batch, &graphs), logits(*decoder, batch, nullptr)));
    EXPECT_LE(graphs.captured(), 2);
    return model::PassGraphs::captures() - before;
  };
  EXPECT_EQ(captures(one) + captures(two), 2);
  EXPECT_EQ(captures(one), 0);
  EXPECT_EQ(captures(three), 1) << "in the place of two";
  EXPECT_EQ(captures(one), 0);
  EXPECT_EQ(captures(two), 1);
}

// A pass with more blocks of the KV cache than the graphs' input memory holds makes this memory grow. All graphs are
// then captured again.
TEST(Graphs, AreCapturedAgainWhenTheirInputGrows) {
  const auto decoder = on_machine(model::toy_decoder(model::toy_config("llama", 1)), at::kBFloat16);
  model::PassGraphs graphs(*decoder, /*input_bytes=*/4096);
  const Batch small(*decoder, {{9, 1, 1}}), large(*decoder, {{20, 60, 60}});
  const at::Tensor alone = logits(*decoder, small, nullptr);
  EXPECT_TRUE(at::equal(logits(*decoder, small, &graphs), alone));
  EXPECT_EQ(graphs.captured(), 1);
  EXPECT_TRUE(at::equal(logits(*decoder, large, &graphs), logits(*decoder, large, nullptr)));
  EXPECT_EQ(graphs.captured(), 1);
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(at::equal(logits(*decoder, small, &graphs), alone));
  EXPECT_EQ(graphs.captured(), 2);
}

}  // namespace
}  // namespace specdec::gpu
