// Does work on untrusted bytes in a forked child with bounded memory. If the work runs out of memory, overflows its
// stack or never ends, only the child dies. Linux only.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>

namespace specdec {

struct ChildLimits {
  uint64_t memory_bytes = 512u << 20;     // address space that the child may use beyond the parent's at the fork
  int cpu_seconds = 0, wall_seconds = 0;  // limits of CPU time and of wall-clock time; 0 = no limit
};

class ConfinedChild {
 public:
  // Runs `work` in a forked child and passes it the write end of a pipe. The child ends if `work` throws. The child's
  // stderr is discarded (Rust's abort message is not for the user). The child runs ordinary C++ and Rust code after the
  // fork, so no other thread may hold a lock when this constructor is called. Throws Error(kIo) if there is no pipe or
  // process.
  ConfinedChild(const ChildLimits& limits, const std::function<void(int pipe)>& work);
  ~ConfinedChild();  // kills the child
  ConfinedChild(const ConfinedChild&) = delete;
  ConfinedChild& operator=(const ConfinedChild&) = delete;

  // Fills `out` from the pipe. Returns the number of bytes read, which is smaller than out.size() only at the end of
  // the pipe. Throws Error(kIo) if reading fails, and Error(kNetwork), the kind that means "try again", after a stop
  // request.
  size_t read(std::span<char> out);
  // Waits until the child ends. Returns " by signal …" if a signal killed it, else "". Use it for messages only: if
  // SIGCHLD is ignored, there is no exit status, and the result is "".
  std::string death();

 private:
  int pid_ = -1, pipe_ = -1;
};

// Applies `limits` to the calling process, which must be a child. The process may use at most `space` +
// limits.memory_bytes bytes of address space. Signals such as SIGSEGV, SIGXCPU and SIGPIPE get their default action,
// SIGINT and SIGTERM are ignored, and stderr goes to /dev/null.
void confine(const ChildLimits& limits, uint64_t space);
uint64_t address_space_bytes();  // bytes of address space that this process has

// Writes all of `bytes`; called in the child. Ends the process if the parent no longer reads them.
void write_pipe(int pipe, std::span<const char> bytes);

}  // namespace specdec
