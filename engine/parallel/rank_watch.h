// Watches the processes ("ranks") of one run through a key-value store that all ranks can read, the board. Each rank
// writes an increasing number to the board, its heartbeat. A rank whose heartbeat does not change for too long is lost.
// If one rank receives a request to stop, or ends with an error, the board carries this to all other ranks.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/error.h"

namespace specdec::parallel {

// Tracks the heartbeats of the ranks. Times are in seconds of one clock.
class Beats {
 public:
  Beats(int ranks, double now) : last_(static_cast<size_t>(ranks), {0, now}) {}
  void observe(int rank, int64_t beat, double now);
  // Returns a rank whose heartbeat has not changed for more than `limit` seconds, if there is one.
  std::optional<int> late(double now, double limit) const;

 private:
  struct Beat {
    int64_t count = 0;
    double since = 0;
  };
  std::vector<Beat> last_;
};

// A key-value store that every rank can read and write. Only one thread calls put() or look() at a time. Both
// functions throw if the store is gone.
struct Board {
  std::function<void(const std::string& key, const std::string& note)> put;
  std::function<std::optional<std::string>(const std::string& key)> look;
};

struct WatchOptions {
  int rank = 0, ranks = 1;
  // The name of each rank for messages, such as "rank 1 (host, process 7)". A rank with an empty name has not joined
  // yet; its heartbeat is expected only after meet().
  std::vector<std::string> names;
  double beat_seconds = 0.5;
  double lost_seconds = 30;  // a rank is lost after this time without a heartbeat
  // Replaces lost_seconds after a collective has failed or the ranks' shared store (board) could not be reached.
  double hurry_seconds = 4;
  // Time from detecting a loss to calling on_lost. Within this time the rank's own work may notice the loss and end the
  // rank.
  double grace_seconds = 10;
  // What the user should do after a rank was lost; appended to error messages.
  std::string next = "start all ranks again";
  // Called from another thread if this rank does not end within grace_seconds after a loss. It must end the process.
  std::function<void(const Error&)> on_lost;
};

class RankWatch {
 public:
  RankWatch(WatchOptions options, Board board, const Clock& clock);  // starts the threads
  ~RankWatch();                                                      // ends the threads
  RankWatch(const RankWatch&) = delete;
  RankWatch& operator=(const RankWatch&) = delete;

  // Records that a rank has joined: from now on its heartbeat is expected.
  void meet(int rank, const std::string& name);
  // Returns the cause of a failed collective. `what` is the collective's own error message. Waits up to grace_seconds
  // until the heartbeats, or an error in the ranks' shared store, show the cause.
  Error reason(const std::string& what);
  // Tells the other ranks that this rank ends because of `error`, unless the ranks' shared store already holds an
  // error.
  void fail(const Error& error);
  // Tells the other ranks that this rank no longer needs the ranks' shared store (board).
  void leave();
  // Returns whether every other rank has left or the ranks' shared store (board) is gone.
  bool others_left();

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace specdec::parallel
