// Package nccl binds NCCL, NVIDIA's library of collectives between GPUs, without
// cgo: libnccl.so.2 is opened when it is first asked for.
//
// A communicator is made without blocking and every call on it returns at once or
// after a bounded time, so a rank that is lost never holds a thread of this
// process inside NCCL, and Abort always finds the communicator unused.
package nccl

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"unsafe"

	"github.com/gorun-dev/gorun/runtime/dl"
)

// spec is where the library is looked for.
var spec = dl.Spec{
	Name:    "NCCL",
	Files:   []string{"libnccl.so.2"},
	Env:     "GORUN_NCCL_LIB",
	Folders: []string{"nvidia/nccl/lib"},
	Gives:   "collectives between GPUs",
	Install: "libnccl2 of NVIDIA's repository, or pip's nvidia-nccl-cu12 or nvidia-nccl-cu13",
}

// Version is a release of NCCL.
type Version struct{ Major, Minor, Patch int }

func (v Version) String() string { return fmt.Sprintf("%d.%d.%d", v.Major, v.Minor, v.Patch) }

// AtLeast reports whether v is release major.minor or a later one.
func (v Version) AtLeast(major, minor int) bool {
	return v.Major > major || v.Major == major && v.Minor >= minor
}

// oldest is the first release with communicators that do not block.
var oldest = Version{2, 14, 0}

// code is the release as NCCL writes it into one number.
func (v Version) code() int { return v.Major*10000 + v.Minor*100 + v.Patch }

// versionOf reads NCCL's number. Up to 2.8 it had a digit less.
func versionOf(code int) Version {
	if code < 10000 {
		return Version{code / 1000, code / 100 % 10, code % 100}
	}
	return Version{code / 10000, code / 100 % 100, code % 100}
}

// Library is NCCL as it was found on this machine.
type Library struct {
	Version Version
	Path    string

	initScalable, initConfig            dl.Proc // either may be absent
	getUniqueID, getAsyncError          dl.Proc
	getErrorString, getLastError        dl.Proc
	abort, finalize, destroy            dl.Proc
	allReduce, reduceScatter, allGather dl.Proc
	broadcast, reduce, send, recv       dl.Proc
	groupStart, groupEnd                dl.Proc
	memAlloc, memFree                   dl.Proc // absent before 2.19
	talk                                *talk
}

// loaded is what Load has found, for a value of the variable that overrides the search.
var loaded struct {
	sync.Mutex
	done bool
	env  string
	lib  *Library
	err  error
}

// Load opens the library, once for the process.
func Load() (*Library, error) {
	l := &loaded
	l.Lock()
	defer l.Unlock()
	if env := os.Getenv(spec.Env); !l.done || env != l.env {
		l.done, l.env = true, env
		l.lib, l.err = open(spec)
	}
	return l.lib, l.err
}

func open(s dl.Spec) (*Library, error) {
	l, err := dl.Open(s)
	if err != nil {
		return nil, err
	}
	getVersion, err := l.Proc("ncclGetVersion")
	if err != nil {
		return nil, err
	}
	n := &Library{Path: l.Path}
	var code int32
	if r := int32(getVersion.Call(uintptr(unsafe.Pointer(&code)))); r != success {
		return nil, fmt.Errorf("NCCL: ncclGetVersion of %s: result %d", l.Path, r)
	}
	n.Version = versionOf(int(code))
	if !n.Version.AtLeast(oldest.Major, oldest.Minor) {
		return nil, fmt.Errorf("NCCL: %s is release %s, which can only make communicators that block for ever when a rank is lost: want %s or later (install %s)",
			l.Path, n.Version, oldest, s.Install)
	}
	for _, f := range []struct {
		proc         *dl.Proc
		name         string
		since, until Version // zero: always
	}{
		{&n.initScalable, "ncclCommInitRankScalable", Version{2, 23, 0}, Version{}},
		{&n.initConfig, "ncclCommInitRankConfig", Version{}, Version{2, 23, 0}},
		{&n.getUniqueID, "ncclGetUniqueId", Version{}, Version{}},
		{&n.getAsyncError, "ncclCommGetAsyncError", Version{}, Version{}},
		{&n.getErrorString, "ncclGetErrorString", Version{}, Version{}},
		{&n.getLastError, "ncclGetLastError", Version{}, Version{}},
		{&n.abort, "ncclCommAbort", Version{}, Version{}},
		{&n.finalize, "ncclCommFinalize", Version{}, Version{}},
		{&n.destroy, "ncclCommDestroy", Version{}, Version{}},
		{&n.allReduce, "ncclAllReduce", Version{}, Version{}},
		{&n.reduceScatter, "ncclReduceScatter", Version{}, Version{}},
		{&n.allGather, "ncclAllGather", Version{}, Version{}},
		{&n.broadcast, "ncclBroadcast", Version{}, Version{}},
		{&n.reduce, "ncclReduce", Version{}, Version{}},
		{&n.send, "ncclSend", Version{}, Version{}},
		{&n.recv, "ncclRecv", Version{}, Version{}},
		{&n.groupStart, "ncclGroupStart", Version{}, Version{}},
		{&n.groupEnd, "ncclGroupEnd", Version{}, Version{}},
		{&n.memAlloc, "ncclMemAlloc", Version{2, 19, 0}, Version{}},
		{&n.memFree, "ncclMemFree", Version{2, 19, 0}, Version{}},
	} {
		if n.Version.code() < f.since.code() || f.until != (Version{}) && n.Version.code() >= f.until.code() {
			continue
		}
		if *f.proc, err = l.Proc(f.name); err != nil {
			return nil, fmt.Errorf("release %s: %w", n.Version, err)
		}
	}
	n.talk = listen() // before NCCL first reads its environment
	return n, nil
}

// ID is what the ranks of a new communicator share. Rank 0 makes it, the others get
// it from there.
type ID [128]byte

// NewID makes an ID. A thread of NCCL waits under it for the ranks, at an address of
// this host that NCCL_SOCKET_IFNAME chooses.
func (l *Library) NewID() (ID, error) {
	id := new(ID)
	if r := int32(l.getUniqueID.Call(uintptr(unsafe.Pointer(id)))); r != success {
		return ID{}, l.errorOf("ncclGetUniqueId", r, 0)
	}
	return *id, nil
}

// Device is the GPU of a rank.
type Device interface {
	// Bind makes the device current for NCCL on the calling thread, to which the
	// goroutine stays locked until unbind.
	Bind() (unbind func())
	String() string
}

// ErrNoAlloc says that this release cannot allocate memory.
var ErrNoAlloc = errors.New("NCCL allocates memory from release 2.19 on")

// Alloc returns the address of n bytes on d that NCCL can map into other processes.
// They are not zeroed.
func (l *Library) Alloc(d Device, n int) (uintptr, error) {
	if l.memAlloc == 0 {
		return 0, ErrNoAlloc
	}
	defer d.Bind()()
	var p uintptr
	if r := int32(l.memAlloc.Call(uintptr(unsafe.Pointer(&p)), uintptr(n))); r != success {
		return 0, l.errorOf(fmt.Sprintf("%s: ncclMemAlloc(%d)", d, n), r, 0)
	}
	return p, nil
}

// Free releases what Alloc returned, once no stream uses it.
func (l *Library) Free(d Device, p uintptr) error {
	defer d.Bind()()
	if r := int32(l.memFree.Call(p)); r != success {
		return l.errorOf(fmt.Sprintf("%s: ncclMemFree(%#x)", d, p), r, 0)
	}
	return nil
}
