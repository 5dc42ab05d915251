#include "deploy/bench/run.h"

#include <algorithm>
#include <memory>

namespace specdec::deploy {

namespace {

struct Lane {
  decode::SeededRandomness randomness;
  decode::KController controller;
  decode::SuffixDraft suffix;
  decode::Sequence sequence;
  double delivered = 0;  // time of the last delivery, 0 before the first
  Lane(uint64_t seed, const decode::ControllerOptions& options, const decode::ControllerOptions& from_text, const decode::CostModel* costs)
      : randomness(seed), controller(options, costs), suffix{{}, {from_text, costs}} {}
};

}  // namespace

void GroupFigures::add(const GroupFigures& other) {
  tokens += other.tokens;
  prompt_seconds += other.prompt_seconds;
  seconds += other.seconds;
  ttft_ms.insert(ttft_ms.end(), other.ttft_ms.begin(), other.ttft_ms.end());
  itl_ms.insert(itl_ms.end(), other.itl_ms.begin(), other.itl_ms.end());
  counts.add(other.counts);
}

GroupFigures run_group(decode::Stepper& stepper, std::span<const std::vector<int32_t>> prompts, const GroupOptions& options,
                       Learnt* learnt, const Clock& clock) {
  decode::ControllerOptions controller = decode::controller_options(options.speculation);
  if (learnt) controller.prior_overlap = learnt->overlap.value(), controller.plain_owed = learnt->plain_owed;
  std::vector<std::unique_ptr<Lane>> lanes;
  struct Finish {
    decode::Stepper& stepper;
    std::vector<std::unique_ptr<Lane>>& lanes;
    ~Finish() {
      for (auto& lane : lanes) stepper.finish(lane->sequence);
    }
  } finish{stepper, lanes};

  GroupFigures figures;
  const double begun = clock.seconds();
  for (size_t i = 0; i < prompts.size(); ++i) {
    lanes.push_back(std::make_unique<Lane>(options.seed + i, controller, decode::suffix_controller_options(options.speculation), learnt ? &learnt->costs : nullptr));
    decode::Sequence& s = lanes.back()->sequence;
    s.tokens = prompts[i];
    s.sampling = options.sampling;
    s.verify = options.speculation.verify;
    s.randomness = &lanes.back()->randomness;
    s.controller = options.speculation.k == 0 ? nullptr : &lanes.back()->controller;
    s.suffix = options.speculation.suffix && options.speculation.k != 0 ? &lanes.back()->suffix : nullptr;
    s.remaining = options.tokens;
    stepper.start(s);
  }
  const double started = clock.seconds();
  std::vector<Lane*> active;
  for (auto& lane : lanes) active.push_back(lane.get());
  std::vector<decode::Sequence*> batch;
  double now = started;
  while (!active.empty()) {
    batch.clear();
    for (Lane* lane : active) batch.push_back(&lane->sequence);
    stepper.step(batch);
    now = clock.seconds();
    for (Lane* lane : active) {
      if (lane->delivered == 0)
        figures.ttft_ms.push_back(1e3 * (now - begun));
      else
        figures.itl_ms.push_back(1e3 * (now - lane->delivered));
      lane->delivered = now;
      if (learnt) learnt->overlap.add(lane->sequence.observed);
    }
    std::erase_if(active, [](const Lane* lane) { return lane->sequence.remaining < 1; });
  }
  if (learnt) learnt->plain_owed = lanes.back()->controller.plain_owed();
  figures.prompt_seconds = started - begun;
  figures.seconds = now - started;
  for (auto& lane : lanes) {
    figures.tokens +=
        static_cast<int64_t>(lane->sequence.tokens.size() - prompts[static_cast<size_t>(&lane - lanes.data())].size());
    figures.counts.add(lane->sequence.counts);
  }
  return figures;
}

}  // namespace specdec::deploy
