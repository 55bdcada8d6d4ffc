package rdma

import (
	"encoding/binary"

	"github.com/gorun-dev/gorun/comm/transport"
)

// What a rank writes into a peer's memory, and the 32 bits of immediate data that
// tell the peer that it is there.
//
// For each peer a rank has slots, in which records come, and a table of grants. The
// records of one direction are numbered; record s goes to slot s mod slots, over queue
// pair s mod queue pairs. Queue pairs may overtake each other, so the receiver sorts
// by the number. A record's slot is free again when the receiver says so, by a credit.
//
// A message whose memory is not registered travels in records: the first holds the
// header and the data's beginning, others the rest. One whose memory is registered is
// announced by a record alone. The receiver answers with a grant, once it knows where
// the message goes: the address, if that memory is registered too, into which the
// sender then writes in stripes, one for each queue pair; or that it shall come in
// records. A message from or to memory of a GPU is always announced, whatever its size,
// and cannot come in records.
const (
	immKindShift = 30
	immMask      = 1<<immKindShift - 1

	immRecord uint32 = 0 // the record's number
	immCredit uint32 = 1 // how many records the receiver is done with
	immGrant  uint32 = 2 // the announcement's number
	immDone   uint32 = 3 // likewise; a stripe of its message is complete
)

func immediate(kind uint32, n uint64) uint32 { return kind<<immKindShift | uint32(n&immMask) }

// after is the number at or after base whose low bits are those of imm.
func after(base uint64, imm uint32) uint64 {
	return base + (uint64(imm)-base)&immMask
}

// A record is its head and data.
type record struct {
	kind    uint8
	bytes   uint32 // of data in this record
	message uint64
	size    uint64 // of the message; of recData: where in it the data goes
	header  transport.Header
}

const (
	recData     uint8 = iota + 1 // a message's further data
	recMessage                   // a message, with as much data as fits
	recAnnounce                  // a message whose data awaits a grant
	recGoodbye                   // the rank leaves
)

const headSize = 64

var le = binary.LittleEndian

func (r record) encode(b []byte) {
	b[0] = r.kind
	le.PutUint32(b[4:], r.bytes)
	le.PutUint64(b[8:], r.message)
	le.PutUint64(b[16:], r.size)
	r.header.Encode(b[24:])
}

func decodeRecord(b []byte) record {
	return record{kind: b[0], bytes: le.Uint32(b[4:]), message: le.Uint64(b[8:]), size: le.Uint64(b[16:]), header: transport.Decode(b[24:])}
}

// A grant answers an announcement.
type grant struct {
	addr uint64 // 0: send it in records
	rkey uint32
}

const grantSize = 16

func (g grant) encode(b []byte) {
	le.PutUint64(b, g.addr)
	le.PutUint32(b[8:], g.rkey)
}

func decodeGrant(b []byte) grant { return grant{le.Uint64(b), le.Uint32(b[8:])} }

// hail is what a rank tells the others when it joins.
type hail struct {
	Device, GID string // in words
	Port        uint8
	Ethernet    bool
	Addr        [16]byte // GID
	LID         uint16
	MTU         uint8
	MaxMessage  int // bytes that the device carries at once
	Slots       int
	SlotSize    int
	QPs         int
	RKey        uint32
	Peers       []hailPeer // what belongs to each rank
}

type hailPeer struct {
	Slots, Grants uint64 // addresses
	QPs, PSNs     []uint32
}
