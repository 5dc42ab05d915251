// Computes the masks of grammars on threads of their own, so that a costly grammar delays neither the engine thread nor
// other sequences. Tenants take turns (fair_workers.h). The masks of one answer have limits on time and memory.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "deploy/serve/http/fair_workers.h"
#include "deploy/serve/request/byte_budget.h"
#include "deploy/serve/request/limits.h"
#include "engine/decode/sampling/logits_processors.h"

namespace specdec::deploy {

class MaskWorkers {
 public:
  using Constraint = decode::Constraint;
  using Make = std::function<std::unique_ptr<Constraint>()>;
  // Called on a worker thread after each mask, with the tenant and the seconds of CPU time that it took.
  using Done = std::function<void(const std::string& tenant, double seconds)>;

  // `thread_seconds` is the CPU time of the calling thread. `budget` must outlive the workers.
  MaskWorkers(const MaskLimits& limits, ByteBudget& budget, Done done);
  MaskWorkers(const MaskLimits& limits, ByteBudget& budget, Done done, std::function<double()> thread_seconds);
  ~MaskWorkers();

  // Returns a factory of constraints whose masks are computed here. `make` makes the constraint that computes them; it
  // is called, used and freed on the worker threads. The workers must outlive the constraints. The first `counted`
  // bytes of each are in the budget already, because the request holds them.
  Make off_thread(Make make, const std::string& tenant, int64_t vocab, size_t counted = 0);

  // Both are for the engine thread. settle() waits until no mask is being computed, but in one step at most
  // MaskLimits::wait_seconds_per_step in all. begin_step() begins a step, in which settle() may wait that long again.
  void begin_step();
  void settle();

 private:
  struct Answer;
  class OffThread;
  void submit(const std::shared_ptr<Answer>& answer, int64_t pops, std::vector<int32_t> pushes);
  void compute(Answer& answer, int64_t pops, const std::vector<int32_t>& pushes);
  bool within_limits(Answer& answer, double seconds, size_t tokens) const;
  void wait(std::unique_lock<std::mutex>& lock, const std::function<bool()>& over);

  const MaskLimits limits_;
  ByteBudget& budget_;
  const Done done_;
  const std::function<double()> thread_seconds_;
  std::mutex mutex_;                 // guards the members below and the results in Answer
  std::condition_variable changed_;  // a mask has been computed
  size_t outstanding_ = 0;
  double may_wait_ = 0;  // seconds left in this step
  FairWorkers workers_;  // last, so that its threads end first
};

}  // namespace specdec::deploy
