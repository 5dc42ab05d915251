// Does work on untrusted bytes in a forked child with bounded memory. If the work runs out of memory, overflows its
// stack or never ends, only the child dies. Linux only.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>

namespace specdec {

struct ChildLimits {
  uint64_t memory_bytes = 512u << 20;     // address space that the child may add to the process's own
  int cpu_seconds = 0, wall_seconds = 0;  // 0 = no limit
};

class ConfinedChild {
 public:
  // Runs `work` in a child and passes it the write end of a pipe; an exception ends the child. The child's stderr is
  // discarded (Rust's abort message is not for the user). The child runs C++ and Rust after fork, so no other thread
  // may hold a lock now. Throws Error(kIo).
  ConfinedChild(const ChildLimits& limits, const std::function<void(int pipe)>& work);
  ~ConfinedChild();  // kills the child
  ConfinedChild(const ConfinedChild&) = delete;
  ConfinedChild& operator=(const ConfinedChild&) = delete;

  // Fills `out` from the pipe. Returns the number of bytes read, which is smaller than out.size() only at the end of
  // the pipe. Throws Error(kIo), and Error(kNetwork) after a stop request.
  size_t read(std::span<char> out);
  // Waits until the child ends. Returns " by signal …" if a signal killed it, else "". Use it for messages only: if
  // SIGCHLD is ignored, there is no exit status, and the result is "".
  std::string death();

 private:
  int pid_ = -1, pipe_ = -1;
};

// Applies `limits` to the calling process, which must be a child. Its address space is limited to `space` +
// memory_bytes. Signals such as SIGSEGV, SIGXCPU and SIGPIPE get their default action, SIGINT and SIGTERM are ignored,
// and stderr goes to /dev/null.
void confine(const ChildLimits& limits, uint64_t space);
uint64_t address_space_bytes();  // bytes of address space that this process has

// Writes all of `bytes`; called in the child. Ends the process if the parent no longer reads them.
void write_pipe(int pipe, std::span<const char> bytes);

}  // namespace specdec
