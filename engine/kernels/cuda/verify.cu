// Verifies the drafted tokens of several sequences on the device, with one block per sequence. The random numbers are
// the same as on the host's path.
#include <ptx.h>

#include <cmath>

#include "base/philox.h"
#include "engine/kernels/cuda/launch.h"
#include "engine/kernels/cuda/verify_task.h"

namespace specdec::kernels::cuda {

namespace {

// Draws random numbers from Philox as decode/sampling/randomness.h does: one stream with a cursor per purpose, and one
// stream per position. Every thread computes the same numbers.
class SeededChoices {
 public:
  __device__ SeededChoices(const VerifyTask& task)
      : seed_(task.seed), accept_(task.cursors[1]), residual_(task.cursors[2]), target_(task.cursors[3]) {}

  template <class Team>
  __device__ bool accept(Team&, rules::Purpose purpose, double probability) {
    return uniform(purpose) < probability;
  }
  template <class Team>
  __device__ int32_t draw(Team& team, rules::Purpose purpose, int n, const float* weights) {
    return team.find(n, weights, uniform(purpose));
  }
  // Returns the id x with the smallest E / weights[x], where E is exponential noise that depends on (position, x).
  template <class Team>
  __device__ int32_t draw_at(Team& team, int64_t position, int n, const float* weights) {
    const uint64_t stream = kFirstPosition + static_cast<uint64_t>(position);
    return team.least(n, [&](int x) {
      const double w = static_cast<double>(weights[x]);
      return w > 0 ? -log(philox_uniform(seed_, stream, static_cast<uint64_t>(x))) / w : -1.0;
    });
  }
  __device__ void store(VerifyOutcome& out) const {
    out.cursors[1] = accept_, out.cursors[2] = residual_, out.cursors[3] = target_;
  }

 private:
  static constexpr uint64_t kFirstPosition = 4;  // the streams before it belong to the purposes
  __device__ double uniform(rules::Purpose purpose) {
    const bool accepts = purpose == rules::Purpose::kAccept, draws = purpose == rules::Purpose::kResidual;
    const uint64_t index = accepts ? accept_ : draws ? residual_ : target_;
    (accepts ? accept_ : draws ? residual_ : target_) += 1;
    return philox_uniform(seed_, static_cast<uint64_t>(purpose), index);
  }
  uint64_t seed_, accept_, residual_, target_;
};

struct NoChoices {};

// Computes the overlap and the acceptance probability of each drafted node, with one block per node.
__global__ void __launch_bounds__(kMaxVerifyThreads) score_nodes(VerifyPass pass) {
  __shared__ TeamMemory memory;
  const VerifyNode node = pass.nodes[blockIdx.x];
  if (node.token < 0 || node.q_row < 0 || node.p_row < 0) return;
  NoChoices none;
  BlockTeam<NoChoices> team(memory, none);
  const float* const p = pass.p + static_cast<int64_t>(node.p_row) * pass.vocab;
  const float* const q = pass.q + static_cast<int64_t>(node.q_row) * pass.vocab;
  const double overlap = team.sum(pass.vocab, [&](int x) { return static_cast<double>(fminf(p[x], q[x])); });
  if (threadIdx.x != 0) return;
  const double ratio = static_cast<double>(p[node.token]) / static_cast<double>(q[node.token]);
  pass.scores[blockIdx.x] = {overlap, ratio < 1.0 ? ratio : 1.0};
}

__global__ void __launch_bounds__(kMaxVerifyThreads, 1) verify_tasks(VerifyPass pass) {
  __shared__ TaskMemory memory;
  const int number = static_cast<int>(blockIdx.x);
  SeededChoices choices(pass.tasks[number]);
  run_task(pass, number, memory, choices);
  if (threadIdx.x == 0) {
    pass.outcomes[number].cursors[0] = pass.tasks[number].cursors[0];
    choices.store(pass.outcomes[number]);
  }
}

}  // namespace

int launch_verify(const VerifyPass& pass, unsigned threads, Stream stream) {
  if (pass.num_tasks == 0) return 0;
  if (threads == 0 || threads % 32 != 0 || threads > kMaxVerifyThreads) return static_cast<int>(cudaErrorInvalidValue);
  if (pass.scores && pass.num_nodes > 0) {  // this comes first, because verification changes the rows of p and q
    const dim3 nodes(static_cast<unsigned>(pass.num_nodes));
    if (const int code = launch(stream, nodes, threads, 0, score_nodes, pass)) return code;
  }
  return launch(stream, dim3(static_cast<unsigned>(pass.num_tasks)), threads, 0, verify_tasks, pass);
}

}  // namespace specdec::kernels::cuda
