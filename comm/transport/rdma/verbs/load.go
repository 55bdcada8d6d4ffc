package verbs

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"syscall"
	"unsafe"

	"github.com/gorun-dev/gorun/runtime/dl"
)

// Spec says where libibverbs is looked for.
var Spec = dl.Spec{
	Name: "libibverbs", Files: []string{"libibverbs.so.1"}, Env: "GORUN_IBVERBS_LIB", Gives: "RDMA",
	Install: "rdma-core (Debian and Ubuntu: libibverbs1 and ibverbs-providers; RHEL and SUSE: libibverbs)",
}

// library is the functions of libibverbs, at their addresses.
type library struct {
	getDeviceList, freeDeviceList, getDeviceName, openDevice, closeDevice dl.Proc

	queryDevice, queryPort, queryGIDTable, queryPKey dl.Proc
	allocPD, deallocPD, regMR, deregMR               dl.Proc
	createChannel, destroyChannel, createCQ          dl.Proc
	destroyCQ, createQP, modifyQP, destroyQP         dl.Proc
	getCQEvent, ackCQEvents                          dl.Proc
	getAsyncEvent, ackAsyncEvent, forkInit, errno    dl.Proc

	regDMABuf dl.Proc // from libibverbs 1.12 on, else 0
}

// call is an inline function of the header: its address is the device's, and its
// arguments are always at the same place.
type call struct {
	proc dl.Proc
	args []uintptr
}

func (c *call) do() int { return int(int32(c.proc.Call(c.args...))) }

var loaded = sync.OnceValues(load)

// Load opens libibverbs, once for the process. It fails where the library is
// missing or too old; a host without a device is no failure.
func Load() (*API, error) { return loaded() }

func load() (*API, error) {
	so, err := dl.Open(Spec)
	if err != nil {
		return nil, err
	}
	l := &library{}
	for name, to := range map[string]*dl.Proc{
		"ibv_get_device_list": &l.getDeviceList, "ibv_free_device_list": &l.freeDeviceList, "ibv_get_device_name": &l.getDeviceName,
		"ibv_open_device": &l.openDevice, "ibv_close_device": &l.closeDevice, "ibv_query_device": &l.queryDevice,
		"ibv_query_port": &l.queryPort, "_ibv_query_gid_table": &l.queryGIDTable, "ibv_query_pkey": &l.queryPKey,
		"ibv_alloc_pd": &l.allocPD, "ibv_dealloc_pd": &l.deallocPD, "ibv_reg_mr": &l.regMR, "ibv_dereg_mr": &l.deregMR,
		"ibv_create_comp_channel": &l.createChannel, "ibv_destroy_comp_channel": &l.destroyChannel, "ibv_create_cq": &l.createCQ,
		"ibv_destroy_cq": &l.destroyCQ, "ibv_create_qp": &l.createQP, "ibv_modify_qp": &l.modifyQP, "ibv_destroy_qp": &l.destroyQP,
		"ibv_get_cq_event": &l.getCQEvent, "ibv_ack_cq_events": &l.ackCQEvents, "ibv_get_async_event": &l.getAsyncEvent,
		"ibv_ack_async_event": &l.ackAsyncEvent, "ibv_fork_init": &l.forkInit, "__errno_location": &l.errno,
	} {
		if *to, err = so.Proc(name); err != nil {
			return nil, fmt.Errorf("%w (gorun needs rdma-core 32 or later)", err)
		}
	}
	if p, err := so.Proc("ibv_reg_dmabuf_mr"); err == nil {
		l.regDMABuf = p
	}
	// Programs that this process starts must not take the registered pages along.
	if rc := syscall.Errno(l.forkInit.Call()); rc != 0 {
		return nil, fmt.Errorf("ibv_fork_init: %w", rc)
	}
	return l.api(), nil
}

func (l *library) api() *API {
	return &API{
		Devices: l.devices, Open: l.open, Close: func(c Context) error { return l.code("ibv_close_device", l.closeDevice, c.Handle) },
		Limits: l.limits, Port: l.port, GIDs: l.gids, PKey: l.pkey,
		AllocPD: func(c Context) (PD, error) {
			p, err := l.object("ibv_alloc_pd", l.allocPD, c.Handle)
			return PD(p), err
		},
		DeallocPD: func(p PD) error { return l.code("ibv_dealloc_pd", l.deallocPD, uintptr(p)) },
		Register:  l.register, RegisterDMABuf: l.registerDMABuf,
		Deregister:     func(r Region) error { return l.code("ibv_dereg_mr", l.deregMR, r.Handle) },
		NewChannel:     l.newChannel,
		DestroyChannel: func(ch Channel) error { return l.code("ibv_destroy_comp_channel", l.destroyChannel, ch.Handle) },
		NewCQ:          l.newCQ, DestroyCQ: func(q *CQ) error { return l.code("ibv_destroy_cq", l.destroyCQ, q.Handle) },
		NewQP: l.newQP, ModifyQP: l.modify, DestroyQP: func(q *QP) error { return l.code("ibv_destroy_qp", l.destroyQP, q.Handle) },
		PostSend: postSend, PostRecv: postRecv, Poll: poll, Notify: notify,
		CQEvent: l.cqEvent, AsyncEvent: l.asyncEvent,
	}
}

