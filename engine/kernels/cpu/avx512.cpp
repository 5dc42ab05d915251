// The kernels compiled for avx512 (flags: engine/CMakeLists.txt).
#define SPECDEC_ISA avx512
#define SPECDEC_LANES 16
#include "engine/kernels/cpu/impl.h"
