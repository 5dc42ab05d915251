// Switches between stacks. On x86-64 a switch is ten instructions; elsewhere it is swapcontext(), which asks the kernel
// at each switch and of which the address sanitizer clears whole stacks.
#pragma once

#include <cstddef>

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace specdec::fibers {

// The place at which a stack is to go on.
struct Context {
#if defined(__x86_64__)
  void* stack_pointer = nullptr;
#else
  ucontext_t state;
#endif
};

// Makes the first switch to `context` call entry() on this stack. entry() must never return.
void prepare(Context& context, void* stack, size_t bytes, void (*entry)());
// Leaves the running stack in `from` and goes on where `to` was left. Returns when something switches to `from`.
void switch_stacks(Context& from, Context& to);

}  // namespace specdec::fibers