// object calls a function that returns a pointer, or nil and sets errno.
func (l *library) object(name string, f dl.Proc, args ...uintptr) (uintptr, error) {
	runtime.LockOSThread() // errno is the thread's
	defer runtime.UnlockOSThread()
	p := f.Call(args...)
	if p == 0 {
		return 0, os.NewSyscallError(name, l.lastError())
	}
	return p, nil
}

// code calls a function that returns 0 or an error number.
func (l *library) code(name string, f dl.Proc, args ...uintptr) error {
	if rc := int32(f.Call(args...)); rc != 0 {
		return os.NewSyscallError(name, syscall.Errno(max(rc, -rc)))
	}
	return nil
}

func (l *library) lastError() syscall.Errno {
	return syscall.Errno(at[int32](l.errno.Call(), 0))
}

func (l *library) devices() ([]string, error) {
	var names []string
	err := l.each(func(name string, _ uintptr) bool { names = append(names, name); return true })
	if errors.Is(err, syscall.ENOSYS) {
		return nil, nil // the kernel has no RDMA
	}
	return names, err
}

// each calls f for every device until it returns false.
func (l *library) each(f func(name string, device uintptr) bool) error {
	var n int32
	runtime.LockOSThread()
	list := l.getDeviceList.Call(uintptr(unsafe.Pointer(&n)))
	err := l.lastError()
	runtime.UnlockOSThread()
	if list == 0 {
		return os.NewSyscallError("ibv_get_device_list", err)
	}
	defer l.freeDeviceList.Call(list)
	for i := range int(n) {
		d := at[uintptr](list, uintptr(8*i))
		if !f(dl.GoString(l.getDeviceName.Call(d)), d) {
			break
		}
	}
	return nil
}

func (l *library) open(device string) (c Context, err error) {
	found := false
	e := l.each(func(name string, d uintptr) bool {
		if found = name == device; found {
			c.Handle, err = l.object("ibv_open_device", l.openDevice, d)
		}
		return !found
	})
	switch {
	case e != nil:
		return c, e
	case err != nil:
		return c, err
	case !found:
		return c, fmt.Errorf("there is no RDMA device %s", device)
	}
	c.EventFD = int(at[int32](c.Handle, contextEventFD))
	return c, os.NewSyscallError("fcntl", syscall.SetNonblock(c.EventFD, true))
}

func (l *library) limits(c Context) (Limits, error) {
	b := memory(sizeRoom)
	err := l.code("ibv_query_device", l.queryDevice, c.Handle, address(b))
	runtime.KeepAlive(b)
	return decodeLimits(b), err
}

func (l *library) port(c Context, port uint8) (Port, error) {
	b := memory(sizeRoom)
	err := l.code("ibv_query_port", l.queryPort, c.Handle, uintptr(port), address(b))
	runtime.KeepAlive(b)
	return decodePort(b), err
}

func (l *library) gids(c Context) ([]GID, error) {
	const most = 1024 // the kernel takes at most 64 KiB
	b := memory(most * sizeGID)
	n := int(l.queryGIDTable.Call(c.Handle, address(b), most, 0, sizeGID))
	if n < 0 {
		return nil, os.NewSyscallError("ibv_query_gid_table", syscall.Errno(-n))
	}
	out := make([]GID, n)
	for i := range out {
		out[i] = decodeGID(b[i*sizeGID:])
	}
	return out, nil
}

func (l *library) pkey(c Context, port uint8, index int) (uint16, error) {
	var key uint16
	if rc := int32(l.queryPKey.Call(c.Handle, uintptr(port), uintptr(index), uintptr(unsafe.Pointer(&key)))); rc != 0 {
		return 0, fmt.Errorf("ibv_query_pkey: no entry %d", index)
	}
	return swap16(key), nil
}

func (l *library) register(pd PD, addr uintptr, n int, access Access) (Region, error) {
	p, err := l.object("ibv_reg_mr", l.regMR, uintptr(pd), addr, uintptr(n), uintptr(access))
	return region(p), err
}

func (l *library) registerDMABuf(pd PD, fd int, offset uint64, n int, iova uint64, access Access) (Region, error) {
	if l.regDMABuf == 0 {
		return Region{}, errors.New("this libibverbs has no ibv_reg_dmabuf_mr: rdma-core 34 or later has")
	}
	p, err := l.object("ibv_reg_dmabuf_mr", l.regDMABuf, uintptr(pd), uintptr(offset), uintptr(n), uintptr(iova), uintptr(fd), uintptr(access))
	return region(p), err
}

func region(p uintptr) Region {
	if p == 0 {
		return Region{}
	}
	return Region{p, at[uint32](p, mrLKey), at[uint32](p, mrRKey)}
}
