package verbs

import (
	"encoding/binary"
	"math/bits"
	"net/netip"
	"unsafe"
)

// Sizes and offsets of libibverbs' structs on 64-bit Linux. They are the library's
// stable interface; structs that grow at their end are given room.
const (
	contextEventFD = 268
	opPoll         = 96
	opNotify       = 104
	opPostSend     = 208
	opPostRecv     = 216

	mrLKey, mrRKey = 36, 40
	qpNum          = 52
	channelFD      = 8

	sizeCompletion = 48
	sizeGID        = 32
	sizeEvent      = 16
	sizeRoom       = 512 // for the port, the device and the attributes of a queue pair

	// In a queue pair's own memory: a work request, its one piece of memory, and where
	// the library says which request was wrong.
	rawRequest = 0
	rawPiece   = 128
	rawBad     = 144
	rawRecv    = 152
	rawSize    = 192
)

var le, be = binary.LittleEndian, binary.BigEndian

// memory is n bytes, zeroed, on the heap, aligned for any field: C may be given
// their address.
//
//go:noinline
func memory(n int) []byte {
	words := make([]uint64, (n+7)/8)
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(words))), n)
}

func address(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }

// at reads a field of a struct of C.
func at[T any](p uintptr, offset uintptr) T {
	base := *(*unsafe.Pointer)(unsafe.Pointer(&p)) // memory of C, which the collector does not know
	return *(*T)(unsafe.Add(base, offset))
}

func decodePort(b []byte) Port {
	return Port{State: int(le.Uint32(b)), MTU: MTU(le.Uint32(b[8:])), MaxMessage: int(le.Uint32(b[20:])),
		PKeys: int(le.Uint16(b[32:])), LID: le.Uint16(b[34:]), Link: LinkLayer(b[46])}
}

func decodeLimits(b []byte) Limits {
	return Limits{QPs: int(le.Uint32(b[108:])), WorkRequests: int(le.Uint32(b[112:])), CQEntries: int(le.Uint32(b[132:]))}
}

func decodeGID(b []byte) GID {
	return GID{Addr: netip.AddrFrom16([16]byte(b)), Index: int(le.Uint32(b[16:])), Port: uint8(le.Uint32(b[20:])),
		Type: GIDType(le.Uint32(b[24:])), Iface: int(le.Uint32(b[28:]))}
}

// encodeInit writes an ibv_qp_init_attr.
func encodeInit(b []byte, cq *CQ, cap Capacity) {
	le.PutUint64(b[8:], uint64(cq.Handle))
	le.PutUint64(b[16:], uint64(cq.Handle))
	le.PutUint32(b[32:], uint32(cap.Send))
	le.PutUint32(b[36:], uint32(cap.Recv))
	le.PutUint32(b[40:], 1) // pieces of memory a send
	le.PutUint32(b[44:], 1)
	le.PutUint32(b[52:], 2) // reliable connection
}

// encodeAttr writes an ibv_qp_attr.
func encodeAttr(b []byte, a *Attr, to Mask) {
	states := map[Mask]uint32{ToInit: 1, ToReady: 2, ToSend: 3}
	le.PutUint32(b, states[to])
	le.PutUint32(b[8:], uint32(a.MTU))
	le.PutUint32(b[20:], a.PeerPSN)
	le.PutUint32(b[24:], a.PSN)
	le.PutUint32(b[28:], a.PeerQP)
	le.PutUint32(b[32:], uint32(a.Access))
	path := b[56:]
	if a.Global {
		gid := a.Peer.As16()
		copy(path, gid[:])
		path[20], path[21], path[22], path[29] = uint8(a.GID), 255, a.Traffic, 1
	}
	le.PutUint16(path[24:], a.LID)
	path[26], path[30] = a.SL, a.Port
	le.PutUint16(b[120:], uint16(a.PKeyIndex))
	b[126], b[127], b[128], b[129] = 1, 1, a.RNRWait, a.Port
	b[130], b[131], b[132] = a.Timeout, a.Retries, a.RNR
}

// encodeSend writes an ibv_send_wr and its ibv_sge.
func encodeSend(b []byte, s *Send) {
	const signaled = 2
	piece, flags := b[rawPiece:], uint32(0)
	if s.Signaled {
		flags = signaled
	}
	le.PutUint64(piece, uint64(s.Local))
	le.PutUint32(piece[8:], uint32(s.Bytes))
	le.PutUint32(piece[12:], s.LKey)
	le.PutUint64(b, s.ID)
	le.PutUint64(b[16:], uint64(address(piece)))
	le.PutUint32(b[24:], uint32(min(s.Bytes, 1)))
	le.PutUint32(b[28:], uint32(s.Op))
	le.PutUint32(b[32:], flags)
	be.PutUint32(b[36:], s.Imm)
	le.PutUint64(b[40:], s.Remote)
	le.PutUint32(b[48:], s.RKey)
}

func decodeCompletion(b []byte) Completion {
	return Completion{ID: le.Uint64(b), Status: Status(le.Uint32(b[8:])), Vendor: le.Uint32(b[16:]), Imm: be.Uint32(b[24:])}
}

// swap16 turns a big-endian value as it lies in memory into a number.
func swap16(v uint16) uint16 { return bits.ReverseBytes16(v) }
