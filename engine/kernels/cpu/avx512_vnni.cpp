// Compiles the products with block-quantised matrices for AVX-512 with VNNI (compiler flags: engine/CMakeLists.txt).
#define SPECDEC_ISA avx512_vnni
#define SPECDEC_BASE avx512
#define SPECDEC_LANES 16
#include "engine/kernels/cpu/blocks_impl.h"
