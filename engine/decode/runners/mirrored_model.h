// A target that several processes (ranks) hold together (engine/config/shard.h). Rank 0 decodes. The other ranks repeat
// every change that rank 0 makes to its sequences, in the same order, so that all caches hold the same texts and all
// ranks run every pass.
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

// Sends rank 0's calls to the other ranks.
class OtherRanks {
 public:
  // `send` sends a call to all other ranks, and throws DeviceLost if one is gone.
  explicit OtherRanks(std::function<void(std::span<const int64_t> call)> send) : send_(std::move(send)) {}
  // Sends a call. Throws DeviceLost if a rank is gone, or if the ranks were lost before.
  void tell(std::span<const int64_t> call);
  // Records that a rank is gone, or that the ranks no longer agree. From then on nothing is sent.
  void lose(const DeviceLost& why);
  const std::optional<DeviceLost>& lost() const { return lost_; }

 private:
  std::function<void(std::span<const int64_t>)> send_;
  std::optional<DeviceLost> lost_;
};

// Returns a model that works like `own`, rank 0's share, and sends the other ranks every call that changes a sequence.
// It runs rounds (device_round.h) if `own` does. If a call fails on this rank alone, that call and every later one
// throw DeviceLost. Only close() does not throw: it then closes only this rank's sequence. CacheFull is not a failure
// in this sense, because all ranks throw it. `others` must outlive the model.
std::unique_ptr<CausalModel> make_mirrored_model(std::unique_ptr<CausalModel> own, OtherRanks& others);

// Runs a call that rank 0 sent on this rank's share. `unread` is a buffer for logits, which only rank 0 uses. Throws
// Error(kInternal) if the call is not understood or its result differs from rank 0's. Also throws what the call throws,
// except CacheFull, which rank 0 throws as well.
void repeat_call(CausalModel& model, std::span<const int64_t> call, LogitRows& unread);

}  // namespace specdec::decode
