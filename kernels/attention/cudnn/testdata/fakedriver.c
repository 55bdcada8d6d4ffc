// What cuDNN needs of a CUDA driver, libcuda.so.1, to make plans without a GPU: it
// loads no code, and nothing runs. cuInit says that there is no device.
typedef unsigned long word;

int cuDeviceGetCount(int *n) { *n = 0; return 0; }
int cuLibraryLoadData(word *library) { *library = 1; return 0; }
int cuLibraryGetKernel(word *kernel) { *kernel = 2; return 0; }
int cuKernelGetFunction(word *function) { *function = 3; return 0; }
int cuLibraryUnload(word library) { (void)library; return 0; }

#define NONE(name) int name(void) { return 100; } // CUDA_ERROR_NO_DEVICE
NONE(cuCtxGetCurrent) NONE(cuCtxGetDevice) NONE(cuCtxGetLimit) NONE(cuCtxPopCurrent) NONE(cuCtxPushCurrent)
NONE(cuDeviceGet) NONE(cuDeviceGetAttribute) NONE(cuDevicePrimaryCtxRelease) NONE(cuDevicePrimaryCtxReset)
NONE(cuDevicePrimaryCtxRetain) NONE(cuDriverGetVersion) NONE(cuFuncGetAttribute) NONE(cuFuncSetAttribute)
NONE(cuGetErrorName) NONE(cuGetErrorString) NONE(cuGetProcAddress_v2) NONE(cuInit) NONE(cuKernelGetAttribute)
NONE(cuKernelSetAttribute) NONE(cuLaunchCooperativeKernel) NONE(cuLaunchKernel) NONE(cuLaunchKernelEx)
NONE(cuLibraryLoadFromFile) NONE(cuLinkAddData) NONE(cuLinkAddData_v2) NONE(cuLinkAddFile_v2) NONE(cuLinkComplete)
NONE(cuLinkCreate) NONE(cuLinkCreate_v2) NONE(cuLinkDestroy) NONE(cuMemcpyDtoH_v2) NONE(cuModuleGetFunction)
NONE(cuModuleGetGlobal_v2) NONE(cuModuleLoadData) NONE(cuModuleLoadDataEx) NONE(cuModuleLoadFatBinary)
NONE(cuModuleUnload) NONE(cuOccupancyMaxActiveBlocksPerMultiprocessor) NONE(cuOccupancyMaxPotentialClusterSize)
NONE(cuStreamGetCtx) NONE(cuStreamGetGreenCtx) NONE(cuStreamSynchronize) NONE(cuTensorMapEncodeIm2col)
NONE(cuTensorMapEncodeTiled)
