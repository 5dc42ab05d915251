#include "deploy/validate/timed_run.h"

#include <algorithm>
#include <memory>

namespace specdec::deploy {

struct GroupRun::Lane {
  decode::SeededRandomness randomness;
  decode::KController controller;
  decode::SuffixDraft suffix;
  decode::Sequence sequence;
  double delivered = 0;  // seconds of the run at the last delivery, 0 before the first
  decode::Stepper& stepper;
  Lane(decode::Stepper& of, uint64_t seed, const decode::ControllerOptions& options,
       const decode::ControllerOptions& from_text, const decode::CostModel* costs)
      : randomness(seed), controller(options, costs), suffix{{}, {from_text, costs}}, stepper(of) {}
  ~Lane() { stepper.finish(sequence); }  // also where a later one could not start
};

void GroupFigures::add(const GroupFigures& other) {
  tokens += other.tokens;
  prompt_seconds += other.prompt_seconds;
  seconds += other.seconds;
  ttft_ms.insert(ttft_ms.end(), other.ttft_ms.begin(), other.ttft_ms.end());
  itl_ms.insert(itl_ms.end(), other.itl_ms.begin(), other.itl_ms.end());
  counts.add(other.counts);
}

GroupRun::GroupRun(decode::Stepper& stepper, std::span<const std::vector<int32_t>> prompts, const GroupOptions& options,
                   Learnt* learnt, const Clock& clock)
    : stepper_(stepper), options_(options), learnt_(learnt), clock_(clock) {
  decode::ControllerOptions controller = decode::controller_options(options.speculation);
  if (learnt) controller.seen = &learnt->overlap, controller.plain_owed = learnt->plain_owed;
  const double begun = clock.seconds();
  for (size_t i = 0; i < prompts.size(); ++i) {
    lanes_.push_back(std::make_unique<Lane>(stepper, options.seed + i, controller,
                                            decode::suffix_controller_options(options.speculation),
                                            learnt ? &learnt->costs : nullptr));
    decode::Sequence& s = lanes_.back()->sequence;
    s.tokens = prompts[i];
    s.sampling = options.sampling;
    s.verify = options.speculation.verify;
    s.randomness = &lanes_.back()->randomness;
    s.controller = options.speculation.k == 0 ? nullptr : &lanes_.back()->controller;
    s.suffix = options.speculation.suffix && options.speculation.k != 0 ? &lanes_.back()->suffix : nullptr;
    s.remaining = options.tokens;
    stepper.start(s);
    active_.push_back(lanes_.back().get());
  }
  figures_.prompt_seconds = clock.seconds() - begun;
}

GroupRun::~GroupRun() = default;

bool GroupRun::done() const { return active_.empty(); }

double GroupRun::share() const {
  int64_t left = 0;
  for (const Lane* lane : active_) left += lane->sequence.remaining;
  return 1 - static_cast<double>(left) / static_cast<double>(options_.tokens * static_cast<int64_t>(lanes_.size()));
}

void GroupRun::step() {
  batch_.clear();
  for (Lane* lane : active_) batch_.push_back(&lane->sequence);
  const double started = clock_.seconds();
  stepper_.step(batch_);
  figures_.seconds += clock_.seconds() - started;
  for (Lane* lane : active_) {
    if (lane->delivered == 0)
      figures_.ttft_ms.push_back(1e3 * (figures_.prompt_seconds + figures_.seconds));
    else
      figures_.itl_ms.push_back(1e3 * (figures_.seconds - lane->delivered));
    lane->delivered = figures_.seconds;
    if (learnt_) learnt_->overlap.add(lane->sequence.observed);
  }
  std::erase_if(active_, [](const Lane* lane) { return lane->sequence.remaining < 1; });
  if (active_.empty() && learnt_) learnt_->plain_owed = lanes_.back()->controller.plain_owed();
}

GroupFigures GroupRun::figures() const {
  GroupFigures out = figures_;
  for (const auto& lane : lanes_) {
    out.tokens += options_.tokens - lane->sequence.remaining;
    out.counts.add(lane->sequence.counts);
  }
  return out;
}

GroupFigures run_group(decode::Stepper& stepper, std::span<const std::vector<int32_t>> prompts,
                       const GroupOptions& options, Learnt* learnt, const Clock& clock) {
  GroupRun run(stepper, prompts, options, learnt, clock);
  while (!run.done()) run.step();
  return run.figures();
}

}  // namespace specdec::deploy
