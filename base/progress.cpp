#include "base/progress.h"

#include <atomic>

namespace specdec {

namespace {
// Lock-free, because a signal handler sets it.
std::atomic<bool> stop{false};
static_assert(std::atomic<bool>::is_always_lock_free);
}  // namespace

bool stop_requested() { return stop.load(std::memory_order_relaxed); }
void request_stop() { stop.store(true, std::memory_order_relaxed); }

}  // namespace specdec
