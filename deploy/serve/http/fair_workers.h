// Worker threads that prepare requests before they enter the queue: JSON, templates, tokenizers, grammars. Parties take
// turns by the seconds of thread time that they have used, so that one party's work, even if it ends in refusals, does
// not delay another's. One party never occupies all threads, and large items leave two threads free for small ones.
// With a single thread there is no such limit, and with two threads large items may occupy one.
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

// Decides which item is started next. It uses no thread and no clock.
class WorkQueue {
 public:
  explicit WorkQueue(size_t threads)
      : of_one_party_(threads > 1 ? threads - 1 : 1), large_(threads > 2 ? threads - 2 : 1) {}

  void push(WorkItem item);
  // Returns the next item, or none if nothing may start. Among the parties with an item that may start, it picks the
  // one with the fewest running items, then the one that has used the fewest seconds. Within a party the order is first
  // come, first served, but small items pass large ones that have to wait.
  std::optional<WorkItem> pop();
  // Must be called when an item from pop() has ended.
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
  std::map<std::string, Party> parties_;  // with waiting or running items, or more seconds used than floor_
  double floor_ = 0;                      // seconds of the party served last: a returning party starts there
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
