// Package verbs calls libibverbs, which it opens at run time.
//
// API is a table of functions rather than an interface, so that a test can put its
// own in place of some or of all: the transport above it is tried with completions
// that fail, come late or never come.
//
// Posting and polling are inline functions of the C header. Their addresses lie in
// the device's context, at offsets that have not changed since libibverbs 1.1.
package verbs

import "net/netip"

// API is what the transport uses of libibverbs. Errors name the call and what the
// system said. Posting to a queue pair, and polling a completion queue, is for one
// goroutine at a time.
type API struct {
	Devices func() ([]string, error) // names; none is no error
	Open    func(device string) (Context, error)
	Close   func(Context) error
	Limits  func(Context) (Limits, error)
	Port    func(c Context, port uint8) (Port, error)
	GIDs    func(Context) ([]GID, error) // of all ports, in the order of the table
	PKey    func(c Context, port uint8, index int) (uint16, error)

	AllocPD   func(Context) (PD, error)
	DeallocPD func(PD) error
	// Register makes n bytes at addr, of the host or of a GPU, known to the device.
	Register func(pd PD, addr uintptr, n int, access Access) (Region, error)
	// RegisterDMABuf registers n bytes at offset of a DMA buffer. The device addresses
	// them from iova on.
	RegisterDMABuf func(pd PD, fd int, offset uint64, n int, iova uint64, access Access) (Region, error)
	Deregister     func(Region) error

	NewChannel     func(Context) (Channel, error)
	DestroyChannel func(Channel) error
	// NewCQ makes a completion queue with room for n, whose notifications come on ch.
	NewCQ     func(c Context, n int, ch Channel) (*CQ, error)
	DestroyCQ func(*CQ) error
	NewQP     func(pd PD, cq *CQ, cap Capacity) (*QP, error)
	ModifyQP  func(*QP, *Attr, Mask) error
	DestroyQP func(*QP) error

	PostSend func(*QP, *Send) error
	PostRecv func(q *QP, id uint64) error // without memory: for writes with an immediate
	// Poll takes completions, none where there are none.
	Poll func(cq *CQ, into []Completion) (int, error)
	// Notify asks for an event on the queue's channel at the next completion.
	Notify func(*CQ) error
	// CQEvent takes an event of a channel and acknowledges it. false: there is none.
	CQEvent func(Channel, *CQ) (bool, error)
	// AsyncEvent takes an event of the device and acknowledges it. false: there is none.
	AsyncEvent func(Context) (Event, bool, error)
}

// Handles of libibverbs' objects.
type (
	PD uintptr
	// Context is an open device, with the descriptor on which its events come.
	Context struct {
		Handle  uintptr
		EventFD int
	}
	// Channel is where completion queues notify, with its descriptor.
	Channel struct {
		Handle uintptr
		FD     int
	}
	// Region is registered memory.
	Region struct {
		Handle     uintptr
		LKey, RKey uint32
	}
)

// CQ is a completion queue.
type CQ struct {
	Handle uintptr
	poll   call
	notify call
	raw    []byte
}

// QP is a reliable connected queue pair.
type QP struct {
	Handle     uintptr
	Num        uint32
	send, recv call
	raw        []byte
}

// Capacity is what a queue pair has room for.
type Capacity struct{ Send, Recv int }

// Limits of a device.
type Limits struct{ QPs, WorkRequests, CQEntries int }

// LinkLayer tells Ethernet (RoCE) from InfiniBand.
type LinkLayer uint8

const (
	InfiniBand LinkLayer = 1
	Ethernet   LinkLayer = 2
)

func (l LinkLayer) String() string {
	switch l {
	case InfiniBand:
		return "InfiniBand"
	case Ethernet:
		return "Ethernet"
	}
	return "unknown link layer"
}

// PortActive is the state of a port that carries traffic.
const PortActive = 4

var portStates = [...]string{"in no state", "down", "initializing", "armed", "active", "active, but deferred"}

// Port is the state of a port.
type Port struct {
	State      int
	MTU        MTU
	MaxMessage int
	PKeys      int
	LID        uint16
	Link       LinkLayer
}

// StateString is the port's state in words.
func (p Port) StateString() string {
	if p.State < 0 || p.State >= len(portStates) {
		return "in an unknown state"
	}
	return portStates[p.State]
}

// MTU is the size of a packet's data: 1 is 256 bytes, 5 is 4096.
type MTU uint8

// Bytes is the size.
func (m MTU) Bytes() int { return 128 << m }

// GIDType is the protocol that an address is for.
type GIDType uint32

const (
	TypeIB     GIDType = 0
	TypeRoCEv1 GIDType = 1
	TypeRoCEv2 GIDType = 2
)

func (t GIDType) String() string {
	switch t {
	case TypeIB:
		return "IB"
	case TypeRoCEv1:
		return "RoCE v1"
	case TypeRoCEv2:
		return "RoCE v2"
	}
	return "unknown type"
}

// GID is an address of a port.
type GID struct {
	Addr  netip.Addr // 16 bytes; IPv4 is mapped
	Index int
	Port  uint8
	Type  GIDType
	Iface int // index of the network interface, 0 for none
}

// Access is what a region may be used for.
type Access int

const (
	LocalWrite  Access = 1
	RemoteWrite Access = 2
	RemoteRead  Access = 4
)

// Op is what a posted send does.
type Op uint32

const (
	Write    Op = 0
	WriteImm Op = 1
	Read     Op = 4
)

// Send is a write to the peer's memory, or a read of it.
type Send struct {
	ID       uint64
	Op       Op
	Signaled bool // completes visibly; a failure always does
	Imm      uint32
	Local    uintptr
	LKey     uint32
	Bytes    int
	Remote   uint64
	RKey     uint32
}

// Completion is the end of a posted send or receive. Of a failed one only ID,
// Status and Vendor hold.
type Completion struct {
	ID     uint64
	Status Status
	Vendor uint32 // the vendor's own code
	Imm    uint32
}

// Mask says which fields of an Attr count.
type Mask int

// The steps that connect a queue pair.
const (
	ToInit  Mask = 0x39
	ToReady Mask = 0x129181 // ready to receive
	ToSend  Mask = 0x12e01  // ready to send
)

// Attr are a queue pair's settings.
type Attr struct {
	Access    Access
	PKeyIndex int
	Port      uint8

	MTU     MTU
	PeerQP  uint32
	PeerPSN uint32
	Peer    netip.Addr // GID; used where Global
	Global  bool
	LID     uint16
	SL      uint8
	GID     int // index of this end's
	Traffic uint8
	RNRWait uint8 // code of the time between a sender's tries while there is no receive

	PSN     uint32
	Timeout uint8 // 4.096 µs * 2^Timeout
	Retries uint8
	RNR     uint8 // tries while there is no receive; 7 is endless
}
