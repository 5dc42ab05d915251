// Functions of the CUDA runtime that LibTorch or nvcc's code names and that nothing calls in the tests. Without CUDA's
// headers, since only their names matter.
#include <cstdio>
#include <cstdlib>

#define SPECDEC_NOT_CALLED(name)                                      \
  extern "C" void name() {                                            \
    std::fputs("cudart: nobody was expected to call " #name, stderr); \
    std::abort();                                                     \
  }

SPECDEC_NOT_CALLED(__cudaGetKernel)
SPECDEC_NOT_CALLED(__cudaLaunchKernel)
SPECDEC_NOT_CALLED(__cudaPopCallConfiguration)
SPECDEC_NOT_CALLED(cudaDeviceCanAccessPeer)
SPECDEC_NOT_CALLED(cudaDeviceEnablePeerAccess)
SPECDEC_NOT_CALLED(cudaDeviceGetDefaultMemPool)
SPECDEC_NOT_CALLED(cudaEventElapsedTime)
SPECDEC_NOT_CALLED(cudaFreeAsync)
SPECDEC_NOT_CALLED(cudaGetDriverEntryPointByVersion)
SPECDEC_NOT_CALLED(cudaGraphNodeGetDependencies)
SPECDEC_NOT_CALLED(cudaIpcCloseMemHandle)
SPECDEC_NOT_CALLED(cudaIpcGetMemHandle)
SPECDEC_NOT_CALLED(cudaIpcOpenMemHandle)
SPECDEC_NOT_CALLED(cudaMallocAsync)
SPECDEC_NOT_CALLED(cudaMemPoolGetAttribute)
SPECDEC_NOT_CALLED(cudaMemPoolSetAccess)
SPECDEC_NOT_CALLED(cudaMemPoolSetAttribute)
SPECDEC_NOT_CALLED(cudaMemPoolTrimTo)
SPECDEC_NOT_CALLED(cudaMemcpyPeerAsync)
SPECDEC_NOT_CALLED(cudaStreamGetCaptureInfo)
SPECDEC_NOT_CALLED(cudaStreamWaitEvent)
