// A running answer. Only the source files of Scheduler include this.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "deploy/serve/schedule/scheduler.h"
#include "engine/decode/answer.h"

namespace specdec::deploy {

// kPreempted: the KV caches ran full and those of this answer were freed, but the answer keeps its seat (place) in the
// batch. kUnseated: its caches were freed, and another tenant's answer got its seat.
enum class Scheduler::Phase { kPrefill, kDecode, kPreempted, kUnseated };

struct Scheduler::Active {
  Active(std::shared_ptr<const GenerationRequest> r, size_t c, const text::Tokenizer& tokenizer)
      : request(std::move(r)),
        choice(c),
        decoder(tokenizer),
        stop(request->stop, request->include_stop),
        thoughts(markers_around_thoughts(*request), request->format && request->format->begins_reasoning),
        cut(request->options) {}

  // Returns the markers around the model's reasoning ("thoughts"), within which stop strings are ignored.
  static ReasoningMarkers markers_around_thoughts(const GenerationRequest& request) {
    const bool may_think = request.format && !request.format->begins_in_call && !request.stop.empty();
    return may_think ? request.format->reasoning : ReasoningMarkers();
  }
  // Returns the text that may be sent after `piece` was added. Stop strings are searched for only after the thoughts.
  std::string stopped(std::string_view piece, bool may_match);
  std::string stopped_end(bool may_match);

  std::shared_ptr<const GenerationRequest> request;
  size_t choice;
  SequenceKey key = -1;
  Phase phase = Phase::kPrefill;
  int64_t prompt_read = 0;
  int64_t charged = 0;  // prompt tokens charged to the tenant; a prefill after preemption is free
  bool begun = false;   // the prompt was completely prefilled at least once
  bool again = false;   // the answer was preempted at least once
  text::IncrementalDecoder decoder;
  StopMatcher stop;
  ThoughtSplitter thoughts;        // unused if the request has no stop strings
  std::string undecided;           // text that may belong to the thoughts, or is later searched for stop strings
  size_t undecided_early = 0;      // bytes at the start of `undecided` in which no stop string may end
  std::string text;                // all text sent so far
  std::vector<int32_t> token_ids;  // all tokens so far
  ChoiceResult result;
  decode::AnswerCut cut;
  double stepped_at = 0;  // Clock::seconds() when the answer last got tokens
  double seated_at = 0;   // Clock::seconds() when the answer last got a seat in the batch
  bool ended = false;
  // late: the grammar mask for the next step is not computed yet. waited: the engine has already waited for this mask
  // once.
  bool late = false, waited = false;

  bool holds() const { return phase == Phase::kPrefill || phase == Phase::kDecode; }
};

}  // namespace specdec::deploy
