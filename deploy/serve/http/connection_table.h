// Manages the places for connections of one listener. If all places are taken, an idle connection of the peer that
// holds the most places is closed for the newcomer. So idle connections never keep a new client out, and no peer can
// take all places by sending half a request on each.
#pragma once

#include <atomic>
#include <cstddef>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>

namespace specdec::deploy {

struct Seat {
  // kIdle: between two requests; kReading: receiving a request; kAnswering: answering it.
  enum class Phase { kIdle, kReading, kAnswering };
  std::string peer;
  Phase phase = Phase::kIdle;
  double since = 0;  // when the phase began, in seconds of any clock
};

// Chooses which of `seats` is closed for a newcomer when all places are taken. Prefers an idle connection of the peer
// that holds the most places, the longest idle first. If none is idle, chooses a connection that is sending a request
// and whose peer holds at least two more places than the newcomer's peer. Returns none if there is no such connection.
std::optional<size_t> gives_way(std::span<const Seat> seats, const std::string& newcomer);

class Seated {
 public:
  virtual ~Seated() = default;
  virtual Seat seat() const = 0;  // called from any thread
  virtual void give_way() = 0;    // called from any thread; closes the connection, after its reply if one is being made
};

class ConnectionTable {
 public:
  explicit ConnectionTable(size_t places) : places_(places) {}

  // Makes a place for a connection of this peer and returns whether there is one. A connection that was told to give
  // way takes a moment to close; it is not counted as taking a place meanwhile.
  bool make_room(const std::string& peer);
  // Is called when the process has no descriptor left for a new connection. Makes one connection give way by the rule
  // of gives_way(), even if places are free. Returns whether one gives way.
  bool free_descriptor();
  void add(const std::shared_ptr<Seated>& connection);
  size_t open() const;
  template <class F>
  void for_each(F&& f) const {
    const std::lock_guard lock(mutex_);
    for (const Entry& entry : entries_)
      if (const auto connection = entry.connection.lock()) f(*connection);
  }

 private:
  bool close_one(const std::string& peer, size_t leaving);
  static constexpr size_t kLeaving = 64;  // how many connections may be closing at once
  struct Entry {
    std::weak_ptr<Seated> connection;
    bool leaving = false;
  };

  const size_t places_;
  mutable std::mutex mutex_;
  std::list<Entry> entries_;
};

}  // namespace specdec::deploy
