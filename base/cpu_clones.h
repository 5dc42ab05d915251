// SPECDEC_CLONES("avx2", "default") compiles the following function once for each instruction set. When the program is
// loaded, a resolver function picks the version that fits the machine. There is only one version with compilers other
// than GCC, on machines other than x86-64, and with the thread sanitizer, because the sanitizer instruments the
// resolver, which runs before the sanitizer is ready.
#pragma once

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_THREAD__)
#define SPECDEC_CLONES(...) __attribute__((target_clones(__VA_ARGS__)))
#else
#define SPECDEC_CLONES(...)
#endif
