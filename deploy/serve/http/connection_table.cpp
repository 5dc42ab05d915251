#include "deploy/serve/http/connection_table.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

namespace specdec::deploy {

std::optional<size_t> gives_way(std::span<const Seat> seats, const std::string& newcomer) {
  std::map<std::string, size_t> held;
  for (const Seat& seat : seats) ++held[seat.peer];
  const auto own = held.find(newcomer);
  const size_t mine = own == held.end() ? 0 : own->second;
  std::optional<size_t> found;
  const auto rank = [&](size_t i) {  // the connection with the highest rank is closed
    const Seat& seat = seats[i];
    return std::tuple(seat.phase == Seat::Phase::kIdle, held[seat.peer], -seat.since);
  };
  for (size_t i = 0; i < seats.size(); ++i) {
    const bool idle = seats[i].phase == Seat::Phase::kIdle,
               slow = seats[i].phase == Seat::Phase::kReading && held[seats[i].peer] >= mine + 2;
    if ((idle || slow) && (!found || rank(i) > rank(*found))) found = i;
  }
  return found;
}

bool ConnectionTable::make_room(const std::string& peer) {
  const std::lock_guard lock(mutex_);
  std::erase_if(entries_, [](const Entry& entry) { return entry.connection.expired(); });
  const auto leaving = static_cast<size_t>(
      std::count_if(entries_.begin(), entries_.end(), [](const Entry& entry) { return entry.leaving; }));
  return entries_.size() - leaving < places_ || close_one(peer, leaving);
}

bool ConnectionTable::free_descriptor() {
  const std::lock_guard lock(mutex_);
  return close_one("", 0);
}

// Closes one connection so that a new connection of `peer` can be accepted. `leaving`: number of connections that are
// closing already. The caller must hold the lock.
bool ConnectionTable::close_one(const std::string& peer, size_t leaving) {
  if (leaving >= kLeaving) return false;
  std::vector<Seat> seats;
  std::vector<std::pair<Entry*, std::shared_ptr<Seated>>> of;
  for (Entry& entry : entries_) {
    auto connection = entry.leaving ? nullptr : entry.connection.lock();
    if (!connection) continue;
    seats.push_back(connection->seat());
    of.emplace_back(&entry, std::move(connection));
  }
  const std::optional<size_t> at = gives_way(seats, peer);
  if (!at) return false;
  of[*at].first->leaving = true;
  of[*at].second->give_way();
  return true;
}

void ConnectionTable::add(const std::shared_ptr<Seated>& connection) {
  const std::lock_guard lock(mutex_);
  entries_.push_back({connection, false});
}

size_t ConnectionTable::open() const {
  const std::lock_guard lock(mutex_);
  return static_cast<size_t>(
      std::count_if(entries_.begin(), entries_.end(), [](const Entry& entry) { return !entry.connection.expired(); }));
}

}  // namespace specdec::deploy
