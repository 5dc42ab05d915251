// Compiles the search for contenders for AVX-512 (compiler flags: engine/CMakeLists.txt).
#define SPECDEC_ISA avx512
#define SPECDEC_LANES 16
#include "engine/decode/sampling/contenders_impl.h"
