// The interface between the scheduler and the component that computes tokens: StepperRunner over real models (engine/),
// or a fake in tests.
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

inline constexpr size_t kDraftLabel = 12;  // characters to which a draft's fingerprint is cut in metric labels

// Maps a conversation to a pseudo-random point in [0, 1). A fraction s of all conversations lies below s.
inline double share_place(const std::string& conversation) {
  return static_cast<double>(std::hash<std::string>{}(conversation)) * 0x1p-64;
}

// One answer to generate. The prompt and max_tokens together fit the context.
struct SequenceSpec {
  decode::Request request;
  std::string conversation = {};  // all answers of a conversation use the same draft during a trial of two drafts
  // A running sequence with the same prompt, whose prefill is reused; -1: none.
  SequenceKey same_prompt = -1;
};

// The result of one prefill pass over a prompt.
struct PrefillResult {
  int64_t tokens = 0;  // prompt tokens prefilled in this pass
  bool whole = false;  // prefill is complete, so the sequence may step
  // Log-probabilities of prompt tokens 1, 2, …; the last pass returns them if the request wants them.
  std::vector<decode::PositionLogprobs> logprobs;
};

// The result of one step for one sequence. It has at least one token, unless the sequence failed, its grammar mask was
// not computed in time, or the KV caches were full.
struct StepResult : decode::StepOutcome {
  // The KV caches are full, and this sequence is unchanged by the step. The scheduler may preempt this or another
  // sequence.
  bool cache_full = false;
  bool failed = false;  // this sequence cannot continue; the other sequences are not affected
  // The sequence failed because its request forbids every token, for example by logit_bias. No component is broken.
  bool no_token_left = false;
  bool masks_spent = false;  // the sequence failed because its grammar's masks took too much time or memory
  // The sequence failed because of the device or LibTorch, which no request can cause.
  bool device_failed = false;
  // `draft` proposed the tokens; `shadow` is a draft on trial that only scored them. Both are fingerprints cut to
  // kDraftLabel; "" = none.
  std::string draft, shadow;
};

// The figures from which a draft's K was chosen in its latest step. Seconds and expectations are NaN until they are
// measured.
struct DepthEvidence {
  std::string draft;                   // fingerprint, cut to kDraftLabel characters
  int batch = 0;                       // number of sequences in the step
  int k = 0;                           // the K that most of the draft's sequences chose recently
  double draft_seconds = 0;            // time of one pass of the draft
  std::vector<double> verify_seconds;  // [K]: time of a pass of the target that verifies K tokens; [0]: plain decoding
  std::vector<double> overlaps;        // expected overlap by draft position, mean over the draft's sequences
  // Number of drafted tokens whose overlap was measured so far, while these are so few that `overlaps` are mostly
  // assumed values. None once enough tokens were measured.
  std::optional<int64_t> assumed_after = {};

  // Returns the expected tokens per second of the whole batch if every sequence uses K = `at_k`; 0 means plain
  // decoding.
  double tokens_per_second(int at_k) const {
    const double tau = expected_length(std::span(overlaps).first(static_cast<size_t>(at_k)));
    return batch * tau / ((at_k > 0 ? at_k * draft_seconds : 0) + verify_seconds[static_cast<size_t>(at_k)]);
  }
};

// Seconds spent in each stage since the start.
struct StageSeconds {
  double prompt = 0, draft = 0, verify = 0, sample = 0;
  int64_t draft_failures = 0;  // number of sequences that fell back to plain decoding
};

// Usage of the target's KV cache and prefix cache.
struct CacheUse {
  double held = 0;  // fraction of the caches that running sequences occupy
  // Since the start: number of prompt tokens, and how many of them were found in the prefix cache.
  int64_t asked_tokens = 0, found_tokens = 0;
};

// Computes tokens for the scheduler. Only the engine thread calls it.
class StepRunner {
 public:
  virtual ~StepRunner() = default;
  // Opens a sequence without prefilling it. If it throws Error, no sequence stays open.
  virtual SequenceKey start(const SequenceSpec& spec) = 0;
  // Prefills at most `most` tokens in one pass: of the prompt and, after preempt(), of the tokens emitted so far. If it
  // throws decode::CacheFull or Error, the sequence is unchanged.
  virtual PrefillResult prefill(SequenceKey key, int64_t most) = 0;
  // Frees the sequence's KV caches. After another prefill the text continues as if the sequence had not been preempted.
  virtual void preempt(SequenceKey key) = 0;
  // Returns false while the grammar mask for the sequence's next step is being computed. Until then the sequence should
  // not be stepped.
  virtual bool ready(SequenceKey) { return true; }
  // Runs one draft-verify-commit step over distinct sequences whose prefill is complete; results[i] belongs to
  // batch[i]. The failure of one sequence is reported in its result; an exception means that the whole batch failed.
  virtual void step(std::span<const SequenceKey> batch, std::span<StepResult> results) = 0;
  virtual void finish(SequenceKey key) = 0;
  virtual StageSeconds stage_seconds() const = 0;
  virtual CacheUse cache_use() const { return {}; }
  // Returns an element for the serving draft and, during a trial, one for the draft on trial.
  virtual std::vector<DepthEvidence> depth_evidence() const { return {}; }
};

}  // namespace specdec::deploy
