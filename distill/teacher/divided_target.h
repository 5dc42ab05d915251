// A target divided among a team of ranks by tensor parallelism: each rank holds a share of every large matrix
// (engine/config/shard.h). Every rank trains on rows of its own and needs the target's hidden states for these rows,
// but only the whole team can run the target. So the ranks meet in rounds: each rank announces which batch it needs,
// the team runs these batches one after the other, and each rank keeps the hidden states of its own batch. Ranks may
// need unequal numbers of batches. A rank that needs no more batches calls finish(), which takes part in the rounds of
// the other ranks until all ranks have called finish().
//
// The output head is not divided: each rank has a whole copy and computes the logits of its own rows. A divided head
// would need all ranks for every chunk of rows of every loss, and would send V logits per row instead of E hidden
// values.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "distill/rows/batcher.h"
#include "engine/decode/runners/causal_model.h"
#include "engine/forward/forward.h"
#include "engine/parallel/ranks.h"
#include "engine/weights/weights.h"

namespace specdec::distill {

// All functions throw RankError if another rank failed or exited; decode() throws DeviceLost instead.
class DividedTarget {
 public:
  // `share` has this rank's shards of the target's weights; its process group must be that of `team`. `team` must
  // outlive this object.
  DividedTarget(std::shared_ptr<const model::Decoder> share, const parallel::Ranks& team);

  int count() const { return team_.count(); }
  int64_t share_bytes() const;
  // Returns hidden_rows() of the whole target for this rank's batch. The observer is called for this batch only.
  at::Tensor hidden_rows(const Batch& batch, const model::HiddenObserver& observer = {});
  // Calls f with the whole target as a model that can generate text; f must not keep the model.
  void decode(const std::function<void(decode::CausalModel&)>& f);
  // Call finish() on every rank after its last request and before the next collective operation. Until all ranks that
  // hold the target together (the team) have called finish(), this call works on the other ranks' requests.
  void finish();
  // While `on` is true, the team (the ranks that hold the target together) runs every batch once per rank. Use this
  // when a single rank times a batch: in a training step every rank requests a batch, so the step takes as long as all
  // of them.
  void take_time_of_all(bool on) { passes_ = on ? count() : 1; }

 private:
  // What one rank asks of the ranks that hold the target together: nothing, the hidden states of a batch, or a model
  // for generating text.
  struct Wish {
    const Batch* batch = nullptr;
    const model::HiddenObserver* observer = nullptr;
    const std::function<void(decode::CausalModel&)>* text = nullptr;
  };
  struct Round {
    bool all_finished = false;
    at::Tensor hidden;  // hidden states of this rank's batch
  };
  struct Announced;
  Round meet(const Wish& own);
  at::Tensor run_batch(const Announced& announced, int asking, const Wish& own) const;
  void write_text(const std::function<void(decode::CausalModel&)>& f) const;
  void follow_text(int writing) const;
  void send(std::span<const int64_t> call) const;
  std::vector<int64_t> receive(int writing) const;

  std::shared_ptr<const model::Decoder> share_;
  const parallel::Ranks& team_;
  int64_t passes_ = 1;
};

}  // namespace specdec::distill
