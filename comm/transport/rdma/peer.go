package rdma

import (
	"fmt"
	"net/netip"
	"time"
	"unsafe"

	"github.com/gorun-dev/gorun/comm/transport"
	"github.com/gorun-dev/gorun/comm/transport/rdma/verbs"
)

// peer is another rank, and what is under way to and from it.
type peer struct {
	rank         int
	host, device string // the device in words
	qps          []queue
	most         int // bytes of a write

	// Its memory, and what of this rank's is for it.
	slotsAt, grantsAt   uint64
	rkey                uint32
	inSlots, outSlots   []byte
	inGrants, outGrants []byte

	// Outbound.
	sends   line[*outgoing] // posted, and not waited for
	next    uint64          // the first message neither announced nor all in records
	directs line[*outgoing] // announced messages, by the number of the announcement
	records uint64          // records sent
	freed   uint64          // records that the peer is done with

	// Inbound.
	wants     line[*incoming] // receives posted, and not waited for
	arrived   [slots]bool     // records at and after taken that are there
	taken     uint64          // records done with
	credited  uint64          // records for which credit was given
	announced line[record]    // announcements without an answer
	granted   line[*incoming] // answered announcements
	checked   uint64          // messages up to this one are those that this rank has called, or will
	left      bool            // peer has said goodbye

	asked   time.Time // when it was last probed, or first waited for
	broken  *failure  // a write to it that failed
	touched bool      // something has happened since it was looked at
}

func (p *peer) String() string { return fmt.Sprintf("rank %d on %s (%s)", p.rank, p.host, p.device) }

// queue is a queue pair to a peer.
type queue struct {
	qp        *verbs.QP
	psn       uint32
	id        uint64
	posted    uint64 // writes
	completed uint64
	silent    int // writes posted since the last one that completes visibly
	signals   line[signal]
	probing   bool
}

// signal is a write that completes visibly.
type signal struct {
	number uint64 // among the queue's writes
	at     time.Time
	stripe *outgoing // a stripe of its data ends here
	probe  bool
}

// outgoing is a message to a peer.
type outgoing struct {
	number   uint64 // among the messages to the peer
	header   transport.Header
	data     []byte  // nil where it is of a GPU
	addr     uintptr // of the data
	size     int
	lkey     uint32
	direct   bool // the data is registered, and large or of a GPU: wait for a grant
	granted  bool
	at       grant
	pushed   int   // bytes in records
	stripes  []int // where each stripe goes on, of a direct message
	begun    bool  // its header is on its way
	open     int   // stripes without their completion
	finished bool
}

// incoming is a receive.
type incoming struct {
	header   transport.Header
	data     []byte  // nil where it goes to a GPU
	addr     uintptr // where the data goes
	size     int
	gpu      *GPUMemory
	got      int // bytes, in records
	stripes  int // complete, of a direct message
	finished bool
}

// line is a queue of things numbered from 0 on; those before first are gone.
type line[T any] struct {
	first uint64
	items []T
}

func (l *line[T]) push(v T)    { l.items = append(l.items, v) }
func (l *line[T]) end() uint64 { return l.first + uint64(len(l.items)) }

// at is item n, which is there.
func (l *line[T]) at(n uint64) *T { return &l.items[n-l.first] }

func (l *line[T]) pop() {
	var none T
	l.items[0] = none
	l.items = l.items[1:]
	l.first++
}

// Identifiers of work requests: whose queue pair, and whether a receive.
const (
	idRecv = 1 << 63
	idRank = 8
)

func workID(rank, queue int) uint64 { return uint64(rank)<<idRank | uint64(queue) }

// of finds the queue pair of a work request.
func (m *Mesh) of(id uint64) (p *peer, q *queue, recv bool) {
	p = &m.peers[id&^idRecv>>idRank]
	return p, &p.qps[id&(1<<idRank-1)], id&idRecv != 0
}

func addressOf(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }

func gidAddr(b [16]byte) netip.Addr { return netip.AddrFrom16(b) }
