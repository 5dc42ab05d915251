// Worker threads that prepare requests before the requests enter the queue: JSON, templates, tokenizers, grammars.
// Parties (tenants) take turns by the thread time that they have used. So one party's work does not delay the others,
// even if all its requests are refused. One party never occupies all threads, and large items leave two threads free
// for small items. Exceptions: a single thread serves everything, and of two threads large items may occupy one.
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
  std::function<void()> work;  // must not throw
};

// Decides which item is started next. Has no threads and reads no clock.
class WorkQueue {
 public:
  explicit WorkQueue(size_t threads)
      : of_one_party_(threads > 1 ? threads - 1 : 1), large_(threads > 2 ? threads - 2 : 1) {}

  void push(WorkItem item);
  // Returns the next item, or none if no item may start. Chooses among the parties (tenants) with an item that may
  // start: first the fewest running items, then the fewest seconds used. A party's items start in order of arrival, but
  // small items overtake large items that have to wait.
  std::optional<WorkItem> pop();
  // Must be called when an item that pop() returned has ended.
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
  std::map<std::string, Party> parties_;  // only tenants with work or with more than floor_ seconds used
  double floor_ = 0;                      // seconds used by the tenant served last; new tenants start with them
  size_t waiting_ = 0, running_large_ = 0;
};

class FairWorkers {
 public:
  explicit FairWorkers(size_t threads);
  ~FairWorkers();  // calls stop()
  void submit(WorkItem item);
  void stop();  // runs the submitted items first

 private:
  void run();
  std::mutex mutex_;
  std::condition_variable changed_;
  WorkQueue queue_;
  bool stopped_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace specdec::deploy
