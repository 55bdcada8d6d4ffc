package nccl

import (
	"github.com/gorun-dev/gorun/comm/transport"
	"github.com/gorun-dev/gorun/runtime/dtype"
)

// The calls below enqueue a collective on a stream, a CUstream, and return when NCCL
// has launched it. Addresses are of memory on the communicator's device; counts are
// elements of dt, and more than 0. What they mean, and which buffers may be the
// same, comm says.

// AllReduce reduces src [n] of all ranks to dst [n].
func (c *Comm) AllReduce(stream, dst, src uintptr, n int, dt dtype.DType, op transport.Op) error {
	t, o, err := typeAndOp(dt, op)
	if err != nil {
		return err
	}
	return c.call("ncclAllReduce", func(comm uintptr) int32 {
		return int32(c.lib.allReduce.Call(src, dst, uintptr(n), t, o, comm, stream))
	})
}

// ReduceScatter reduces src [W*n]; rank r gets part r in dst [n].
func (c *Comm) ReduceScatter(stream, dst, src uintptr, n int, dt dtype.DType, op transport.Op) error {
	t, o, err := typeAndOp(dt, op)
	if err != nil {
		return err
	}
	return c.call("ncclReduceScatter", func(comm uintptr) int32 {
		return int32(c.lib.reduceScatter.Call(src, dst, uintptr(n), t, o, comm, stream))
	})
}

// AllGather lays the ranks' src [n] one after another in dst [W*n].
func (c *Comm) AllGather(stream, dst, src uintptr, n int, dt dtype.DType) error {
	t, err := typeOf(dt)
	if err != nil {
		return err
	}
	return c.call("ncclAllGather", func(comm uintptr) int32 {
		return int32(c.lib.allGather.Call(src, dst, uintptr(n), t, comm, stream))
	})
}

// Broadcast copies root's buf [n] to all ranks.
func (c *Comm) Broadcast(stream, buf uintptr, n int, dt dtype.DType, root int) error {
	t, err := typeOf(dt)
	if err != nil {
		return err
	}
	return c.call("ncclBroadcast", func(comm uintptr) int32 {
		return int32(c.lib.broadcast.Call(buf, buf, uintptr(n), t, uintptr(root), comm, stream))
	})
}

// Reduce reduces src [n] of all ranks to root's dst [n]; dst is 0 elsewhere.
func (c *Comm) Reduce(stream, dst, src uintptr, n int, dt dtype.DType, op transport.Op, root int) error {
	t, o, err := typeAndOp(dt, op)
	if err != nil {
		return err
	}
	return c.call("ncclReduce", func(comm uintptr) int32 {
		return int32(c.lib.reduce.Call(src, dst, uintptr(n), t, o, uintptr(root), comm, stream))
	})
}

// Part is what one rank sends to another: N elements, at Addr.
type Part struct {
	Peer int
	Addr uintptr
	N    int
}

// Exchange sends and receives parts all at once: none waits for another. Each has its
// counterpart on the peer.
func (c *Comm) Exchange(stream uintptr, sends, recvs []Part, dt dtype.DType) error {
	t, err := typeOf(dt)
	if err != nil {
		return err
	}
	return c.call("ncclGroupEnd of sends and receives", func(comm uintptr) int32 {
		first := int32(c.lib.groupStart.Call())
		if first != success {
			return first
		}
		for _, p := range sends {
			if r := int32(c.lib.send.Call(p.Addr, uintptr(p.N), t, uintptr(p.Peer), comm, stream)); bad(r) && first == success {
				first = r
			}
		}
		for _, p := range recvs {
			if r := int32(c.lib.recv.Call(p.Addr, uintptr(p.N), t, uintptr(p.Peer), comm, stream)); bad(r) && first == success {
				first = r
			}
		}
		// A group that was started has to be ended, whatever went wrong in it.
		if r := int32(c.lib.groupEnd.Call()); first == success {
			first = r
		}
		return first
	})
}

func bad(r int32) bool { return r != success && r != inProgress }

func typeAndOp(dt dtype.DType, op transport.Op) (t, o uintptr, err error) {
	if t, err = typeOf(dt); err != nil {
		return 0, 0, err
	}
	o, err = opOf(op)
	return t, o, err
}
