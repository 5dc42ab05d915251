// SPECDEC_CLONES("avx2", "default"): compiles the function that follows once for each instruction set, and the loader
// picks the one that fits the machine. The loader asks a resolver, which the thread sanitizer instruments but is not
// yet there to serve: under it, and where the compiler is not GCC on x86-64, there is one version only.
#pragma once

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_THREAD__)
#define SPECDEC_CLONES(...) __attribute__((target_clones(__VA_ARGS__)))
#else
#define SPECDEC_CLONES(...)
#endif
