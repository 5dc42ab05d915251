// SPECDEC_CLONES("avx2", "default") compiles the function that follows once for each instruction set, and the loader
// picks the one that fits the machine. For that the loader calls a resolver, which the thread sanitizer instruments
// before it is ready. So with the thread sanitizer, or a compiler other than GCC on x86-64, there is only one version.
#pragma once

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_THREAD__)
#define SPECDEC_CLONES(...) __attribute__((target_clones(__VA_ARGS__)))
#else
#define SPECDEC_CLONES(...)
#endif
