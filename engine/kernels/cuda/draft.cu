// Draws the tokens of one level of drafts, a block of threads for each row of logits, with the random numbers that the
// host's steps would use.
#include <ptx.h>

#include "base/philox.h"
#include "engine/kernels/cuda/distribution.h"
#include "engine/kernels/cuda/launch.h"

namespace specdec::kernels::cuda {

namespace {

struct DraftMemory {
  SampleMemory sample;
  float taken[kMaxVerifyNodes];  // the probabilities of the children that are drawn already
};

// One block's row.
class Drafting {
 public:
  __device__ Drafting(const DraftPass& pass, DraftMemory& memory)
      : pass_(pass),
        memory_(memory),
        team_(memory.sample.team, none_),
        row_(pass.rows[blockIdx.x]),
        values_(pass.logits + static_cast<int64_t>(blockIdx.x) * pass.vocab) {}

  __device__ void run() {
    const bool going = *row_.going != 0;
    team_.sync();  // all have read it before it is changed
    int32_t drawn = 0;
    if (going && (row_.parent < 0 || pass_.nodes[row_.parent].token >= 0)) drawn = draw_children();
    for (int32_t child = drawn; child < row_.width; ++child) put(child, kAbsentNode);
    team_.sync();
    if (threadIdx.x == 0 && going && row_.row == 0) go_on(drawn);
  }

 private:
  __device__ bool greedy() const { return row_.options.temperature == 0; }

  // Returns how many children were drawn, one that is kBrokenRow included.
  __device__ int32_t draw_children() {
    if (greedy() && row_.width > 1) return take_likeliest(row_.width);
    float confidence = 1;
    const int32_t best = pass_.sampled && !greedy() ? pass_.sampled[blockIdx.x]
                                                    : distribute(team_, memory_.sample, row_.options, values_,
                                                                 pass_.vocab, greedy() ? &memory_.taken[0] : nullptr);
    if (greedy()) team_.sync(), confidence = memory_.taken[0];
    if (best < 0 || greedy()) {
      put(0, best, confidence);
      return 1;
    }
    return draw_sampled();
  }

  // Of a greedy tree. It takes the tokens out of the row, which nobody reads afterwards.
  __device__ int32_t take_likeliest(int32_t most) {
    if (!is_sound(team_, memory_.sample, values_, pass_.vocab)) {
      put(0, kBrokenRow);
      return 1;
    }
    for (int32_t child = 0; child < most; ++child) {
      const int32_t token = likeliest(team_, values_, pass_.vocab);
      if (token < 0 && child > 0) return child;
      put(child, token);
      if (token < 0) return 1;
      team_.once([&] { values_[token] = -INFINITY; });
    }
    return most;
  }

  // Each child is drawn after the ones before it were taken out. In the end they are put back, because verification
  // reads the row.
  __device__ int32_t draw_sampled() {
    const int32_t most = pass_.choices ? min(row_.width, pass_.choices[blockIdx.x]) : 1;
    uint64_t cursor = row_.cursor;
    if (row_.likeliest == 0) cursor += drawn_before();
    for (int32_t child = 0; child < most; ++child) {
      const int32_t token = row_.likeliest != 0
                                ? likeliest(team_, values_, pass_.vocab)
                                : team_.find(pass_.vocab, values_,
                                             philox_uniform(row_.seed, static_cast<uint64_t>(rules::Purpose::kDraft),
                                                            cursor + static_cast<uint64_t>(child)));
      put(child, token, token >= 0 ? values_[token] : 0.0f);
      if (token < 0 || most == 1) return child + 1;
      team_.once([&] { memory_.taken[child] = values_[token], values_[token] = 0; });
    }
    team_.once([&] {
      for (int32_t child = 0; child < most; ++child)
        values_[pass_.nodes[row_.first + child].token] = memory_.taken[child];
    });
    return most;
  }

  // Returns how many tokens the sequence has drawn in this round, in the host's order: all of earlier levels, and those
  // of earlier rows of this one.
  __device__ uint64_t drawn_before() const {
    uint64_t count = 0;
    for (int32_t node = row_.root; node < row_.level; ++node) count += pass_.nodes[node].token >= 0 ? 1 : 0;
    for (int32_t before = 1; before <= row_.row; ++before) {
      const int row = static_cast<int>(blockIdx.x) - before;
      const DraftRow& other = pass_.rows[row];
      if (other.parent < 0 || pass_.nodes[other.parent].token >= 0)
        count += static_cast<uint64_t>(pass_.choices ? min(other.width, pass_.choices[row]) : 1);
    }
    return count;
  }

  __device__ void put(int32_t child, int32_t token, float confidence = 0) const {
    if (threadIdx.x != 0) return;
    const int32_t node = row_.first + child;
    pass_.nodes[node].token = pass_.tokens[node] = token;
    pass_.confidences[node] = confidence;
    for (int32_t* ids : row_.ids)
      if (ids) ids[child] = token < 0 ? 0 : token;  // later kernels read rows of tables by it
  }

  // Decides whether the sequence has a part in the next pass.
  __device__ void go_on(int32_t drawn) const {
    if (!row_.next) return;
    const int32_t count = row_.first + 1 - row_.root;  // drafted tokens, if it is a chain
    const auto confidence = [&](int i) { return static_cast<double>(pass_.confidences[row_.root + i]); };
    const bool stops =
        drawn > 0 && row_.acceptance && rules::stops(row_.stop, *row_.acceptance, count, confidence, *row_.drafting);
    if (stops)
      *row_.going = 0;
    else
      atomicAdd(row_.next, 1);
  }

  const DraftPass& pass_;
  DraftMemory& memory_;
  NoChoices none_;
  Team team_;
  const DraftRow row_;
  float* values_;
};

__global__ void __launch_bounds__(kMaxVerifyThreads, 1) draft_rows(DraftPass pass) {
  __shared__ DraftMemory memory;
  Drafting(pass, memory).run();
}

}  // namespace

int launch_draft(const DraftPass& pass, unsigned threads, Stream stream) {
  if (pass.num_rows == 0) return 0;
  if (threads == 0 || threads % 32 != 0 || threads > kMaxVerifyThreads) return static_cast<int>(cudaErrorInvalidValue);
  return launch(stream, dim3(static_cast<unsigned>(pass.num_rows)), threads, 0, draft_rows, pass);
}

}  // namespace specdec::kernels::cuda
