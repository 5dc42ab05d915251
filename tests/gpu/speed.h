// Code that the tests of speed share: clocks, the bandwidth of copies, and decoders with the shapes of real models.
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

// Returns the seconds of one call of run(i), the median of seven rounds of `calls` calls each. `i` counts the calls of
// all rounds, so each call can use other memory. before_round() is not timed.
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
    if (round > 0) rounds.push_back((clock.seconds() - start) / calls);  // round 0 only loads the kernels
  }
  return median(std::move(rounds));
}
template <class Run>
double seconds_of(int calls, const Run& run) {
  return seconds_of(calls, run, [] {});
}

// Returns the sum of bytes read and bytes written per second by copies on the machine's device.
double copy_bytes_per_second();

// Returns the bytes of free memory on the machine's device.
int64_t free_bytes();

inline at::TensorOptions bf16() { return at::TensorOptions().dtype(at::kBFloat16).device(machine().device); }

// The shapes of Llama 3's 8B and 1B models. On fibers both are toy models with more than one layer.
enum class Shape { k8b, k1b };
// Returns a decoder with random bf16 weights, drawn on the device, because the host would need minutes for billions of
// them. An 8B decoder gets only as many layers as fit into two thirds of the free memory.
std::shared_ptr<model::Decoder> random_decoder(Shape shape);
// Returns the same decoder with int8 products.
std::shared_ptr<model::Decoder> in_int8(const model::Decoder& decoder);

// The size of a measured pass: the number of sequences, cached tokens per sequence, and new tokens per sequence.
struct PassSize {
  int64_t sequences, context, tokens_each;
};
// Returns the least bytes that a pass of this size reads: the matrices and the cached keys and values.
double bytes_of(const model::Decoder& decoder, const PassSize& size);
// Returns the seconds of a pass on the machine's device. Passes follow each other without a wait, as CUDA graphs or as
// single launches.
double pass_seconds(const model::Decoder& decoder, const PassSize& size, bool graph);

}  // namespace specdec::gpu
