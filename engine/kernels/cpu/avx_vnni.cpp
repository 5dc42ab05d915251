// Compiles the products with block-quantised matrices for AVX2 with VNNI (compiler flags: engine/CMakeLists.txt).
#define SPECDEC_ISA avx_vnni
#define SPECDEC_BASE avx2
#define SPECDEC_LANES 8
#include "engine/kernels/cpu/blocks_impl.h"
