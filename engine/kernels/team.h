// A team is a few threads that run one function together and synchronise at barriers. When a whole pass takes
// microseconds, this is cheaper than one parallel region per product. The threads are OpenMP threads, which ATen uses
// too, so a process never has two thread pools.
#pragma once

#include <atomic>
#include <cstdint>
#include <utility>

namespace specdec::kernels {

class Barrier {
 public:
  void wait(int size);

 private:
  std::atomic<int> waiting_{0};
  std::atomic<uint32_t> round_{0};
};

struct Member {
  int id = 0, size = 1;
  Barrier* shared = nullptr;

  void barrier() const {
    if (size > 1) shared->wait(size);
  }
  // Returns the part [begin, end) of [0, n) for which this member is responsible; its ends are multiples of `unit`.
  std::pair<int64_t, int64_t> part(int64_t n, int64_t unit = 1) const {
    const int64_t units = (n + unit - 1) / unit, begin = units * id / size * unit, end = units * (id + 1) / size * unit;
    return {begin < n ? begin : n, end < n ? end : n};
  }
};

// Runs f(context, member) on up to `threads` threads and returns when all have finished. f must not throw.
void run_team(int threads, void (*f)(void* context, const Member& member), void* context);

template <class F>
void run_team(int threads, F&& f) {
  run_team(
      threads,
      [](void* context, const Member& member) { (*static_cast<std::remove_reference_t<F>*>(context))(member); }, &f);
}

}  // namespace specdec::kernels
