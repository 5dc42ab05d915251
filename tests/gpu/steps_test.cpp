// Measures single forward passes of an 8B target and of 1B drafts, of which speculative steps on the device (rounds)
// consist. The passes run as CUDA graphs, as in rounds. One pass also runs as single launches, to show how much time
// graphs save.
#include <gtest/gtest.h>

#include "tests/gpu/report.h"
#include "tests/gpu/speed.h"

namespace specdec::gpu {
namespace {

double measure(const std::string& name, const model::Decoder& decoder, int64_t sequences, bool graph = true) {
  const PassSize size = {sequences, machine().real ? 512 : 10, 1};
  const double seconds = pass_seconds(decoder, size, graph), bytes = bytes_of(decoder, size);
  EXPECT_GT(seconds, 0);
  record("steps", name + ", batch " + std::to_string(sequences) + (graph ? "" : ", without graphs"),
         {{"layers", decoder.config.num_layers},
          {"context", size.context},
          {"seconds", seconds},
          {"bytes", bytes},
          {"share_of_copies", bytes / seconds / copy_bytes_per_second()},
          {"tokens_per_second", static_cast<double>(sequences) / seconds}});
  return seconds;
}

TEST(Speed, Steps) {
  const std::vector<int64_t> batches = machine().real ? std::vector<int64_t>{1, 16, 64} : std::vector<int64_t>{1, 2};
  record("copies", "bytes_per_second", copy_bytes_per_second());
  std::vector<double> target;
  {
    const auto decoder = random_decoder(Shape::k8b);
    for (const int64_t batch : batches) target.push_back(measure("8B bf16", *decoder, batch));
    measure("8B bf16", *decoder, 1, /*graph=*/false);
  }
  const auto draft = random_decoder(Shape::k1b);
  for (const auto& [name, decoder] : {std::pair("1B bf16", draft), std::pair("1B int8", in_int8(*draft))})
    for (size_t i = 0; i < batches.size(); ++i)
      record("draft_over_target", std::string(name) + ", batch " + std::to_string(batches[i]),
             measure(name, *decoder, batches[i]) / target[i]);
}

}  // namespace
}  // namespace specdec::gpu
