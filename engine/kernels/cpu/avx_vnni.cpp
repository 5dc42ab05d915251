// Compiles the kernels for AVX2 with VNNI (compiler flags: engine/CMakeLists.txt).
#define SPECDEC_ISA avx_vnni
#define SPECDEC_LANES 8
#include "engine/kernels/cpu/impl.h"
