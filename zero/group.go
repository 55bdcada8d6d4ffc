package zero

import (
	"github.com/gorun-dev/gorun/comm"
	"github.com/gorun-dev/gorun/comm/agree"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
)

// Group is what zero needs of a process group; *comm.Group is one. Collectives
// are enqueued on a stream in the same order on every rank. One that fails fails
// its stream, and with it every stream that waits for it.
type Group interface {
	agree.Members
	Collectives
}

var _ Group = (*comm.Group)(nil)

// Collectives is what they do together.
type Collectives interface {
	// Alloc returns n zeroed bytes that the group moves fastest. Every rank calls
	// it with the same n.
	Alloc(n int) (device.Buffer, error)
	// ReduceScatter gives rank r the sum (or op) of all ranks' part r of src. dst may
	// be this rank's own part of src.
	ReduceScatter(s device.Stream, dst, src device.Buffer, dt dtype.DType, op comm.Op) *comm.Work
	// AllGather writes all ranks' src to dst, in the order of the ranks. src may be
	// this rank's own part of dst.
	AllGather(s device.Stream, dst, src device.Buffer, dt dtype.DType) *comm.Work
	AllReduce(s device.Stream, buf device.Buffer, dt dtype.DType, op comm.Op) *comm.Work
	// Broadcast copies root's buf to all ranks. Wrap calls it.
	Broadcast(s device.Stream, buf device.Buffer, dt dtype.DType, root int) *comm.Work
}
