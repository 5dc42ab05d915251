// What the stub of cuBLASLt (cublaslt.cpp) noted, and what it should do.
#pragma once

#include <cstdint>

struct CUstream_st;

namespace specdec::cublaslt {

struct Counts {
  int64_t alive = 0;              // layouts, operations and preferences that were made and not freed
  int64_t chosen = 0;             // calls of cublasLtMatmulAlgoGetHeuristic
  uint64_t alignment = 0;         // that the last of these calls was told
  uint32_t reductions = ~0u;      // ways to add up the parts of a sum that were allowed for the last choice
  bool refuses = false;           // true: no algorithm is found
  CUstream_st* stream = nullptr;  // of the last product
};
Counts& counts();

}  // namespace specdec::cublaslt
