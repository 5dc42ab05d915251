// Counts the heap allocations of a binary by replacing malloc and its relatives. Include this header in only one source
// file of a binary.
#pragma once

#include <stdlib.h>

#include <atomic>
#include <cerrno>
#include <cstdint>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(__GLIBC__)
#define SPECDEC_OWN_MALLOC 0
#else
#define SPECDEC_OWN_MALLOC 1
#endif

namespace specdec {
std::atomic<int64_t> allocations{0};
}

#if SPECDEC_OWN_MALLOC
extern "C" {
void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void* __libc_memalign(size_t, size_t);
void* malloc(size_t size) { return ++specdec::allocations, __libc_malloc(size); }
void* calloc(size_t count, size_t size) { return ++specdec::allocations, __libc_calloc(count, size); }
void* realloc(void* old, size_t size) { return ++specdec::allocations, __libc_realloc(old, size); }
void* memalign(size_t alignment, size_t size) { return ++specdec::allocations, __libc_memalign(alignment, size); }
void* aligned_alloc(size_t alignment, size_t size) { return ++specdec::allocations, __libc_memalign(alignment, size); }
int posix_memalign(void** out, size_t alignment, size_t size) {
  ++specdec::allocations;
  *out = __libc_memalign(alignment, size);
  return *out ? 0 : ENOMEM;
}
}
#endif

namespace specdec {

template <class F>
int64_t allocations_of(const F& f) {
  const int64_t before = allocations;
  f();
  return allocations - before;
}

}  // namespace specdec
