// Computes the token masks of grammars on its own threads, so that a costly grammar delays neither the engine thread
// nor other sequences. Tenants take turns (fair_workers.h). The masks of one answer have limits on time and memory.
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
  // Called on a worker thread after each mask, with the tenant and the seconds of CPU time that the mask took.
  using Done = std::function<void(const std::string& tenant, double seconds)>;

  // `thread_seconds` returns the CPU time of the calling thread. `budget` must outlive the workers.
  MaskWorkers(const MaskLimits& limits, ByteBudget& budget, Done done);
  MaskWorkers(const MaskLimits& limits, ByteBudget& budget, Done done, std::function<double()> thread_seconds);
  ~MaskWorkers();

  // Returns a factory of constraints whose masks are computed on the worker threads. `make` makes the underlying
  // constraint, which is created, used and freed on these threads. The workers must outlive the constraints. `counted`
  // is the part of each constraint, in bytes, that the request has charged to the budget already.
  Make off_thread(Make make, const std::string& tenant, int64_t vocab, size_t counted = 0);

  // Called by the engine. begin_step() starts a step. settle() waits until no mask is being computed, in each step at
  // most MaskLimits::wait_seconds_per_step in all.
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
  std::condition_variable changed_;  // notified when a mask has been computed
  size_t outstanding_ = 0;
  double may_wait_ = 0;  // seconds that the engine may still wait in this step
  FairWorkers workers_;  // the last member, so its threads end first
};

}  // namespace specdec::deploy
