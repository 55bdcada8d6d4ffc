// Package rdmatest puts RDMA devices in the memory of the process, for tests of what
// works over libibverbs on machines that have none.
package rdmatest

import (
	"net/netip"
	"sync"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/gorun-dev/gorun/comm/transport/rdma/verbs"
)

// Fabric is the devices fake0 and fake1 in the memory of a test, which reach each other:
// what is posted happens at once. Tests change what its functions do in what API returns.
type Fabric struct {
	Port verbs.Port // of every device
	GIDs []verbs.GID
	// Fate decides what becomes of a posted write or read. nil: it succeeds.
	Fate func(s *verbs.Send) Fate
	// Move copies what a write or a read carries. It is that of memory, unless set.
	Move func(to, from uintptr, n int)

	t testing.TB

	mu       sync.Mutex
	next     uintptr
	channels map[uintptr]*pipe
	contexts map[uintptr]*pipe
	events   map[uintptr][]verbs.Event
	cqs      map[uintptr]*fakeCQ
	qps      map[uint32]*fakeQP
	regions  map[uint32]span
	live     map[string]int
	writes   int
}

// Fate is how a write or a read ends.
type Fate struct {
	Status verbs.Status
	Lost   bool // it never completes
}

type pipe struct{ r, w int }

type fakeCQ struct {
	channel *pipe
	done    []entry
	armed   bool
}

// entry is a completion, and the places in a queue that are free once it is taken.
type entry struct {
	verbs.Completion
	q    *fakeQP
	free int
}

type fakeQP struct {
	num, peer uint32
	cq        *fakeCQ
	cap       verbs.Capacity
	recvs     []uint64
	under     int // writes that hold a place in the queue
	silent    int // of them, those since the last visible one
	broken    bool
	attr      verbs.Attr
}

type span struct {
	addr   uintptr
	n      int
	access verbs.Access
}

// New makes a fabric. When the test ends nothing may be left of what it gave.
func New(t testing.TB) *Fabric {
	f := &Fabric{t: t, channels: map[uintptr]*pipe{}, contexts: map[uintptr]*pipe{}, events: map[uintptr][]verbs.Event{},
		cqs: map[uintptr]*fakeCQ{}, qps: map[uint32]*fakeQP{}, regions: map[uint32]span{}, live: map[string]int{},
		Move: func(to, from uintptr, n int) { copy(bytesAt(to, n), bytesAt(from, n)) },
		Port: verbs.Port{State: verbs.PortActive, MTU: 5, MaxMessage: 1 << 30, PKeys: 1, Link: verbs.Ethernet},
		GIDs: []verbs.GID{{Addr: netip.MustParseAddr("fe80::1"), Port: 1, Type: verbs.TypeRoCEv2},
			{Addr: netip.MustParseAddr("::ffff:10.0.0.1"), Index: 1, Port: 1, Type: verbs.TypeRoCEv2}}}
	t.Cleanup(func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		for what, n := range f.live {
			if n != 0 {
				t.Errorf("%d of %s are left over", n, what)
			}
		}
	})
	return f
}

func (f *Fabric) make(what string) uintptr {
	f.next++
	f.live[what]++
	return f.next
}

func (f *Fabric) newPipe() *pipe {
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_NONBLOCK|unix.O_CLOEXEC); err != nil {
		f.t.Error(err)
	}
	return &pipe{fds[0], fds[1]}
}

func (p *pipe) write() { syscall.Write(p.w, []byte{1}) }

func (p *pipe) take() bool {
	var b [1]byte
	n, _ := syscall.Read(p.r, b[:])
	return n == 1
}

func (p *pipe) close() { syscall.Close(p.r); syscall.Close(p.w) }

// Event has every open device report e.
func (f *Fabric) Event(e verbs.Event) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for h, p := range f.contexts {
		f.events[h] = append(f.events[h], e)
		p.write()
	}
}

