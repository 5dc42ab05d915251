// The interface between the scheduler and whatever computes tokens: decode::Stepper over real models (engine/), a table
// in tests.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/acceptance.h"
#include "base/run_options.h"
#include "engine/decode/request.h"
#include "engine/decode/runners/causal_model.h"
#include "engine/decode/step_outcome.h"

namespace specdec::deploy {

using SequenceKey = int64_t;

inline constexpr size_t kDraftLabel = 12;  // characters of a fingerprint in labels

// Maps a conversation to a point in [0, 1), so that a share s of all conversations lies below s.
inline double share_place(const std::string& conversation) {
  return static_cast<double>(std::hash<std::string>{}(conversation)) * 0x1p-64;
}

// One answer to generate. Prompt and max_tokens fit the context.
struct SequenceSpec {
  decode::Request request;
  std::string conversation = {};  // answers of one conversation use the same draft while two drafts are compared
  // A running sequence that began with this prompt, so that it is not prefilled again; -1: none.
  SequenceKey same_prompt = -1;
};

// The result of one prefill pass over a prompt.
struct PrefillResult {
  int64_t tokens = 0;  // prefilled in this pass
  bool whole = false;  // nothing is left to prefill: the sequence may step
  // Log-probabilities of prompt tokens 1, 2, …, returned by the last pass if the request wants them.
  std::vector<decode::PositionLogprobs> logprobs;
};

// The result of one step for one answer: at least one token unless it failed, its mask was late or the caches were
// full.
struct StepResult : decode::StepOutcome {
  // The caches are full and this sequence is as before the step. It, or another one, may be preempted.
  bool cache_full = false;
  bool failed = false;  // this sequence cannot continue; the others are not affected
  // The sequence failed because its own request forbids every token; nothing is broken.
  bool no_token_left = false;
  bool masks_spent = false;  // the sequence failed because its grammar costs too much
  // The sequence failed because of the device or the compute library; no request can cause that.
  bool device_failed = false;
  // `draft` proposed the tokens, and `shadow` only scored them. Both are fingerprints cut to kDraftLabel; "" = none.
  std::string draft, shadow;
};

// Holds the figures on which a draft's K rests, as of its last step. Seconds and expectations are NaN until they have
// been measured.
struct DepthEvidence {
  std::string draft;                   // as StepResult::draft
  int batch = 0;                       // sequences in the step
  int k = 0;                           // the K that most of its sequences chose recently
  double draft_seconds = 0;            // one pass of the draft
  std::vector<double> verify_seconds;  // [K] one pass of the target that verifies K tokens; [0]: plain decoding
  std::vector<double> overlaps;        // expected, by position, mean over its sequences
  // The number of drafted tokens whose overlap was measured, if it is so small that `overlaps` are mostly assumed.
  std::optional<int64_t> assumed_after = {};

  // Returns the tokens per second that are expected for the whole batch if every sequence uses K = `at_k`; 0 means
  // plain decoding.
  double tokens_per_second(int at_k) const {
    const double tau = expected_length(std::span(overlaps).first(static_cast<size_t>(at_k)));
    return batch * tau / ((at_k > 0 ? at_k * draft_seconds : 0) + verify_seconds[static_cast<size_t>(at_k)]);
  }
};

// Running totals since the start, in seconds of each stage.
struct StageSeconds {
  double prompt = 0, draft = 0, verify = 0, sample = 0;
  int64_t draft_failures = 0;  // sequences that fell back to plain decoding
};

// Usage of the target's caches.
struct CacheUse {
  double held = 0;  // share of the caches that running sequences hold
  // Prompt tokens since the start, and how many of them were found in the caches.
  int64_t asked_tokens = 0, found_tokens = 0;
};

// Computes tokens for the scheduler. Used by the engine thread only.
class StepRunner {
 public:
  virtual ~StepRunner() = default;
  // Opens a sequence without prefilling it. If it throws Error, nothing stays open.
  virtual SequenceKey start(const SequenceSpec& spec) = 0;
  // Runs one pass over at most `most` tokens of the prompt and, after preempt(), of the tokens emitted so far. If it
  // throws decode::CacheFull or Error, the sequence is as before.
  virtual PrefillResult prefill(SequenceKey key, int64_t most) = 0;
  // Frees the sequence's caches. After another prefill its text continues as if it had not been preempted.
  virtual void preempt(SequenceKey key) = 0;
  // Returns false while the mask that the sequence's next step needs is still being computed. The sequence should not
  // be stepped until then.
  virtual bool ready(SequenceKey) { return true; }
  // Runs one draft-verify-commit step over distinct sequences whose prefill is complete; results[i] belongs to
  // batch[i]. A failure of one sequence is reported in its result; an exception concerns all of them.
  virtual void step(std::span<const SequenceKey> batch, std::span<StepResult> results) = 0;
  virtual void finish(SequenceKey key) = 0;
  virtual StageSeconds stage_seconds() const = 0;
  virtual CacheUse cache_use() const { return {}; }
  virtual std::vector<DepthEvidence> depth_evidence() const { return {}; }  // of the drafts that serve or are on trial
};

}  // namespace specdec::deploy
