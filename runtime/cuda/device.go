package cuda

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"unsafe"

	"github.com/gorun-dev/gorun/runtime/cuda/internal/driver"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dl"
)

// Device is a handle on one GPU and its primary context, which all libraries of
// the process share, or on a context that Borrow was given. It implements
// device.Device.
type Device struct {
	api     *driver.API
	ordinal int
	id      uintptr   // CUdevice
	context []uintptr // the context, as the argument list of cuCtxSetCurrent; never written again
	primary bool      // the context is retained until Close; else it is borrowed
	name    string
	uuid    string
	major   int
	minor   int
	sms     int
	clear   *Stream // zeroes new memory
	events  eventPool

	mu      sync.Mutex
	closed  bool
	memory  map[uintptr]allocation // what Alloc, AllocHost, pools and OpenMemory gave, by address
	held    int64                  // bytes of device memory in memory
	peak    int64                  // the most that held has been
	streams map[*Stream]struct{}
	modules map[*Module]struct{}
	pools   map[*Pool]struct{}
}

var _ device.Device = (*Device)(nil)

// Open returns a handle on GPU number ordinal, counted from 0 among those that
// the process sees. Handles on one GPU are independent of one another and share
// its primary context. Close releases it.
func Open(ordinal int) (*Device, error) {
	n, err := Count()
	if err != nil {
		return nil, err
	}
	if ordinal < 0 || ordinal >= n {
		return nil, fmt.Errorf("there is no GPU %d: %d visible, counted from 0", ordinal, n)
	}
	api, err := driver.Load()
	if err != nil {
		return nil, err
	}
	d := newDevice(api, ordinal)
	if err := d.describe(); err != nil {
		return nil, err
	}
	var context uintptr
	if r := driver.Result(api.DevicePrimaryCtxRetain.Call(uintptr(unsafe.Pointer(&context)), d.id)); r != 0 {
		return nil, d.fail(r, "cuDevicePrimaryCtxRetain")
	}
	d.context, d.primary = []uintptr{context}, true
	return d.start()
}

func newDevice(api *driver.API, ordinal int) *Device {
	d := &Device{
		api: api, ordinal: ordinal,
		memory: map[uintptr]allocation{}, streams: map[*Stream]struct{}{}, modules: map[*Module]struct{}{}, pools: map[*Pool]struct{}{},
	}
	d.events.d = d
	return d
}

// start makes what d needs in its context. It closes d where it fails.
func (d *Device) start() (*Device, error) {
	var err error
	if d.clear, err = d.newStream("clear", 0); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return d, nil
}

// describe reads what does not change: names and numbers of the GPU.
func (d *Device) describe() error {
	var id int32
	if r := driver.Result(d.api.DeviceGet.Call(uintptr(unsafe.Pointer(&id)), uintptr(d.ordinal))); r != 0 {
		return d.fail(r, "cuDeviceGet")
	}
	d.id = uintptr(id)
	name := make([]byte, 256)
	if r := driver.Result(d.api.DeviceGetName.Call(uintptr(unsafe.Pointer(&name[0])), uintptr(len(name)), d.id)); r != 0 {
		return d.fail(r, "cuDeviceGetName")
	}
	d.name = cut(name)
	u := new([16]byte)
	if r := driver.Result(d.api.DeviceGetUuid.Call(uintptr(unsafe.Pointer(u)), d.id)); r != 0 {
		return d.fail(r, "cuDeviceGetUuid")
	}
	d.uuid = fmt.Sprintf("GPU-%x-%x-%x-%x-%x", u[:4], u[4:6], u[6:8], u[8:10], u[10:])
	for _, a := range []struct {
		to *int
		a  Attribute
	}{{&d.major, ComputeMajor}, {&d.minor, ComputeMinor}, {&d.sms, Multiprocessors}} {
		v, err := d.Attribute(a.a)
		if err != nil {
			return err
		}
		*a.to = v
	}
	return nil
}

// cut is the text before the first zero byte.
func cut(b []byte) string {
	for i, c := range b {
		if c == 0 {
			return string(b[:i])
		}
	}
	return string(b)
}

