// One measured run: a group of prompts decoded together to a fixed length, with or without a draft.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/acceptance.h"
#include "base/clock.h"
#include "base/run_options.h"
#include "engine/decode/step.h"

namespace specdec::deploy {

struct GroupOptions {
  SpeculationOptions speculation;  // k = 0: plain
  SamplingOptions sampling;
  int64_t tokens = 64;  // of every answer; EOS is ignored
  uint64_t seed = 0;    // of the first prompt; the i-th adds i
};
// Sums over runs of one configuration.
struct GroupFigures {
  int64_t tokens = 0;
  double prompt_seconds = 0;    // the target's pass over the prompts
  double seconds = 0;           // from the first step to the last token; the draft's pass over the prompts included
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
// Prompts must leave room for `tokens`. Sequences that are done leave the batch. `learnt`: null without a draft.
GroupFigures run_group(decode::Stepper& stepper, std::span<const std::vector<int32_t>> prompts, const GroupOptions& options, Learnt* learnt,
                       const Clock& clock);

}  // namespace specdec::deploy
