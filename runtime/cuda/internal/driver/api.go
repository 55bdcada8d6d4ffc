package driver

import "github.com/gorun-dev/gorun/runtime/dl"

// API is the driver's functions. One that the driver is too old for is 0.
type API struct {
	Path    string // the library
	Version int    // 12040 is CUDA 12.4

	Init, DriverGetVersion, GetErrorName, GetErrorString dl.Proc

	DeviceGetCount, DeviceGet, DeviceGetName, DeviceGetUuid, DeviceGetAttribute dl.Proc
	DeviceGetP2PAttribute, DevicePrimaryCtxRetain, DevicePrimaryCtxRelease      dl.Proc
	CtxSetCurrent, CtxGetDevice, CtxGetStreamPriorityRange, CtxEnablePeerAccess dl.Proc

	MemGetInfo, MemAlloc, MemFree, MemHostAlloc, MemFreeHost, MemGetAddressRange              dl.Proc
	MemHostRegister, MemHostUnregister, MemGetHandleForAddressRange, FlushGPUDirectRDMAWrites dl.Proc
	MemPoolCreate, MemPoolDestroy, MemPoolSetAttribute, MemPoolGetAttribute                   dl.Proc
	MemPoolTrimTo, MemAllocFromPoolAsync, MemFreeAsync                                        dl.Proc
	IpcGetMemHandle, IpcOpenMemHandle, IpcCloseMemHandle                                      dl.Proc
	StreamCreateWithPriority, StreamDestroy, StreamWaitEvent, StreamQuery                     dl.Proc
	StreamGetCtx, StreamWaitValue32, StreamWriteValue32                                       dl.Proc
	EventCreate, EventDestroy, EventRecord, EventQuery, EventElapsedTime                      dl.Proc
	MemcpyAsync, MemsetD8Async, MemsetD32Async                                                dl.Proc
	ModuleLoadDataEx, ModuleUnload, ModuleGetFunction, FuncGetAttribute, FuncSetAttribute     dl.Proc
	FuncGetParamInfo, OccupancyMaxActiveBlocksPerMultiprocessor, LaunchKernel                 dl.Proc
	TensorMapEncodeTiled                                                                      dl.Proc
}

// entry is one function: its name in the library, where a suffix is a version of
// its ABI, and the first CUDA version whose drivers have it.
type entry struct {
	proc  *dl.Proc
	name  string
	since int
}

// start lists what every driver must have, whatever its version: it tells that
// version, and what else is wrong.
func (a *API) start() []entry {
	return []entry{
		{&a.Init, "cuInit", 2000},
		{&a.DriverGetVersion, "cuDriverGetVersion", 2020},
		{&a.GetErrorName, "cuGetErrorName", 6000},
		{&a.GetErrorString, "cuGetErrorString", 6000},
	}
}

