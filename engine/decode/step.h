// One draft-verify-commit step over a batch of sequences: the single implementation that generate, validate, bench and serve run.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/acceptance.h"
#include "base/clock.h"
#include "base/run_options.h"
#include "engine/decode/causal_model.h"
#include "engine/decode/controller.h"
#include "engine/decode/randomness.h"

namespace specdec::decode {

// A sequence being generated. Invariant between steps: the target's cache holds all of `tokens` but the last one; the draft's
// cache holds a prefix of `tokens` (it catches up in the next draft pass).
struct Sequence {
  std::vector<int32_t> tokens;            // prompt and everything emitted
  SamplingOptions sampling;
  VerifyRule verify = VerifyRule::kToken;
  Randomness* randomness = nullptr;
  KController* controller = nullptr;      // null: plain decoding
  int64_t remaining = 0;                  // tokens that may still be emitted; K never exceeds remaining - 1
  SequenceId target_id = -1, draft_id = -1;
  // result of the last step:
  std::vector<int32_t> emitted;           // accepted + 1 tokens, appended to `tokens`
  int drafted = 0, accepted = 0;
  std::vector<double> overlaps;           // Σ min(p, q) at each reached position
  AcceptanceCounts counts;                // over the whole sequence
};

// Owns every buffer of a step; one per engine thread.
class Stepper {
 public:
  // draft may be null. `clock` times passes for `costs` (null: not recorded).
  Stepper(CausalModel& target, CausalModel* draft, CostModel* costs = nullptr, const Clock* clock = nullptr);
  ~Stepper();

  // Opens caches and runs all prompt tokens but the last through the target (chunks of `chunk`). Throws Error(kData) if the
  // prompt is empty or longer than the models allow.
  void start(Sequence& sequence, int64_t chunk = 512);
  // Drafts, verifies and commits once for every sequence; each emits at least one token.
  void step(std::span<Sequence* const> batch);
  void finish(Sequence& sequence);   // closes caches

 private:
  struct Buffers;
  CausalModel& target_;
  CausalModel* draft_;
  CostModel* costs_;
  const Clock* clock_;
  std::unique_ptr<Buffers> buffers_;
};

}  // namespace specdec::decode
