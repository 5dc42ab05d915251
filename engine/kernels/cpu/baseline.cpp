// The kernels compiled for what every CPU of this architecture has (flags: engine/CMakeLists.txt).
#define SPECDEC_ISA baseline
#define SPECDEC_LANES 4
#include "engine/kernels/cpu/impl.h"