// table lists every function that is called. A driver that is older than an
// entry's version goes without it; a driver that is not must have it.
func (a *API) table() []entry {
	return append(a.start(), []entry{
		{&a.DeviceGetCount, "cuDeviceGetCount", 2000},
		{&a.DeviceGet, "cuDeviceGet", 2000},
		{&a.DeviceGetName, "cuDeviceGetName", 2000},
		{&a.DeviceGetUuid, "cuDeviceGetUuid_v2", 11040},
		{&a.DeviceGetAttribute, "cuDeviceGetAttribute", 2000},

		{&a.DeviceGetP2PAttribute, "cuDeviceGetP2PAttribute", 8000},
		{&a.DevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", 7000},
		{&a.DevicePrimaryCtxRelease, "cuDevicePrimaryCtxRelease_v2", 11000},
		{&a.CtxSetCurrent, "cuCtxSetCurrent", 4000},
		{&a.CtxGetDevice, "cuCtxGetDevice", 2000},
		{&a.CtxGetStreamPriorityRange, "cuCtxGetStreamPriorityRange", 5050},
		{&a.CtxEnablePeerAccess, "cuCtxEnablePeerAccess", 4000},

		{&a.MemGetInfo, "cuMemGetInfo_v2", 3020},
		{&a.MemAlloc, "cuMemAlloc_v2", 3020},
		{&a.MemFree, "cuMemFree_v2", 3020},
		{&a.MemHostAlloc, "cuMemHostAlloc", 2020},
		{&a.MemFreeHost, "cuMemFreeHost", 2000},
		{&a.MemHostRegister, "cuMemHostRegister_v2", 6050},
		{&a.MemHostUnregister, "cuMemHostUnregister", 4000},
		{&a.MemGetAddressRange, "cuMemGetAddressRange_v2", 3020},
		{&a.MemGetHandleForAddressRange, "cuMemGetHandleForAddressRange", 11070},
		{&a.FlushGPUDirectRDMAWrites, "cuFlushGPUDirectRDMAWrites", 11030},

		{&a.MemPoolCreate, "cuMemPoolCreate", 11020},
		{&a.MemPoolDestroy, "cuMemPoolDestroy", 11020},
		{&a.MemPoolSetAttribute, "cuMemPoolSetAttribute", 11020},
		{&a.MemPoolGetAttribute, "cuMemPoolGetAttribute", 11020},
		{&a.MemPoolTrimTo, "cuMemPoolTrimTo", 11020},
		{&a.MemAllocFromPoolAsync, "cuMemAllocFromPoolAsync", 11020},
		{&a.MemFreeAsync, "cuMemFreeAsync", 11020},

		{&a.IpcGetMemHandle, "cuIpcGetMemHandle", 4010},
		{&a.IpcOpenMemHandle, "cuIpcOpenMemHandle_v2", 11000},
		{&a.IpcCloseMemHandle, "cuIpcCloseMemHandle", 4010},

		{&a.StreamCreateWithPriority, "cuStreamCreateWithPriority", 5050},
		{&a.StreamDestroy, "cuStreamDestroy_v2", 4000},
		{&a.StreamWaitEvent, "cuStreamWaitEvent", 3020},
		{&a.StreamQuery, "cuStreamQuery", 2000},
		{&a.StreamGetCtx, "cuStreamGetCtx", 9020},
		{&a.StreamWaitValue32, "cuStreamWaitValue32_v2", 11070},
		{&a.StreamWriteValue32, "cuStreamWriteValue32_v2", 11070},

		{&a.EventCreate, "cuEventCreate", 2000},
		{&a.EventDestroy, "cuEventDestroy_v2", 4000},
		{&a.EventRecord, "cuEventRecord", 2000},
		{&a.EventQuery, "cuEventQuery", 2000},
		{&a.EventElapsedTime, "cuEventElapsedTime", 2000},

		// Addresses are unified: source and destination say themselves where they lie.
		{&a.MemcpyAsync, "cuMemcpyAsync", 4000},
		{&a.MemsetD8Async, "cuMemsetD8Async", 3020},
		{&a.MemsetD32Async, "cuMemsetD32Async", 3020},

		{&a.ModuleLoadDataEx, "cuModuleLoadDataEx", 2010},
		{&a.ModuleUnload, "cuModuleUnload", 2000},
		{&a.ModuleGetFunction, "cuModuleGetFunction", 2000},
		{&a.FuncGetAttribute, "cuFuncGetAttribute", 2020},
		{&a.FuncSetAttribute, "cuFuncSetAttribute", 9000},
		{&a.FuncGetParamInfo, "cuFuncGetParamInfo", 12040},
		{&a.OccupancyMaxActiveBlocksPerMultiprocessor, "cuOccupancyMaxActiveBlocksPerMultiprocessor", 6050},
		{&a.LaunchKernel, "cuLaunchKernel", 4000},
		{&a.TensorMapEncodeTiled, "cuTensorMapEncodeTiled", 12000},
	}...)
}

// Names lists the functions of the table as the library calls them.
func Names() []string {
	var names []string
	for _, e := range new(API).table() {
		names = append(names, e.name)
	}
	return names
}
