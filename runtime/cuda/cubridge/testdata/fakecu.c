// A libcuda.so.1 for the tests of cubridge: the fake driver of cudatest, with the
// functions that gorgonia.org/cu calls beside those that package cuda calls, so that
// both work on the same fake GPUs.
#include "../../cudatest/testdata/fakecuda.c"

API R cuCtxCreate_v2(void **c, unsigned flags, int d) {
  CALL(cuCtxCreate); DEVICE(d);
  current = make(CONTEXT, d, sizeof(struct context));
  *c = current;
  return OK;
}
API R cuCtxDestroy_v2(void *c) {
  CALL(cuCtxDestroy);
  if (c == current) current = 0;
  return kill_handle(c, CONTEXT);
}

API R cuStreamCreate(void **s, unsigned flags) {
  R r = COUNT(cuStreamCreate);
  if (r) return r;
  return flags > 1 ? INVALID_VALUE : cuStreamCreateWithPriority(s, 1, 0);
}
API R cuStreamSynchronize(void *s) { CONTEXT_CALL(cuStreamSynchronize); ON(s); return OK; }
API R cuEventSynchronize(struct event *e) { CONTEXT_CALL(cuEventSynchronize); return reached(e); }

API R cuMemAllocManaged(D *p, size_t n, unsigned flags) {
  CONTEXT_CALL(cuMemAllocManaged);
  return flags == 1 || flags == 2 ? give(p, n, PLAIN) : INVALID_VALUE;
}
API R cuMemcpyHtoD_v2(D dst, const void *src, size_t n) {
  CONTEXT_CALL(cuMemcpyHtoD);
  if (!range(dst, n, 0)) return INVALID_VALUE;
  memcpy((void *)dst, src, n);
  return OK;
}
API R cuMemcpyDtoH_v2(void *dst, D src, size_t n) {
  CONTEXT_CALL(cuMemcpyDtoH);
  if (!range(src, n, 0)) return INVALID_VALUE;
  memcpy(dst, (void *)src, n);
  return OK;
}
API R cuMemcpyHtoDAsync_v2(D dst, const void *src, size_t n, void *s) {
  CONTEXT_CALL(cuMemcpyHtoDAsync); ON(s);
  return cuMemcpyHtoD_v2(dst, src, n);
}
API R cuMemcpyDtoHAsync_v2(void *dst, D src, size_t n, void *s) {
  CONTEXT_CALL(cuMemcpyDtoHAsync); ON(s);
  return cuMemcpyDtoH_v2(dst, src, n);
}

API R cuModuleLoadData(void **m, const void *image) {
  R r = COUNT(cuModuleLoadData);
  return r ? r : cuModuleLoadDataEx(m, image, 0, 0, 0);
}

// NVRTC asks every libcuda.so.1 that it finds for tables of its own, and takes no for
// an answer, but not that the function is missing.
API R cuGetExportTable(const void **table, const void *id) { *table = 0; return NOT_FOUND; }

