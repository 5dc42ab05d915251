// Marks functions that nvcc compiles for GPUs. Other compilers see plain functions.
#pragma once

#if defined(__CUDACC__)
#define SPECDEC_DEVICE_CODE __device__
#define SPECDEC_ANY_CODE __host__ __device__  // for host code and device code
#else
#define SPECDEC_DEVICE_CODE
#define SPECDEC_ANY_CODE
#endif
