// Compiles the search for contenders for AVX2 (compiler flags: engine/CMakeLists.txt).
#define SPECDEC_ISA avx2
#define SPECDEC_LANES 8
#include "engine/decode/sampling/contenders_impl.h"
