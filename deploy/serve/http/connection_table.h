// Limits the number of connections of one listener. If the limit is reached, an idle connection of the peer with the
// most connections is closed in favour of a new connection. So idle connections never keep a new client out, and no
// peer can use up the limit by sending half a request on each connection.
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
  // kIdle: between two requests; kReading: receiving a request; kAnswering: answering a request.
  enum class Phase { kIdle, kReading, kAnswering };
  std::string peer;
  Phase phase = Phase::kIdle;
  double since = 0;  // start of the phase, in seconds of any fixed clock
};

// Chooses which of `seats` (open connections) is closed in favour of a new connection of the peer `newcomer` when the
// limit is reached. Prefers idle connections: of the peer with the most connections, the connection that has been idle
// longest. If none is idle, chooses a connection that is sending a request and whose peer has at least two more
// connections than `newcomer`. Returns none if there is no such connection.
std::optional<size_t> gives_way(std::span<const Seat> seats, const std::string& newcomer);

class Seated {
 public:
  virtual ~Seated() = default;
  virtual Seat seat() const = 0;  // may be called from any thread
  virtual void give_way() = 0;    // any thread; closes the connection, or if it is answering, after the reply
};

class ConnectionTable {
 public:
  explicit ConnectionTable(size_t places) : places_(places) {}

  // Makes room for a connection of this peer and returns whether there is room. A connection that was told to close is
  // not counted, although it takes a moment to close.
  bool make_room(const std::string& peer);
  // Must be called when the process has no file descriptor for a new connection. Closes one connection by the rule of
  // gives_way(), even if the limit is not reached. Returns whether there is such a connection.
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
  static constexpr size_t kLeaving = 64;  // limit of connections that are closing at the same time
  struct Entry {
    std::weak_ptr<Seated> connection;
    bool leaving = false;
  };

  const size_t places_;
  mutable std::mutex mutex_;
  std::list<Entry> entries_;
};

}  // namespace specdec::deploy
