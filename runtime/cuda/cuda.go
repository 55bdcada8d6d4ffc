// Package cuda is NVIDIA GPUs as devices: contexts, memory, streams, events,
// modules and launches through the CUDA driver, which is opened at run time.
//
// Every function may be called from any goroutine. The driver keeps a current
// context per thread, so each call stays on one thread while it makes its
// device's context current and calls the driver; Bind does the same for a
// sequence of calls of other libraries.
//
// Every code that the driver returns becomes an *Error, which names the call, the
// arguments that matter, and the driver's own text. Errors of work on a stream
// stay with the stream: see Stream.
package cuda

import (
	"fmt"
	"os"
	"unsafe"

	"github.com/gorun-dev/gorun/runtime/cuda/internal/driver"
)

// Error is a failed call of the driver.
type Error = driver.Error

// Result is the code that the driver returned.
type Result = driver.Result

// The results that callers tell apart; others are known by their Error's Name.
const (
	OutOfMemory  = driver.OutOfMemory
	NoDevice     = driver.NoDevice
	NotSupported = driver.NotSupported
)

// Count returns how many GPUs this process sees: CUDA_VISIBLE_DEVICES, which the
// driver reads once, applies. Where there is none the error says why: the
// driver's library is missing, it is too old, or what it says itself.
func Count() (int, error) {
	api, err := driver.Load()
	if err != nil {
		return 0, err
	}
	var n int32
	if r := driver.Result(api.DeviceGetCount.Call(uintptr(unsafe.Pointer(&n)))); r != 0 {
		return 0, api.Error("", "cuDeviceGetCount", r)
	}
	if n == 0 {
		if visible, set := os.LookupEnv("CUDA_VISIBLE_DEVICES"); set {
			return 0, fmt.Errorf("the CUDA driver shows no GPU (CUDA_VISIBLE_DEVICES is %q)", visible)
		}
		return 0, fmt.Errorf("the CUDA driver shows no GPU")
	}
	return int(n), nil
}

// Capability returns the compute capability of GPU number ordinal, counted as Open
// does: 9, 0 for Hopper. It takes no context, so it costs next to nothing.
func Capability(ordinal int) (major, minor int, err error) {
	api, err := driver.Load()
	if err != nil {
		return 0, 0, err
	}
	d := &Device{api: api, ordinal: ordinal}
	err = d.describe()
	return d.major, d.minor, err
}

// LibraryVersion is the number of a version as the libraries for GPUs have it, cuBLASLt
// and cuDNN, in words: 91400 is "9.14.0".
func LibraryVersion(number int) string {
	return fmt.Sprintf("%d.%d.%d", number/10000, number/100%100, number%100)
}

// DriverVersion returns the version of CUDA that the driver knows, 12 and 4 for
// 12.4. It is what limits which compiler's kernels can be loaded.
func DriverVersion() (major, minor int, err error) {
	api, err := driver.Load()
	if err != nil {
		return 0, 0, err
	}
	return api.Version / 1000, api.Version % 1000 / 10, nil
}
