// The places of one listener's connections, and who gives way where they are all taken: a connection whose client says
// nothing, of the peer that holds the most. So idle connections never keep a new client out, and no peer can take all
// places with half a request each.
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
  enum class Phase { kIdle, kReading, kAnswering };  // between two requests; part of one is there; it is being answered
  std::string peer;
  Phase phase = Phase::kIdle;
  double since = 0;  // seconds of any clock
};

// Which of them, all places being taken, gives way to one of this peer: an idle one of the peer that holds the most of
// them, longest idle first; where nobody is idle, one that is sending a request, of a peer that holds at least two more
// than the newcomer. None: nobody.
std::optional<size_t> gives_way(std::span<const Seat> seats, const std::string& newcomer);

class Seated {
 public:
  virtual ~Seated() = default;
  virtual Seat seat() const = 0;  // any thread
  virtual void give_way() = 0;    // any thread: closes it, unless it is being answered by then
};

class ConnectionTable {
 public:
  explicit ConnectionTable(size_t places) : places_(places) {}

  // Makes a place for one of this peer, where it can. Those that give way take a moment to do so: they are counted
  // apart until then.
  bool make_room(const std::string& peer);
  void add(const std::shared_ptr<Seated>& connection);
  size_t open() const;
  template <class F>
  void for_each(F&& f) const {
    const std::lock_guard lock(mutex_);
    for (const Entry& entry : entries_)
      if (const auto connection = entry.connection.lock()) f(*connection);
  }

 private:
  static constexpr size_t kLeaving = 64;  // that may be on their way out
  struct Entry {
    std::weak_ptr<Seated> connection;
    bool leaving = false;
  };

  const size_t places_;
  mutable std::mutex mutex_;
  std::list<Entry> entries_;
};

}  // namespace specdec::deploy
