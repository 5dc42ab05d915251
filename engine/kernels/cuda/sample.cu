// Turns rows of logits into the distributions that tokens are drawn from, with one block of threads per row.
#include <ptx.h>

#include "engine/kernels/cuda/distribution.h"
#include "engine/kernels/cuda/launch.h"

namespace specdec::kernels::cuda {

namespace {

__global__ void __launch_bounds__(kMaxSweepThreads, 1) sample_rows(SamplePass pass) {
  __shared__ SampleMemory memory;
  NoChoices none;
  Team team(memory.team, none);
  const SampleRow options = pass.rows[blockIdx.x];
  if (options.left_alone != 0) return;
  float* row = pass.logits + static_cast<int64_t>(blockIdx.x) * pass.vocab;
  const Likeliest best = likeliest(team, memory, row, pass.vocab);
  const bool draws = best.token >= 0 && options.temperature != 0;
  if (draws) distribute(team, memory, options, row, pass.vocab, best);
  double likely = 1;
  if (pass.choices && draws)  // scaled, because team.sum() needs sums below 4
    likely = team.sum(pass.vocab, [&](int i) { return row[i] >= rules::kLeastDrawn ? 0x1p-20 : 0.0; }) * 0x1p20;
  if (threadIdx.x != 0) return;
  pass.tokens[blockIdx.x] = best.token;
  if (pass.choices) pass.choices[blockIdx.x] = likely > 1 ? static_cast<int32_t>(likely) : 1;
}

}  // namespace

int launch_sample(const SamplePass& pass, unsigned threads, Stream stream) {
  if (pass.num_rows == 0) return 0;
  if (threads == 0 || threads % 32 != 0 || threads > kMaxSweepThreads) return static_cast<int>(cudaErrorInvalidValue);
  return launch(stream, dim3(static_cast<unsigned>(pass.num_rows)), threads, 0, sample_rows, pass);
}

}  // namespace specdec::kernels::cuda
