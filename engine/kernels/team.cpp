// This file must be compiled with -fopenmp.
#include "engine/kernels/team.h"

#include <omp.h>
#include <sched.h>

namespace specdec::kernels {

namespace {

inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

void Barrier::wait(int size) {
  const uint32_t round = round_.load(std::memory_order_relaxed);
  if (waiting_.fetch_add(1, std::memory_order_acq_rel) + 1 == size) {
    waiting_.store(0, std::memory_order_relaxed);
    round_.store(round + 1, std::memory_order_release);
    return;
  }
  // Spinning is fastest while the other threads run. After 4000 spins another thread probably has no core, so this
  // thread yields its core.
  for (int spins = 0; round_.load(std::memory_order_acquire) == round; ++spins) {
    spins < 4000 ? relax() : static_cast<void>(sched_yield());
  }
}

void run_team(int threads, void (*f)(void* context, const Member& member), void* context) {
  Barrier barrier;
  if (threads <= 1) return f(context, Member{0, 1, &barrier});
#pragma omp parallel num_threads(threads)
  f(context, Member{omp_get_thread_num(), omp_get_num_threads(), &barrier});
}

}  // namespace specdec::kernels
