#include "tests/kernels/fibers/context.h"

#if defined(__x86_64__)

#include <cstdint>

// Saves the callee-saved registers, exchanges the stack pointers, and restores the registers of the other stack.
asm(R"(
.text
.type specdec_switch_stacks, @function
specdec_switch_stacks:
  push %rbp
  push %rbx
  push %r12
  push %r13
  push %r14
  push %r15
  mov %rsp, (%rdi)
  mov %rsi, %rsp
  pop %r15
  pop %r14
  pop %r13
  pop %r12
  pop %rbx
  pop %rbp
  ret
.size specdec_switch_stacks, . - specdec_switch_stacks
)");
extern "C" void specdec_switch_stacks(void** from, void* to);

namespace specdec::fibers {

void prepare(Context& context, void* stack, size_t bytes, void (*entry)()) {
  constexpr int kSaved = 6;
  // The new stack, upwards: zeros as saved registers, the address of entry(), and a null return address to end
  // backtraces.
  auto* const top = reinterpret_cast<uint64_t*>(static_cast<char*>(stack) + bytes / 16 * 16);
  uint64_t* const bottom = top - kSaved - 2;
  for (int i = 0; i < kSaved; ++i) bottom[i] = 0;
  bottom[kSaved] = reinterpret_cast<uint64_t>(entry);
  bottom[kSaved + 1] = 0;
  context.stack_pointer = bottom;
}

void switch_stacks(Context& from, Context& to) { specdec_switch_stacks(&from.stack_pointer, to.stack_pointer); }

}  // namespace specdec::fibers

#else

namespace specdec::fibers {

void prepare(Context& context, void* stack, size_t bytes, void (*entry)()) {
  getcontext(&context.state);
  context.state.uc_stack.ss_sp = stack;
  context.state.uc_stack.ss_size = bytes;
  context.state.uc_link = nullptr;
  makecontext(&context.state, entry, 0);
}

void switch_stacks(Context& from, Context& to) { swapcontext(&from.state, &to.state); }

}  // namespace specdec::fibers

#endif