func (d *Device) Kind() device.Kind { return device.CUDA }

// String is "cuda:0" for the first GPU that the process sees.
func (d *Device) String() string { return fmt.Sprintf("cuda:%d", d.ordinal) }

// Name is the product's: "NVIDIA H200".
func (d *Device) Name() string { return d.name }

// Arch is the compute capability: 9, 0 for Hopper.
func (d *Device) Arch() (major, minor int) { return d.major, d.minor }

// SMs is the number of multiprocessors.
func (d *Device) SMs() int { return d.sms }

// UUID names the GPU in the form that nvidia-smi shows; with MIG, its instance.
func (d *Device) UUID() string { return d.uuid }

// Context is the CUcontext, for other libraries.
func (d *Device) Context() uintptr { return d.context[0] }

// Bind keeps the goroutine on its thread, with the GPU's context current there,
// until unbind is called by the same goroutine. Bindings nest. It is for calls of
// other libraries; the methods of this package need none. It panics where the
// context is gone, as it is once the last handle is closed.
func (d *Device) Bind() (unbind func()) {
	runtime.LockOSThread()
	if r := d.enter(); r != 0 {
		runtime.UnlockOSThread()
		panic(d.fail(r|entering, "").Error())
	}
	return runtime.UnlockOSThread
}

// enter makes the context current on this thread, to which the goroutine is
// locked. Whatever was current before is replaced: other libraries may have
// changed it since the last call, so no memory of it would be sure.
func (d *Device) enter() driver.Result {
	return driver.Result(d.api.CtxSetCurrent.Call(d.context...))
}

// entering marks a result as that of cuCtxSetCurrent, which precedes each call.
const entering driver.Result = 1 << 30

// call calls p with the context current. What fail makes of its result names the
// call that failed.
//
//go:uintptrescapes
func (d *Device) call(p dl.Proc, args ...uintptr) driver.Result {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if r := d.enter(); r != 0 {
		return r | entering
	}
	return driver.Result(p.Call(args...))
}

// callStruct is call for a function that takes a struct by value as argument at.
//
//go:uintptrescapes
func (d *Device) callStruct(p dl.Proc, at int, s []byte, args ...uintptr) driver.Result {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if r := d.enter(); r != 0 {
		return r | entering
	}
	return driver.Result(p.CallStruct(at, s, args...))
}

// fail describes the code r of the call that format and args describe.
func (d *Device) fail(r driver.Result, format string, args ...any) *Error {
	if r&entering != 0 {
		return d.api.Error(d.String(), "cuCtxSetCurrent", r&^entering)
	}
	return d.api.Error(d.String(), fmt.Sprintf(format, args...), r)
}

// Close releases what was made through this handle and still lives: streams,
// after their work, modules, memory, events; then the context. It returns the
// first error, and what cannot be released after it is lost with the context.
// What is borrowed stays: it only waits for the work of borrowed streams.
func (d *Device) Close() error {
	d.mu.Lock()
	if d.closed {
		d.mu.Unlock()
		return nil
	}
	d.closed = true
	streams, modules, pools := keys(d.streams), keys(d.modules), keys(d.pools)
	d.mu.Unlock()

	var first error
	note := func(err error) {
		if first == nil {
			first = err
		}
	}
	for _, s := range streams {
		note(s.Close())
	}
	for _, m := range modules {
		note(m.Unload())
	}
	d.mu.Lock()
	var left []device.Buffer
	for addr, a := range d.memory {
		left = append(left, a.buffer(addr))
	}
	d.mu.Unlock()
	for _, b := range left {
		note(d.release(b))
	}
	for _, p := range pools {
		note(p.Close())
	}
	note(d.events.close())
	if d.primary {
		if r := driver.Result(d.api.DevicePrimaryCtxRelease.Call(d.id)); r != 0 {
			note(d.fail(r, "cuDevicePrimaryCtxRelease"))
		}
	}
	return first
}

func keys[K comparable](m map[K]struct{}) []K {
	out := make([]K, 0, len(m))
	for k := range m {
		out = append(out, k)
	}
	return out
}
