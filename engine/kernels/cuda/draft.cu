// Draws the draft tokens of one level (one depth of a chain or tree) for all sequences, with one block of threads per
// row of logits. The random numbers are the same as on the host's path.
#include <ptx.h>

#include "base/philox.h"
#include "engine/kernels/cuda/distribution.h"
#include "engine/kernels/cuda/launch.h"

namespace specdec::kernels::cuda {

namespace {

struct DraftMemory {
  SampleMemory sample;
  float taken[kMaxVerifyNodes];  // probabilities of the children that were drawn already
};

__device__ bool is_drafted(const DraftPass& pass, int32_t node) { return node < 0 || pass.nodes[node].token >= 0; }

// Writes the token of a child node. Only one thread calls this.
__device__ void put(const DraftPass& pass, const DraftRow& row, int32_t child, int32_t token, float confidence) {
  const int32_t node = row.first_child + child;
  pass.nodes[node].token = pass.tokens[node] = token;
  pass.confidences[node] = confidence;
  const int32_t id = token < 0 ? 0 : token;  // an index into tables for later kernels, so never negative
  if (row.target_ids) row.target_ids[child] = id;
  if (row.next_ids) row.next_ids[child] = id;
}

// Drafts the children of one node of a greedy tree: the likeliest tokens of the row, each of which is then set to -inf
// in the row. Nothing reads the row afterwards. Returns the number of children written.
__device__ int32_t take_likeliest(const DraftPass& pass, const DraftRow& row, Team& team, DraftMemory& memory,
                                  float* values) {
  for (int32_t child = 0; child < row.width; ++child) {
    const int32_t token = likeliest(team, memory.sample, values, pass.vocab).token;
    if (token < 0 && child > 0) return child;
    team.once([&] {
      put(pass, row, child, token, 0);
      if (token >= 0) values[token] = -INFINITY;
    });
    if (token < 0) return 1;
  }
  return row.width;
}

// Returns how many tokens the sequence has drawn in this round before `row`: all of earlier levels, and those of
// earlier rows of this level. The host draws in the same order.
__device__ uint64_t drawn_before(const DraftPass& pass, const DraftRow& row) {
  uint64_t count = 0;
  for (int32_t node = row.root; node < row.level_begin; ++node) count += pass.nodes[node].token >= 0 ? 1 : 0;
  for (int32_t before = 1; before <= row.rows_before; ++before) {
    const int other = static_cast<int>(blockIdx.x) - before;
    if (is_drafted(pass, pass.rows[other].parent))
      count += row.width > 1 ? static_cast<uint64_t>(min(row.width, pass.choices[other])) : 1;
  }
  return count;
}

// Draws the children of a node from the distribution in the row. A drawn token's probability is set to 0 before the
// next draw; at the end all are restored, because verification reads the row. Returns the number of children written.
__device__ int32_t draw_children(const DraftPass& pass, const DraftRow& row, Team& team, DraftMemory& memory,
                                 float* values) {
  const int32_t most = row.width > 1 ? min(row.width, pass.choices[blockIdx.x]) : 1;
  const uint64_t cursor = row.likeliest != 0 ? 0 : row.cursor + drawn_before(pass, row);
  for (int32_t child = 0; child < most; ++child) {
    const int32_t token = row.likeliest != 0
                              ? likeliest(team, memory.sample, values, pass.vocab).token
                              : team.find(pass.vocab, values,
                                          philox_uniform(row.seed, static_cast<uint64_t>(rules::Purpose::kDraft),
                                                         cursor + static_cast<uint64_t>(child)));
    team.once([&] {
      memory.taken[child] = token >= 0 ? values[token] : 0.0f;
      put(pass, row, child, token, memory.taken[child]);
      if (token >= 0 && most > 1) values[token] = 0;
    });
    if (token < 0) return child + 1;
  }
  if (most > 1)
    team.once([&] {
      for (int32_t child = 0; child < most; ++child)
        values[pass.nodes[row.first_child + child].token] = memory.taken[child];
    });
  return most;
}

// Decides whether the sequence takes part in the next draft pass. Only one thread of the sequence's first row calls
// this.
__device__ void go_on(const DraftPass& pass, const DraftRow& row, bool drawn) {
  if (!row.next) return;
  const int32_t count = row.first_child + 1 - row.root;  // the number of drafted tokens, if the draft is a chain
  const auto confidence = [&](int i) { return static_cast<double>(pass.confidences[row.root + i]); };
  if (drawn && row.acceptance && rules::stops(row.stop, *row.acceptance, count, confidence, *row.drafting))
    *row.going = 0;
  else
    atomicAdd(row.next, 1);
}

__global__ void __launch_bounds__(kMaxSweepThreads, 1) draft_rows(DraftPass pass) {
  __shared__ DraftMemory memory;
  NoChoices none;
  Team team(memory.sample.team, none);
  const DraftRow& row = pass.rows[blockIdx.x];
  float* const values = pass.logits + static_cast<int64_t>(blockIdx.x) * pass.vocab;
  const bool going = *row.going != 0, greedy = row.options.temperature == 0;
  int32_t written = 0;
  if (going && is_drafted(pass, row.parent)) {
    if (greedy && row.width > 1) {
      written = take_likeliest(pass, row, team, memory, values);
    } else {
      const bool sampled = pass.sampled && !greedy;
      const Likeliest best =
          sampled ? Likeliest{pass.sampled[blockIdx.x], 0} : likeliest(team, memory.sample, values, pass.vocab);
      if (best.token >= 0 && !greedy) {
        if (!sampled) distribute(team, memory.sample, row.options, values, pass.vocab, best);
        written = draw_children(pass, row, team, memory, values);
      } else {
        const float confidence = best.token >= 0 ? confidence_of(team, values, pass.vocab, values[best.token]) : 0.0f;
        if (threadIdx.x == 0) put(pass, row, 0, best.token, confidence);
        written = 1;
      }
    }
  }
  team.sync();  // all threads have read the nodes that are overwritten below
  if (threadIdx.x != 0) return;
  for (int32_t child = written; child < row.width; ++child) put(pass, row, child, kAbsentNode, 0);
  if (going && row.rows_before == 0) go_on(pass, row, written > 0);
}

}  // namespace

int launch_draft(const DraftPass& pass, unsigned threads, Stream stream) {
  if (pass.num_rows == 0) return 0;
  if (threads == 0 || threads % 32 != 0 || threads > kMaxSweepThreads) return static_cast<int>(cudaErrorInvalidValue);
  return launch(stream, dim3(static_cast<unsigned>(pass.num_rows)), threads, 0, draft_rows, pass);
}

}  // namespace specdec::kernels::cuda
