// Measured runs: a group of prompts decoded together to a fixed length, with or without a draft; alone, or two side by
// side.
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
  SpeculationOptions speculation = {};                  // k = 0: plain
  decode::RequestOptions request = {.max_tokens = 64};  // of every answer, which is as long as that
  uint64_t seed = 0;                                    // of the first prompt; the i-th adds i
};
// Sums over runs of one configuration.
struct GroupFigures {
  int64_t tokens = 0;
  double prompt_seconds = 0;    // the target's pass over the prompts
  double seconds = 0;           // of all steps, up to the last token; the draft's pass over the prompts included
  std::vector<double> ttft_ms;  // a sequence: from its group's start to its first token
  std::vector<double> itl_ms;   // between two deliveries to a sequence: one a step, however many tokens it brings
  AcceptanceCounts counts;
  void add(const GroupFigures& other);
};
// What the controllers of a draft's runs share, as the requests of a server do.
struct Learnt {
  decode::CostModel costs;
  decode::OverlapMean overlap;
  int plain_owed = -1;  // ControllerOptions
};
class GroupRun {
 public:
  // Reads the prompts, which must leave room for `tokens`. `learnt`: null without a draft. All of them outlive the run.
  GroupRun(decode::Stepper& stepper, std::span<const std::vector<int32_t>> prompts, const GroupOptions& options,
           Learnt* learnt, const Clock& clock);
  ~GroupRun();  // finishes its sequences
  bool done() const;
  double share() const;          // of its tokens that are there, in [0, 1]
  void step();                   // sequences that are done leave the batch
  GroupFigures figures() const;  // once done

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
// Always a step of the one that is further behind, so that whatever slows the machine for a while slows both. A Run is
// done(), has a share() of its tokens and makes a step(): GroupRun, or a simulated one.
template <class Run>
void run_side_by_side(Run& a, Run& b) {
  while (!a.done() || !b.done()) (b.done() || (!a.done() && a.share() <= b.share()) ? a : b).step();
}

}  // namespace specdec::deploy
