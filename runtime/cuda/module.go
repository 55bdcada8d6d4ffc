package cuda

import (
	"fmt"
	"sync/atomic"
	"unsafe"

	"github.com/gorun-dev/gorun/runtime/cuda/internal/driver"
	"github.com/gorun-dev/gorun/runtime/dl"
)

// Module is loaded code.
type Module struct {
	d      *Device
	name   string
	handle uintptr
}

// jit is what cuModuleLoadDataEx is given: a place for its complaints.
type jit struct {
	options [2]int32
	values  [2]uintptr
	log     [8 << 10]byte
}

// LoadModule loads a cubin, a fatbin, or PTX, which the driver compiles. An error
// carries the driver's log.
func (d *Device) LoadModule(name string, image []byte) (*Module, error) {
	if len(image) == 0 {
		return nil, fmt.Errorf("%s: module %s is empty", d, name)
	}
	const errorLog, errorLogSize = 5, 6
	m := &Module{d: d, name: name}
	j := &jit{options: [2]int32{errorLog, errorLogSize}}
	j.values = [2]uintptr{uintptr(unsafe.Pointer(&j.log)), uintptr(len(j.log))}
	text := append(image[:len(image):len(image)], 0) // PTX has to end in a zero
	r := d.call(d.api.ModuleLoadDataEx, uintptr(unsafe.Pointer(&m.handle)), uintptr(unsafe.Pointer(&text[0])),
		uintptr(len(j.options)), uintptr(unsafe.Pointer(&j.options)), uintptr(unsafe.Pointer(&j.values)))
	if r != 0 {
		err := d.fail(r, "module %s: cuModuleLoadDataEx(%d bytes)", name, len(image))
		if log := cut(j.log[:]); log != "" {
			return nil, fmt.Errorf("%w: %s", err, log)
		}
		return nil, err
	}
	d.mu.Lock()
	d.modules[m] = struct{}{}
	d.mu.Unlock()
	return m, nil
}

// Name is what the module was called when it was loaded.
func (m *Module) Name() string { return m.name }

// Handle is the CUmodule, for other libraries.
func (m *Module) Handle() uintptr { return m.handle }

// Unload releases the code, unless it is borrowed. No stream may still run it.
func (m *Module) Unload() error {
	m.d.mu.Lock()
	_, loaded := m.d.modules[m]
	delete(m.d.modules, m)
	m.d.mu.Unlock()
	if !loaded {
		return nil
	}
	if r := m.d.call(m.d.api.ModuleUnload, m.handle); r != 0 {
		return m.d.fail(r, "module %s: cuModuleUnload", m.name)
	}
	return nil
}

// Function is a kernel. It may be launched on every stream of its GPU.
type Function struct {
	d       *Device
	name    string
	handle  uintptr
	shared  int
	params  atomic.Int64              // 1 + the size of the arguments that launch has found to fit
	offsets atomic.Pointer[[]uintptr] // of the kernel's parameters in the arguments; nil where the driver cannot tell
}

// The attributes of a function.
const (
	funcStaticShared = 1
	funcMaxDynamic   = 8
)

// Function looks up the kernel called name, as extern "C" leaves it.
func (m *Module) Function(name string) (*Function, error) {
	d := m.d
	f := &Function{d: d, name: name}
	c := dl.CString(name)
	if r := d.call(d.api.ModuleGetFunction, uintptr(unsafe.Pointer(&f.handle)), m.handle, uintptr(unsafe.Pointer(c))); r != 0 {
		return nil, d.fail(r, "module %s: cuModuleGetFunction(%s)", m.name, name)
	}
	var shared int32
	if r := d.call(d.api.FuncGetAttribute, uintptr(unsafe.Pointer(&shared)), funcStaticShared, f.handle); r != 0 {
		return nil, d.fail(r, "function %s: cuFuncGetAttribute(%d)", name, funcStaticShared)
	}
	f.shared = int(shared)
	return f, nil
}

// Name is the kernel's.
func (f *Function) Name() string { return f.name }

// SharedBytes is the static shared memory of a block.
func (f *Function) SharedBytes() int { return f.shared }

// SetShared allows launches with up to bytes of dynamic shared memory; without it
// 48 KiB is the limit, of static and dynamic together.
func (f *Function) SetShared(bytes int) error {
	if r := f.d.call(f.d.api.FuncSetAttribute, f.handle, funcMaxDynamic, uintptr(bytes)); r != 0 {
		return f.d.fail(r, "function %s: cuFuncSetAttribute(%d bytes of dynamic shared memory)", f.name, bytes)
	}
	return nil
}

// Occupancy returns how many blocks of so many threads and bytes of dynamic
// shared memory a multiprocessor holds at a time.
func (f *Function) Occupancy(threads, shared int) (int, error) {
	var n int32
	r := f.d.call(f.d.api.OccupancyMaxActiveBlocksPerMultiprocessor, uintptr(unsafe.Pointer(&n)), f.handle, uintptr(threads), uintptr(shared))
	if r != driver.Success {
		return 0, f.d.fail(r, "function %s: cuOccupancyMaxActiveBlocksPerMultiprocessor(%d threads, %d bytes)", f.name, threads, shared)
	}
	return int(n), nil
}