// What cu links with and no test calls.
#define REST(name) API R name(void) { return NOT_SUPPORTED; }
REST(cuArray3DCreate_v2) REST(cuArray3DGetDescriptor_v2) REST(cuArrayCreate_v2) REST(cuArrayDestroy)
REST(cuArrayGetDescriptor_v2) REST(cuCtxDisablePeerAccess) REST(cuCtxGetApiVersion) REST(cuCtxGetCacheConfig)
REST(cuCtxGetFlags) REST(cuCtxGetLimit) REST(cuCtxGetSharedMemConfig) REST(cuCtxPopCurrent_v2)
REST(cuCtxPushCurrent_v2) REST(cuCtxResetPersistingL2Cache) REST(cuCtxSetCacheConfig) REST(cuCtxSetLimit)
REST(cuCtxSetSharedMemConfig) REST(cuCtxSynchronize) REST(cuDeviceCanAccessPeer)
REST(cuDeviceGetUuid) REST(cuDevicePrimaryCtxGetState) REST(cuDevicePrimaryCtxReset_v2)
REST(cuDevicePrimaryCtxSetFlags_v2) REST(cuDeviceTotalMem_v2) REST(cuFuncSetCacheConfig)
REST(cuFuncSetSharedMemConfig) REST(cuGraphAddChildGraphNode) REST(cuGraphAddDependencies) REST(cuGraphAddEmptyNode)
REST(cuGraphAddHostNode) REST(cuGraphAddKernelNode) REST(cuGraphAddMemcpyNode) REST(cuGraphAddMemsetNode)
REST(cuGraphClone) REST(cuGraphCreate) REST(cuGraphDestroy) REST(cuGraphDestroyNode) REST(cuGraphExecDestroy)
REST(cuGraphGetEdges) REST(cuLinkAddData_v2) REST(cuLinkAddFile_v2) REST(cuLinkComplete) REST(cuLinkCreate_v2)
REST(cuLinkDestroy) REST(cuMemAdvise) REST(cuMemAllocPitch_v2) REST(cuMemPrefetchAsync) REST(cuMemcpy)
REST(cuMemcpy2DAsync_v2) REST(cuMemcpy2DUnaligned_v2) REST(cuMemcpy2D_v2) REST(cuMemcpy3DAsync_v2)
REST(cuMemcpy3DPeer) REST(cuMemcpy3DPeerAsync) REST(cuMemcpy3D_v2) REST(cuMemcpyAtoA_v2) REST(cuMemcpyAtoD_v2)
REST(cuMemcpyAtoHAsync_v2) REST(cuMemcpyAtoH_v2) REST(cuMemcpyDtoA_v2) REST(cuMemcpyDtoDAsync_v2)
REST(cuMemcpyDtoD_v2) REST(cuMemcpyHtoAAsync_v2) REST(cuMemcpyHtoA_v2) REST(cuMemcpyPeer) REST(cuMemcpyPeerAsync)
REST(cuMemsetD16Async) REST(cuMemsetD16_v2) REST(cuMemsetD2D16Async) REST(cuMemsetD2D16_v2) REST(cuMemsetD2D32Async)
REST(cuMemsetD2D32_v2) REST(cuMemsetD2D8Async) REST(cuMemsetD2D8_v2) REST(cuMemsetD32_v2) REST(cuMemsetD8_v2)
REST(cuModuleGetGlobal_v2) REST(cuModuleGetSurfRef) REST(cuModuleGetTexRef) REST(cuModuleLoad)
REST(cuModuleLoadFatBinary) REST(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags) REST(cuPointerGetAttribute)
REST(cuPointerSetAttribute) REST(cuStreamAttachMemAsync) REST(cuStreamGetFlags) REST(cuStreamGetPriority)
REST(cuStreamWaitValue32) REST(cuStreamWriteValue32) REST(cuSurfRefGetArray) REST(cuSurfRefSetArray)
REST(cuTexRefGetAddressMode) REST(cuTexRefGetAddress_v2) REST(cuTexRefGetArray) REST(cuTexRefGetBorderColor)
REST(cuTexRefGetFilterMode) REST(cuTexRefGetFlags) REST(cuTexRefGetFormat) REST(cuTexRefGetMaxAnisotropy)
REST(cuTexRefSetAddress2D_v3) REST(cuTexRefSetAddressMode) REST(cuTexRefSetAddress_v2) REST(cuTexRefSetArray)
REST(cuTexRefSetBorderColor) REST(cuTexRefSetFilterMode) REST(cuTexRefSetFlags) REST(cuTexRefSetFormat)
REST(cuTexRefSetMaxAnisotropy) REST(cuTexRefSetMipmapFilterMode) REST(cuTexRefSetMipmapLevelBias)
REST(cuTexRefSetMipmapLevelClamp)
