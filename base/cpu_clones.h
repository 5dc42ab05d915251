// SPECDEC_CLONES("avx2", "default") compiles the following function once for each instruction set, and the loader picks
// the version that fits the machine. The loader calls a resolver function for this. With the thread sanitizer, that
// function is instrumented and runs before the sanitizer is ready, so there is only one version. Compilers other than
// GCC and machines other than x86-64 also get only one.
#pragma once

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_THREAD__)
#define SPECDEC_CLONES(...) __attribute__((target_clones(__VA_ARGS__)))
#else
#define SPECDEC_CLONES(...)
#endif
