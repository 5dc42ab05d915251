// Threads that do what comes before the queue: JSON, templates, tokenizers, grammars. Parties take turns by the seconds
// they have used, so that the refused work of one does not hold up another's; one thread is always left to those that
// have none, and one to small work.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace specdec::deploy {

struct WorkItem {
  std::string party;
  bool large = false;
  std::function<void()> work;  // never throws
};

// Which item is started next; no thread, no clock.
class WorkQueue {
 public:
  explicit WorkQueue(size_t threads)
      : of_one_party_(threads > 1 ? threads - 1 : 1), large_(threads > 2 ? threads - 2 : 1) {}

  void push(WorkItem item);
  // Of the parties that have something they may start now the one that runs least at once, then the one that has used
  // the fewest seconds; within it first come, first served, but small work passes large work that has to wait. None:
  // nothing may start.
  std::optional<WorkItem> pop();
  // What pop() gave has ended.
  void done(const std::string& party, bool large, double seconds);
  bool empty() const { return waiting_ == 0; }

 private:
  struct Party {
    std::deque<WorkItem> waiting;
    size_t running = 0;
    double seconds = 0;
  };
  std::deque<WorkItem>::iterator startable(Party& party) const;

  const size_t of_one_party_, large_;
  std::map<std::string, Party> parties_;  // that have something
  double floor_ = 0;                      // seconds of the party served last: where one that comes back begins
  size_t waiting_ = 0, running_large_ = 0;
};

class FairWorkers {
 public:
  explicit FairWorkers(size_t threads);
  ~FairWorkers();  // stop()
  void submit(WorkItem item);
  void stop();  // what was submitted is done first

 private:
  void run();
  std::mutex mutex_;
  std::condition_variable changed_;
  WorkQueue queue_;
  bool stopped_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace specdec::deploy
