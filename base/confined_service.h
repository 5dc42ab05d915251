// Does a repeated kind of work on untrusted bytes in child processes that stay alive. A job that overflows its stack,
// runs out of memory or never ends kills only its worker. Linux only.
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
  // `work` computes the answer to a job. It runs in a worker process; an exception ends the worker. The constructor
  // forks once, for a keeper process, which forks the workers when they are needed, so workers see the memory as it is
  // at construction. No other thread may hold a lock at that time. `limits` apply to each job. At most `workers` jobs
  // run at a time; other jobs wait. Throws Error(kIo) if the keeper cannot be started.
  using Work = std::function<std::string(std::string_view job)>;
  ConfinedService(const ChildLimits& limits, size_t workers, Work work);
  ~ConfinedService();  // call only when no job is running
  ConfinedService(const ConfinedService&) = delete;
  ConfinedService& operator=(const ConfinedService&) = delete;

  // Returns the job's answer, or nothing if the job ended its worker. Thread-safe. Throws Error(kIo) if no worker can
  // be started.
  std::optional<std::string> ask(std::string_view job);

  // Returns false once the keeper process, which forks the workers, has been killed, so that no more workers can be
  // started. Thread-safe.
  bool works() const;

  const ChildLimits& limits() const { return limits_; }

 private:
  int take_worker();
  void give_back(int worker, bool usable);
  int start_worker();

  const ChildLimits limits_;
  const size_t most_;
  int keeper_ = -1;  // process id of the keeper, which forks the workers
  int orders_ = -1;  // socket on which the keeper receives the sockets of new workers
  std::mutex mutex_;
  std::condition_variable freed_;
  std::vector<int> idle_;  // sockets of workers that wait for a job
  size_t started_ = 0;     // number of workers, idle or busy
};

}  // namespace specdec
