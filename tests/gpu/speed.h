// What the tests of speed share: clocks, the bandwidth of copies, and decoders of the shapes that people serve.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "engine/weights/weights.h"
#include "tests/gpu/machine.h"

namespace specdec::gpu {

double median(std::vector<double> values);

// Returns the seconds of one call of run(i), the median of some rounds of `calls` calls each. i counts all calls, so
// that each of them can take other memory; before_round() is called outside of the time.
template <class Run, class Before>
double seconds_of(int calls, const Run& run, const Before& before_round) {
  constexpr int kRounds = 7;
  const SystemClock clock;
  std::vector<double> rounds;
  int64_t i = 0;
  for (int round = 0; round <= kRounds; ++round) {
    before_round();
    machine().wait();
    const double start = clock.seconds();
    for (int call = 0; call < calls; ++call) run(i++);
    machine().wait();
    if (round > 0) rounds.push_back((clock.seconds() - start) / calls);  // the first one loads the kernels
  }
  return median(std::move(rounds));
}
template <class Run>
double seconds_of(int calls, const Run& run) {
  return seconds_of(calls, run, [] {});
}

// Returns the bytes per second that copies on the machine read and write.
double copy_bytes_per_second();

// Returns the free bytes of the machine.
int64_t free_bytes();

inline at::TensorOptions bf16() { return at::TensorOptions().dtype(at::kBFloat16).device(machine().device); }

// The shapes of Llama 3's models of 8B and 1B. On fibers they are toys with more than one layer.
enum class Shape { k8b, k1b };
// Returns a decoder with random weights in bf16, made on the machine, since billions of them would take the host
// minutes. One of 8B has as many layers as fit into two thirds of the free memory.
std::shared_ptr<model::Decoder> random_decoder(Shape shape);
// Returns the same decoder with int8 products.
std::shared_ptr<model::Decoder> in_int8(const model::Decoder& decoder);

// How a pass is measured: so many sequences, each with a context in its cache, and as many new tokens for each.
struct PassSize {
  int64_t sequences, context, tokens_each;
};
// Returns the bytes that such a pass of a decoder reads at least: the matrices and the cached keys and values.
double bytes_of(const model::Decoder& decoder, const PassSize& size);
// Returns the seconds of a pass on the machine, one after the other without a wait between them, as a graph or as
// single launches.
double pass_seconds(const model::Decoder& decoder, const PassSize& size, bool graph);

}  // namespace specdec::gpu
