// The seam between the scheduler and whatever computes tokens: decode::Stepper over real models (engine/), a table in
// tests.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/run_options.h"
#include "engine/decode/causal_model.h"
#include "engine/decode/request.h"
#include "engine/decode/step_outcome.h"

namespace specdec::deploy {

using SequenceKey = int64_t;

inline constexpr size_t kDraftLabel = 12;  // characters

// Where in [0, 1) a conversation falls: those below a share are that share.
inline double share_place(const std::string& conversation) {
  return static_cast<double>(std::hash<std::string>{}(conversation)) * 0x1p-64;
}

// One answer to be made. Prompt and max_tokens fit the context.
struct SequenceSpec {
  decode::Request request;
  std::string conversation = {};  // whose answers go to one draft while two are compared
  // A running sequence that began with this prompt, which then is not prefilled again; -1: none.
  SequenceKey same_prompt = -1;
};

// What one pass over a prompt did.
struct PrefillResult {
  int64_t tokens = 0;  // that were prefilled
  bool whole = false;  // nothing is left: the sequence may step
  // Of prompt tokens 1, 2, …, with the pass that ends it, where the request wants them.
  std::vector<decode::PositionLogprobs> logprobs;
};

// What one step did for one answer: at least one token unless it failed or found no room.
struct StepResult : decode::StepOutcome {
  bool cache_full = false;  // the caches are full: this sequence is as before the step. It may be preempted, or others
  bool failed = false;      // this sequence cannot go on; the others are not touched
  bool no_token_left = false;  // … because of what its own request asks for: nothing is broken
  bool device_failed = false;  // … because of the device or the library that computes: no request causes that
  std::string draft, shadow;   // which draft models: fingerprints cut to kDraftLabel; "" = none
};

// What K of one draft rests on, as of its last step. Seconds and expectations are NaN until they were measured.
struct KBasis {
  std::string draft;                         // as StepResult::draft
  int batch = 0;                             // sequences of the step
  int k = 0;                                 // that most of its sequences chose of late
  double draft_seconds = 0;                  // a pass of the draft
  std::vector<double> verify_seconds;        // [K] a pass of the target; [0]: plain
  std::vector<double> overlaps;              // expected, by position, mean of its sequences
  double tokens_per_second(int at_k) const;  // expected of the whole batch at this K; 0: of plain decoding
};

// Running totals since the start.
struct StageSeconds {
  double prompt = 0, draft = 0, verify = 0, sample = 0;
  int64_t draft_failures = 0;  // sequences that fell back to plain decoding
};

// Of the target's caches.
struct CacheUse {
  double held = 0;                             // part of them that running sequences hold
  int64_t asked_tokens = 0, found_tokens = 0;  // of prompts since the start, and of these what had been read before
};

// Used by the engine thread only.
class StepRunner {
 public:
  virtual ~StepRunner() = default;
  // Opens a sequence; nothing is prefilled yet. Throws Error; nothing is left behind then.
  virtual SequenceKey start(const SequenceSpec& spec) = 0;
  // One pass over at most `most` tokens of its prompt and, after preempt(), of what it has emitted. Throws
  // decode::CacheFull, Error: it is as before then.
  virtual PrefillResult prefill(SequenceKey key, int64_t most) = 0;
  // Gives its caches up. Prefilled again, it goes on with the text that it would have had.
  virtual void preempt(SequenceKey key) = 0;
  // One draft-verify-commit step over distinct sequences that are read whole; results[i] belongs to batch[i]. What
  // concerns one sequence is reported in its result; an exception concerns all of them.
  virtual void step(std::span<const SequenceKey> batch, std::span<StepResult> results) = 0;
  virtual void finish(SequenceKey key) = 0;
  virtual StageSeconds stage_seconds() const = 0;
  virtual CacheUse cache_use() const { return {}; }
  virtual std::vector<KBasis> k_bases() const { return {}; }  // of the drafts that serve or are on trial
};

}  // namespace specdec::deploy
