// Switches between stacks. On x86-64 a switch takes about ten instructions. Elsewhere it is swapcontext(), which makes
// a system call at each switch and for which the address sanitizer clears whole stacks.
#pragma once

#include <cstddef>

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace specdec::fibers {

// The state from which a stack that is not running continues.
struct Context {
#if defined(__x86_64__)
  void* stack_pointer = nullptr;
#else
  ucontext_t state;
#endif
};

// Prepares `context` so that the first switch to it calls entry() on `stack`. entry() must never return.
void prepare(Context& context, void* stack, size_t bytes, void (*entry)());
// Saves the running stack's state in `from` and continues `to`. Returns when another call continues `from`.
void switch_stacks(Context& from, Context& to);

}  // namespace specdec::fibers
