package shm

import (
	"errors"
	"fmt"
	"math"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/gorun-dev/gorun/comm/transport"
	"github.com/gorun-dev/gorun/runtime/dtype"
)

// segment is memory from one Alloc: a part for each rank, all mapped by each.
type segment struct {
	mem    []byte
	stride int // from part to part
	n      int // bytes of a part that may be used
}

// private is the place of a buffer that other ranks cannot reach.
const private uint64 = 0

// offsetBits of a place are the offset within a part; the rest number the segment.
const offsetBits = 44

// place says where b lies in the arena: equal places of two ranks can be reached
// by both.
func (t *Team) place(b []byte) uint64 {
	p := uintptr(unsafe.Pointer(unsafe.SliceData(b)))
	for i, s := range t.arena {
		part := uintptr(unsafe.Pointer(&s.mem[t.rank*s.stride]))
		if p >= part && p+uintptr(len(b)) <= part+uintptr(s.n) {
			return uint64(i+1)<<offsetBits | uint64(p-part)
		}
	}
	return private
}

// at is the n bytes at a place in rank's part.
func (t *Team) at(place uint64, rank, n int) []byte {
	s := t.arena[place>>offsetBits-1]
	off := rank*s.stride + int(place&(1<<offsetBits-1))
	return s.mem[off : off+n : off+n]
}

// verdict is where rank says in call op of an Alloc whether it can go on: 0 is yes.
// The two words take turns, as the headers do.
func (t *Team) verdict(rank int, op uint32) *uint64 {
	return t.word64(t.lineOff(rank, state) + verdictOff + 8*int(op&1))
}

// Alloc returns n zeroed bytes in the arena, which starts at a page. Every rank
// calls it with the same n. Collectives whose buffers lie at the same offset of the
// same Alloc on every rank need no staging copy. The memory lives until Close.
//
// Where memory is short, all ranks get an error and the team goes on. The pages
// are taken at once, so there is no signal for want of memory later.
func (t *Team) Alloc(n int) ([]byte, error) {
	if n < 0 || n > math.MaxInt/2/t.ranks || n >= 1<<offsetBits-pageBytes {
		return nil, fmt.Errorf("shm: cannot allocate %d bytes for each of %d ranks", n, t.ranks)
	}
	c := transport.Call{Header: transport.Header{Kind: transport.Alloc, DType: dtype.U8, Root: -1, Count: uint64(n)}}
	if err := t.begin(); err != nil {
		return nil, err
	}
	defer t.open.RUnlock()
	if n == 0 {
		if err := t.publish(&c, 0, 0); err != nil {
			return nil, err
		}
		_, err := t.agree(&c)
		return []byte{}, err
	}
	stride := align(n, pageBytes)
	free, err := available("/")
	if err != nil {
		return nil, t.giveUp(err)
	}
	short := uint64(0)
	if free < int64(stride*t.ranks) {
		short = uint64(max(1, free))
	}
	if rank, free, err := t.vote(&c, short); err != nil {
		return nil, err
	} else if free != 0 {
		return nil, fmt.Errorf("shm: no room for %d bytes of shared memory for each of %d ranks: rank %d sees %d bytes free: use smaller buckets or fewer ranks on this host, or raise its memory limit", n, t.ranks, t.members[rank], free)
	}
	return t.extend(&c, n, stride)
}

// extend takes and maps the memory, each rank the pages of its own part: they lie
// near the processor that runs it.
func (t *Team) extend(c *transport.Call, n, stride int) ([]byte, error) {
	start := t.fileEnd
	t.fileEnd += stride * t.ranks
	own := start + t.rank*stride
	took := allocate(t.lock.fd, own, stride)
	var errno unix.Errno
	if took != nil && !errors.As(took, &errno) {
		errno = unix.EIO
	}
	rank, failed, err := t.vote(c, uint64(errno))
	if err != nil {
		return nil, err
	}
	if failed != 0 {
		if took == nil {
			if err := release(t.lock.fd, own, stride); err != nil {
				return nil, t.giveUp(err)
			}
		}
		return nil, fmt.Errorf("shm: rank %d cannot allocate %d bytes of shared memory: %w", t.members[rank], n, unix.Errno(failed))
	}
	mem, err := mapFile(t.lock.fd, start, stride*t.ranks)
	if err != nil {
		return nil, t.giveUp(err)
	}
	if err := populate(mem); err != nil {
		return nil, t.giveUp(errors.Join(err, unix.Munmap(mem)))
	}
	t.arena = append(t.arena, segment{mem: mem, stride: stride, n: n})
	return mem[t.rank*stride:][:n:n], nil
}

// vote stores this rank's verdict and waits for those of all ranks. It returns the
// first that is not 0, and whose it is.
func (t *Team) vote(c *transport.Call, own uint64) (rank int, verdict uint64, err error) {
	op := t.ops.Load() + 1
	atomic.StoreUint64(t.verdict(t.rank, op), own)
	if err := t.publish(c, private, private); err != nil {
		return 0, 0, err
	}
	if _, err := t.agree(c); err != nil {
		return 0, 0, err
	}
	for r := range t.ranks {
		if v := atomic.LoadUint64(t.verdict(r, op)); v != 0 {
			return r, v, nil
		}
	}
	return 0, 0, nil
}

// giveUp breaks the team for an error of this rank alone.
func (t *Team) giveUp(err error) error {
	return errors.Join(err, t.fail(&failure{kind: aborted, peer: t.rank, text: err.Error()}))
}
