// A target that is divided among a team of ranks: each holds a share of every large matrix (engine/config/shard.h).
// Every rank trains on rows of its own and needs the target's hidden states for them, but only the whole team can run
// the target. So the ranks meet in rounds. In a round each says which batch it needs, the team runs these batches one
// after the other, and each rank keeps the hidden states of its own batch. A rank that needs no more batches calls
// finish(), which goes on working for the others until all ranks have called it. So ranks may need unequal numbers of
// batches.
//
// The head is no part of this: each rank has the whole one and makes logits of the rows that it has kept. A divided
// head would need all ranks for every chunk of rows of every loss, and send V logits a row instead of E hidden values.
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

// All functions throw RankError if another rank is lost or has ended, or DeviceLost while a text is written.
class DividedTarget {
 public:
  // `share` is this rank's share of the target, whose group is that of `team`, which must outlive this object.
  DividedTarget(std::shared_ptr<const model::Decoder> share, const parallel::Ranks& team);

  int count() const { return team_.count(); }
  int64_t share_bytes() const;
  // Returns hidden_rows() of the whole target for this rank's batch. The observer sees this batch alone.
  at::Tensor hidden_rows(const Batch& batch, const model::HiddenObserver& observer = {});
  // Calls f with the whole target as a model that writes text. It ends with the call.
  void decode(const std::function<void(decode::CausalModel&)>& f);
  // Every rank calls this where it asks for nothing more, before anything that all ranks do together. Returns when all
  // ranks of the team have called it.
  void finish();
  // While this is on, each batch is run once for each rank of the team. Then a batch that one rank measures alone takes
  // as long as in training, where all ranks ask.
  void take_time_of_all(bool on) { passes_ = on ? count() : 1; }

 private:
  // What a rank asks for in a round: nothing, hidden states of a batch, or a model that writes text.
  struct Wish {
    const Batch* batch = nullptr;
    const model::HiddenObserver* observer = nullptr;
    const std::function<void(decode::CausalModel&)>* text = nullptr;
  };
  struct Round {
    bool all_finished = false;
    at::Tensor hidden;  // of the own batch
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
