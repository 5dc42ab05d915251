// A kind of work on foreign bytes that comes again and again, in child processes that live on: a job that overflows its
// stack, runs out of memory or never ends costs its worker and nothing else. Linux.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/confined_child.h"

namespace specdec {

class ConfinedService {
 public:
  // `work` turns a job into its answer, in a worker with the memory of this moment; what it throws ends the worker.
  // `limits` hold for one job; at most `workers` jobs run at a time, others wait. Forks once, a keeper that forks the
  // workers when they are needed: make it where no other thread holds a lock. Throws Error(kIo).
  using Work = std::function<std::string(std::string_view job)>;
  ConfinedService(const ChildLimits& limits, size_t workers, Work work);
  ~ConfinedService();  // no job may be under way
  ConfinedService(const ConfinedService&) = delete;
  ConfinedService& operator=(const ConfinedService&) = delete;

  // The answer, or nothing where the job ended its worker. Thread-safe. Throws Error(kIo) where no worker can be
  // started.
  std::optional<std::string> ask(std::string_view job);

  // Returns false once the keeper is gone, killed by the system or by hand, so that no worker can be started any more.
  // Thread-safe.
  bool works() const;

  const ChildLimits& limits() const { return limits_; }

 private:
  int take_worker();
  void give_back(int worker, bool usable);
  int start_worker();

  const ChildLimits limits_;
  const size_t most_;
  int keeper_ = -1;  // process
  int orders_ = -1;  // socket to the keeper
  std::mutex mutex_;
  std::condition_variable freed_;
  std::vector<int> idle_;  // sockets of workers that wait for a job
  size_t started_ = 0;     // workers that are idle or busy
};

}  // namespace specdec
