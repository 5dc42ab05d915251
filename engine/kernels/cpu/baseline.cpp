// Compiles the kernels for the instructions that every CPU of this architecture has (compiler flags:
// engine/CMakeLists.txt).
#define SPECDEC_ISA baseline
#define SPECDEC_LANES 4
#include "engine/kernels/cpu/impl.h"
