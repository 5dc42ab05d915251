// Watches over the processes ("ranks") that work on one thing together. Each rank leaves a growing number (its beat) on
// a board that all ranks see; a rank whose beat stays the same for too long is lost. A stop that one rank is asked for,
// and the error that ends a rank, reach the other ranks over the same board.
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

// Decides which ranks still beat. Times are in seconds of one clock.
class Beats {
 public:
  Beats(int ranks, double now) : last_(static_cast<size_t>(ranks), {0, now}) {}
  void observe(int rank, int64_t beat, double now);
  // Returns a rank whose beat is older than `limit` seconds.
  std::optional<int> late(double now, double limit) const;

 private:
  struct Beat {
    int64_t count = 0;
    double since = 0;
  };
  std::vector<Beat> last_;
};

// Notes that every rank can write and read. The functions are called from one thread and throw if the board is gone.
struct Board {
  std::function<void(const std::string& key, const std::string& note)> put;
  std::function<std::optional<std::string>(const std::string& key)> look;
};

struct WatchOptions {
  int rank = 0, ranks = 1;
  // Name of each rank, for messages: "rank 1 (host, process 7)". A rank whose name is empty has not joined yet, and is
  // not missed before meet().
  std::vector<std::string> names;
  double beat_seconds = 0.5;
  double lost_seconds = 30;   // without a beat, while everything else works
  double hurry_seconds = 4;   // the same once a collective has failed
  double grace_seconds = 10;  // from the verdict until on_lost, for the rank's own work to notice it
  // What a user does after a rank was lost; the end of a message.
  std::string next = "start all ranks again";
  // Called from another thread if this rank does not end by itself. It must end the process.
  std::function<void(const Error&)> on_lost;
};

class RankWatch {
 public:
  RankWatch(WatchOptions options, Board board, const Clock& clock);  // starts the threads
  ~RankWatch();                                                      // ends them
  RankWatch(const RankWatch&) = delete;
  RankWatch& operator=(const RankWatch&) = delete;

  // Tells that a rank has joined: from now on it must beat.
  void meet(int rank, const std::string& name);
  // Returns the reason why a collective failed, whose own message is `what`. Waits up to grace_seconds for the beats or
  // a note on the board to show the reason.
  Error reason(const std::string& what);
  // Tells the other ranks that this one ends because of `error`, unless an earlier error is on the board.
  void fail(const Error& error);
  // Tells the other ranks that this one needs the board no longer.
  void leave();
  // Returns whether every other rank has left, or the board is gone.
  bool others_left();

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace specdec::parallel
