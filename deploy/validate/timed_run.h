// Makes timed runs. A run decodes a group of prompts together to a fixed length, with or without a draft. Runs are made
// alone or in pairs, side by side.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/acceptance.h"
#include "base/clock.h"
#include "base/run_options.h"
#include "engine/decode/step.h"

namespace specdec::deploy {

struct GroupOptions {
  SpeculationOptions speculation = {};                  // k = 0: plain decoding
  decode::RequestOptions request = {.max_tokens = 64};  // for every answer; each has exactly max_tokens tokens
  uint64_t seed = 0;                                    // seed of prompt 0; prompt i uses seed + i
};
// Sums over all runs of one configuration.
struct GroupFigures {
  int64_t tokens = 0;
  double prompt_seconds = 0;    // duration of the target's prefill of the prompts
  double seconds = 0;           // duration of all steps, up to the last token; includes the draft's prefill
  std::vector<double> ttft_ms;  // per sequence: time from the start of its group to its first token
  std::vector<double> itl_ms;   // time between two deliveries to a sequence; each step delivers one or more tokens
  AcceptanceCounts counts;
  void add(const GroupFigures& other);
};
// State that the controllers of all runs with a draft share, as the controllers of all requests of a server do.
struct Learnt {
  decode::CostModel costs;
  decode::OverlapMean overlap;
  int plain_owed = -1;  // plain steps until drafting is tried again (ControllerOptions)
};
class GroupRun {
 public:
  // Prefills the prompts, which must leave space for max_tokens. `learnt` is null without a draft. `stepper`, `learnt`
  // and `clock` must outlive the run.
  GroupRun(decode::Stepper& stepper, std::span<const std::vector<int32_t>> prompts, const GroupOptions& options,
           Learnt* learnt, const Clock& clock);
  ~GroupRun();  // closes its sequences
  bool done() const;
  double share() const;          // fraction of all its tokens that have been generated, in [0, 1]
  void step();                   // makes one step; sequences that have ended leave the batch
  GroupFigures figures() const;  // valid once done()

 private:
  struct Lane;
  decode::Stepper& stepper_;
  const GroupOptions options_;
  Learnt* learnt_;
  const Clock& clock_;
  std::vector<std::unique_ptr<Lane>> lanes_;
  std::vector<Lane*> active_;
  std::vector<decode::Sequence*> batch_;
  GroupFigures figures_;
};
GroupFigures run_group(decode::Stepper& stepper, std::span<const std::vector<int32_t>> prompts,
                       const GroupOptions& options, Learnt* learnt, const Clock& clock);
// Steps two runs until both are done(). Always steps the run that has generated the smaller fraction of its tokens, so
// that a temporary slowdown of the machine affects both runs. The type Run needs done(), share() and step(): it is
// GroupRun, or a simulated run in tests.
template <class Run>
void run_side_by_side(Run& a, Run& b) {
  while (!a.done() || !b.done()) (b.done() || (!a.done() && a.share() <= b.share()) ? a : b).step();
}

}  // namespace specdec::deploy
