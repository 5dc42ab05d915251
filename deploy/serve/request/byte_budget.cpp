#include "deploy/serve/request/byte_budget.h"

#include <algorithm>

namespace specdec::deploy {

bool ByteBudget::change(const std::string& party, size_t& bytes, size_t wanted, bool forced) {
  if (wanted == bytes) return true;
  const std::lock_guard lock(mutex_);
  const auto at = by_party_.try_emplace(party, 0).first;
  const size_t of_all = held_ - bytes, of_party = at->second - bytes;
  const bool room =
      forced || wanted <= bytes ||
      (wanted <= total_ - std::min(total_, of_all) && wanted <= of_one_party_ - std::min(of_one_party_, of_party));
  if (room) {
    held_ = of_all + wanted;
    at->second = of_party + wanted;
    bytes = wanted;
  }
  if (at->second == 0) by_party_.erase(at);
  return room;
}

void ByteBudget::set_limit_of_one_party(size_t bytes) {
  const std::lock_guard lock(mutex_);
  of_one_party_ = bytes;
}

size_t ByteBudget::held() const {
  const std::lock_guard lock(mutex_);
  return held_;
}

}  // namespace specdec::deploy
