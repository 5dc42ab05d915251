#include "base/reload_request.h"

#include <atomic>

namespace specdec {

namespace {
// Lock-free, because a signal handler sets it.
std::atomic<bool> requested{false};
static_assert(std::atomic<bool>::is_always_lock_free);
}  // namespace

void request_reload() { requested.store(true, std::memory_order_relaxed); }
bool take_reload_request() { return requested.exchange(false, std::memory_order_relaxed); }

}  // namespace specdec
