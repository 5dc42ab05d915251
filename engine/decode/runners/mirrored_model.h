// A target that several processes hold together (engine/config/shard.h). Rank 0 decodes; whatever it does with its
// sequences, the other ranks do with theirs, in the same order, so that all caches hold the same texts and every pass
// is run by all ranks.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "base/device_lost.h"
#include "engine/decode/runners/causal_model.h"

namespace specdec::decode {

// The other ranks, as rank 0 sees them.
class OtherRanks {
 public:
  // `send` sends a call to all of them, and throws DeviceLost if one is gone.
  explicit OtherRanks(std::function<void(std::span<const int64_t> call)> send) : send_(std::move(send)) {}
  // Sends a call. Throws DeviceLost if a rank is gone, or the ranks were lost before.
  void tell(std::span<const int64_t> call);
  // Notes that a rank is gone, or that the ranks no longer agree: nothing more is sent.
  void lose(const DeviceLost& why);
  const std::optional<DeviceLost>& lost() const { return lost_; }

 private:
  std::function<void(std::span<const int64_t>)> send_;
  std::optional<DeviceLost> lost_;
};

// Returns a model that answers as `own`, rank 0's share, and tells the other ranks every call that changes a sequence.
// It runs rounds (device_round.h) if `own` does. If a call fails on this rank alone, that call and every later one
// throw DeviceLost, except close(), which then closes only this rank's sequence. CacheFull is no such failure, because
// it comes on all ranks. `others` must outlive it.
std::unique_ptr<CausalModel> make_mirrored_model(std::unique_ptr<CausalModel> own, OtherRanks& others);

// Does with this rank's share what rank 0 told. `unread` is room for logits, which only rank 0 reads. Throws
// Error(kInternal) for a call that is not understood or had another result on rank 0, and what the call throws, except
// for CacheFull, which rank 0 meets as well.
void repeat_call(CausalModel& model, std::span<const int64_t> call, LogitRows& unread);

}  // namespace specdec::decode
