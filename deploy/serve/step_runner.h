// The seam between the scheduler and whatever computes tokens: decode::Stepper over real models (engine/), a table in
// tests.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/run_options.h"
#include "engine/decode/causal_model.h"
#include "engine/decode/controller.h"
#include "engine/decode/logit_rules.h"
#include "engine/decode/logprobs.h"

namespace specdec::deploy {

using SequenceKey = int64_t;

inline constexpr size_t kDraftLabel = 12;  // characters

// Where in [0, 1) a conversation falls: those below a share are that share.
inline double share_place(const std::string& conversation) {
  return static_cast<double>(std::hash<std::string>{}(conversation)) * 0x1p-64;
}

struct SequenceSpec {
  std::span<const int32_t> prompt;  // at least one token; prompt + max_tokens fit the context
  int64_t max_tokens = 0;
  SamplingOptions sampling;
  uint64_t seed = 0;
  bool seeded = false;                                        // the text must depend on nothing but the request
  std::shared_ptr<const decode::LogitRules> rules = nullptr;  // null: none
  int logprobs = -1;             // >= 0: of every emitted token, with so many likeliest ones
  bool prompt_logprobs = false;  // PromptRead::logprobs
  bool speculate = true;
  int reject_top = 0;             // > 0: StepResult::rejected, with so many likeliest tokens
  uint64_t tenant = 0;            // whose prompts, read before, it may share
  std::string conversation = {};  // whose answers go to one draft while two are compared
  SequenceKey same_prompt = -1;   // a running sequence that began with this prompt: it need not be read again; -1: none
};

// Of one pass over a prompt.
struct PromptRead {
  int64_t tokens = 0;                              // that were read
  bool whole = false;                              // nothing is left: the sequence may step
  std::vector<decode::PositionLogprobs> logprobs;  // of prompt tokens 1, 2, …, with the pass that ends it
};

struct StepResult {
  bool out_of_room = false;  // the caches are full: this sequence is as before the step. It may be suspended, or others
  bool failed = false;       // this sequence cannot go on; the others are not touched
  bool no_token_left = false;    // … because of what its own request asks for: nothing is broken
  bool device_failed = false;    // … because of the device or the library that computes: no request causes that
  std::vector<int32_t> emitted;  // at least one token unless failed or out of room
  int drafted = 0, accepted = 0;
  decode::KDecision decision;                        // of the draft model's K
  int suffix_drafted = 0, suffix_accepted = 0;       // from the text itself, in steps whose `drafted` is 0
  std::vector<double> overlaps;                      // Σ min(p, q) at each reached position
  std::optional<decode::PositionLogprobs> rejected;  // the draft's token that stood where emitted.back() stands now
  std::string draft, shadow;                         // which draft models: fingerprints cut to kDraftLabel; "" = none
  std::vector<double> shadow_overlaps;               // of the draft on trial, at the same positions
  std::vector<decode::PositionLogprobs> logprobs;    // of each emitted token, where asked for
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
  // Opens a sequence; nothing is read yet. Throws Error; nothing is left behind then.
  virtual SequenceKey start(const SequenceSpec& spec) = 0;
  // One pass over at most `most` tokens of its prompt and, after suspend(), of what it has emitted. Throws
  // decode::OutOfRoom, Error: it is as before then.
  virtual PromptRead read(SequenceKey key, int64_t most) = 0;
  // Gives its caches up. Read again, it goes on with the text that it would have had.
  virtual void suspend(SequenceKey key) = 0;
  // One draft-verify-commit step over distinct sequences that are read whole; results[i] belongs to batch[i]. What
  // concerns one sequence is reported in its result; an exception concerns all of them.
  virtual void step(std::span<const SequenceKey> batch, std::span<StepResult> results) = 0;
  virtual void finish(SequenceKey key) = 0;
  virtual StageSeconds stage_seconds() const = 0;
  virtual CacheUse cache_use() const { return {}; }
  virtual std::vector<KBasis> k_bases() const { return {}; }  // of the drafts that serve or are on trial
};

}  // namespace specdec::deploy
