// Compiles the kernels for AVX2 (compiler flags: engine/CMakeLists.txt).
#define SPECDEC_ISA avx2
#define SPECDEC_LANES 8
#include "engine/kernels/cpu/impl.h"
