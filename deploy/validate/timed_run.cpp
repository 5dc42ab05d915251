#include "deploy/validate/timed_run.h"

#include <algorithm>
#include <memory>
#include <utility>

namespace specdec::deploy {

struct GroupRun::Lane {
  decode::Sequence sequence;
  double delivered = 0;  // figures_.seconds when tokens were last delivered; 0: none were yet
  Lane(decode::Stepper& stepper, decode::Request request, const decode::Drafting& drafting)
      : sequence(stepper, std::move(request), drafting) {}
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
  decode::Drafting drafting = decode::drafting(options.speculation);
  if (learnt && drafting.model) {
    drafting.model->seen = &learnt->overlap;
    drafting.model->plain_owed = learnt->plain_owed;
  }
  const double begun = clock.seconds();
  for (size_t i = 0; i < prompts.size(); ++i) {
    decode::Request request{prompts[i], options.seed + i, options.request};
    lanes_.push_back(std::make_unique<Lane>(stepper, std::move(request), drafting));
    stepper.start(lanes_.back()->sequence);
    active_.push_back(lanes_.back().get());
  }
  figures_.prompt_seconds = clock.seconds() - begun;
}

GroupRun::~GroupRun() = default;

bool GroupRun::done() const { return active_.empty(); }

double GroupRun::share() const {
  int64_t left = 0;
  for (const Lane* lane : active_) left += lane->sequence.remaining();
  return 1 - static_cast<double>(left) /
                 static_cast<double>(options_.request.max_tokens * static_cast<int64_t>(lanes_.size()));
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
    if (learnt_) learnt_->overlap.add(lane->sequence.outcome().observed);
  }
  std::erase_if(active_, [](const Lane* lane) { return lane->sequence.remaining() < 1; });
  const decode::KController* const last = lanes_.back()->sequence.controller();
  if (active_.empty() && learnt_ && last) learnt_->plain_owed = last->plain_owed();
}

GroupFigures GroupRun::figures() const {
  GroupFigures out = figures_;
  for (const auto& lane : lanes_) {
    out.tokens += options_.request.max_tokens - lane->sequence.remaining();
    out.counts.add(lane->sequence.counts());
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