// API is what libibverbs would be.
func (f *Fabric) API() *verbs.API {
	locked := func() func() { f.mu.Lock(); return f.mu.Unlock }
	gone := func(what string) error { f.live[what]--; return nil }
	return &verbs.API{
		Devices: func() ([]string, error) { return []string{"fake0", "fake1"}, nil },
		Open: func(string) (verbs.Context, error) {
			defer locked()()
			h := f.make("devices")
			p := f.newPipe()
			f.contexts[h] = p
			return verbs.Context{Handle: h, EventFD: p.r}, nil
		},
		Close: func(c verbs.Context) error {
			defer locked()()
			f.contexts[c.Handle].close()
			delete(f.contexts, c.Handle)
			return gone("devices")
		},
		Limits: func(verbs.Context) (verbs.Limits, error) { return verbs.Limits{QPs: 1000, CQEntries: 100000}, nil },
		Port: func(_ verbs.Context, n uint8) (verbs.Port, error) {
			if n != 1 {
				return verbs.Port{}, syscall.EINVAL
			}
			return f.Port, nil
		},
		GIDs:    func(verbs.Context) ([]verbs.GID, error) { return f.GIDs, nil },
		PKey:    func(verbs.Context, uint8, int) (uint16, error) { return 0xffff, nil },
		AllocPD: func(verbs.Context) (verbs.PD, error) { defer locked()(); return verbs.PD(f.make("domains")), nil },
		DeallocPD: func(verbs.PD) error {
			defer locked()()
			return gone("domains")
		},
		Register: func(_ verbs.PD, addr uintptr, n int, access verbs.Access) (verbs.Region, error) {
			defer locked()()
			h := f.make("regions")
			f.regions[uint32(h)] = span{addr, n, access}
			return verbs.Region{Handle: h, LKey: uint32(h), RKey: uint32(h)}, nil
		},
		RegisterDMABuf: func(verbs.PD, int, uint64, int, uint64, verbs.Access) (verbs.Region, error) {
			return verbs.Region{}, syscall.EOPNOTSUPP
		},
		Deregister: func(r verbs.Region) error {
			defer locked()()
			delete(f.regions, r.RKey)
			return gone("regions")
		},
		NewChannel: func(verbs.Context) (verbs.Channel, error) {
			defer locked()()
			h, p := f.make("channels"), f.newPipe()
			f.channels[h] = p
			return verbs.Channel{Handle: h, FD: p.r}, nil
		},
		DestroyChannel: func(c verbs.Channel) error {
			defer locked()()
			f.channels[c.Handle].close()
			return gone("channels")
		},
		NewCQ: func(_ verbs.Context, _ int, ch verbs.Channel) (*verbs.CQ, error) {
			defer locked()()
			h := f.make("completion queues")
			f.cqs[h] = &fakeCQ{channel: f.channels[ch.Handle]}
			return &verbs.CQ{Handle: h}, nil
		},
		DestroyCQ: func(*verbs.CQ) error { defer locked()(); return gone("completion queues") },
		NewQP: func(_ verbs.PD, cq *verbs.CQ, cap verbs.Capacity) (*verbs.QP, error) {
			defer locked()()
			h := f.make("queue pairs")
			f.qps[uint32(h)] = &fakeQP{num: uint32(h), cq: f.cqs[cq.Handle], cap: cap}
			return &verbs.QP{Handle: h, Num: uint32(h)}, nil
		},
		ModifyQP: func(q *verbs.QP, a *verbs.Attr, to verbs.Mask) error {
			defer locked()()
			if to == verbs.ToReady {
				f.qps[q.Num].peer, f.qps[q.Num].attr = a.PeerQP, *a
			}
			return nil
		},
		DestroyQP: func(q *verbs.QP) error {
			defer locked()()
			delete(f.qps, q.Num)
			return gone("queue pairs")
		},
		PostSend: f.postSend,
		PostRecv: func(q *verbs.QP, id uint64) error {
			defer locked()()
			qp := f.qps[q.Num]
			if len(qp.recvs) == qp.cap.Recv {
				return syscall.ENOMEM
			}
			qp.recvs = append(qp.recvs, id)
			return nil
		},
		Poll: func(q *verbs.CQ, into []verbs.Completion) (int, error) {
			defer locked()()
			cq := f.cqs[q.Handle]
			n := min(len(into), len(cq.done))
			for i, e := range cq.done[:n] {
				if into[i] = e.Completion; e.q != nil {
					e.q.under -= e.free
				}
			}
			cq.done = cq.done[n:]
			return n, nil
		},
		Notify: func(q *verbs.CQ) error { defer locked()(); f.cqs[q.Handle].armed = true; return nil },
		CQEvent: func(ch verbs.Channel, _ *verbs.CQ) (bool, error) {
			defer locked()()
			return f.channels[ch.Handle].take(), nil
		},
		AsyncEvent: func(c verbs.Context) (verbs.Event, bool, error) {
			defer locked()()
			if !f.contexts[c.Handle].take() {
				return 0, false, nil
			}
			e := f.events[c.Handle][0]
			f.events[c.Handle] = f.events[c.Handle][1:]
			return e, true, nil
		},
	}
}

// Peers are the settings with which queue pairs were connected.
func (f *Fabric) Peers() (all []verbs.Attr) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, q := range f.qps {
		all = append(all, q.attr)
	}
	return all
}

func (q *fakeCQ) push(e entry) {
	q.done = append(q.done, e)
	if q.armed {
		q.armed = false
		q.channel.write()
	}
}

func (f *Fabric) postSend(handle *verbs.QP, s *verbs.Send) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	q := f.qps[handle.Num]
	if q.under == q.cap.Send {
		return syscall.ENOMEM
	}
	f.writes++
	q.under++
	q.silent++
	result := Fate{}
	if f.Fate != nil {
		result = f.Fate(s)
	}
	peer := f.qps[q.peer]
	switch {
	case q.broken:
		result.Status = verbs.Flushed
	case result.Lost || result.Status != verbs.Success:
	case peer == nil:
		result.Status = verbs.RetryExceeded
	default:
		result.Status = f.carry(peer, s)
	}
	if result.Lost {
		return nil
	}
	if result.Status != verbs.Success {
		q.broken = true
		q.cq.push(entry{Completion: verbs.Completion{ID: s.ID, Status: result.Status, Vendor: 7}})
		return nil
	}
	if s.Signaled {
		q.cq.push(entry{verbs.Completion{ID: s.ID}, q, q.silent})
		q.silent = 0
	}
	return nil
}

// carry is what the peer's device does with a write.
func (f *Fabric) carry(peer *fakeQP, s *verbs.Send) verbs.Status {
	if s.Bytes > f.Port.MaxMessage {
		return verbs.LocalLength
	}
	if s.Bytes > 0 {
		here, there := f.regions[s.LKey], f.regions[s.RKey]
		if !here.holds(s.Local, s.Bytes, verbs.LocalWrite) {
			return verbs.LocalProtect
		}
		access, to, from := verbs.RemoteWrite, uintptr(s.Remote), s.Local
		if s.Op == verbs.Read {
			access, to, from = verbs.RemoteRead, s.Local, uintptr(s.Remote)
		}
		if !there.holds(uintptr(s.Remote), s.Bytes, access) {
			return verbs.RemoteAccess
		}
		f.Move(to, from, s.Bytes)
	}
	if s.Op == verbs.WriteImm {
		if len(peer.recvs) == 0 {
			return verbs.RNRExceeded
		}
		id := peer.recvs[0]
		peer.recvs = peer.recvs[1:]
		peer.cq.push(entry{Completion: verbs.Completion{ID: id, Imm: s.Imm}})
	}
	return verbs.Success
}

func (s span) holds(addr uintptr, n int, access verbs.Access) bool {
	return s.access&access != 0 && addr >= s.addr && addr+uintptr(n) <= s.addr+uintptr(s.n)
}

func bytesAt(addr uintptr, n int) []byte {
	return unsafe.Slice(*(**byte)(unsafe.Pointer(&addr)), n)
}
