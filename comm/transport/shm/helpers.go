package shm

import (
	"runtime"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/gorun-dev/gorun/comm/transport"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/vec"
)

const (
	// mostThreads bounds the threads of a rank, its own among them.
	mostThreads = 4
	// worthBytes is how much a job reads and writes at least: below, a helper would
	// come when there is nothing left. With a few times as much two threads are as
	// fast as more, which get in each other's way; from manyTimes on all of them pay.
	worthBytes = 1 << 20
	manyTimes  = 4
	// A block is what one thread takes at a time, of each array: long enough that
	// the taking costs nothing, short enough that all end together.
	leastBlock = 8 << 10
	mostBlock  = 64 << 10
	// helperLooks is how often a helper looks for the next job before it sleeps:
	// 50 to 200 µs by processor, as long as it would take to wake it.
	helperLooks = 4000
)

// helpers are goroutines that share the long sums and copies of a rank, where the host
// has cores that no rank uses. One core does not fill the memory's bandwidth, nor that
// between caches: it can have only so many misses under way.
//
// A job is cut into blocks, and whoever is free takes the next. So the rank never waits
// for a helper that sleeps or has no core, but for blocks that helpers have begun.
type helpers struct {
	// Threads write these all the time, so each has lines of its own.
	_      [lineBytes]byte
	next   atomic.Uint64 // the job's number << 32 | blocks that nobody has taken
	_      [lineBytes - 8]byte
	undone atomic.Int32 // blocks that are not done
	_      [lineBytes - 4]byte
	bells  [mostThreads - 1]bell

	n       int    // helpers, 0 where the rank works alone
	worth   int    // bytes that a job reads and writes at least: worthBytes, but in tests
	started int    // helpers
	number  uint32 // of the last job
	closed  atomic.Bool
	ended   sync.WaitGroup
	job     job // of the rank; helpers read it while they have a block
}

// bell calls a helper: a flag with its sleepers, the number of the last job for which
// that helper was wanted.
type bell struct {
	flag [2]uint32
	_    [lineBytes - 8]byte
}

// job reduces srcs into all dsts, or copies srcs[i] to dsts[i] where pairs is set.
type job struct {
	dt         dtype.DType
	op         vec.Op
	dsts, srcs [][]byte
	pairs      bool
	blocks     int
	block      int // bytes
}

// threads is how many a rank may have: its share of the cores that mine names, with
// all ranks that may run on one of them. procs is GOMAXPROCS, which the user or the
// quota of the control group may have set lower.
func threads(mine *unix.CPUSet, ranks []unix.CPUSet, procs int) int {
	sharing := 0
	for i := range ranks {
		for w := range ranks[i] {
			if ranks[i][w]&mine[w] != 0 {
				sharing++
				break
			}
		}
	}
	return max(1, min(mostThreads, min(mine.Count(), procs)/max(1, sharing)))
}

// ownCores are the processors of this thread; none where the kernel has more than fit.
func ownCores() unix.CPUSet {
	var s unix.CPUSet
	if err := unix.SchedGetaffinity(0, &s); err != nil {
		return unix.CPUSet{} // then the rank works alone
	}
	return s
}

// reduce is vec.ReduceMany, by all threads. Each element is summed by one of them, in
// the order of srcs, so the result is the same.
func (h *helpers) reduce(c *transport.Call, dsts, srcs [][]byte) {
	n := len(srcs[0])
	wanted := h.wanted(n * (len(dsts) + len(srcs)))
	if wanted == 0 {
		vec.ReduceMany(c.DType, vec.Op(c.Op), dsts, srcs)
		return
	}
	h.share(job{dt: c.DType, op: vec.Op(c.Op), dsts: dsts, srcs: srcs}, n, wanted)
}

// copies copies srcs[i] to dsts[i], which are equally long, by all threads. It leaves
// out what is there already.
func (h *helpers) copies(dsts, srcs [][]byte) {
	sum, longest := 0, 0
	for _, s := range srcs {
		sum, longest = sum+len(s), max(longest, len(s))
	}
	if wanted := h.wanted(2 * sum); wanted > 0 {
		h.share(job{dsts: dsts, srcs: srcs, pairs: true}, longest, wanted)
		return
	}
	for i, s := range srcs {
		copyBounded(dsts[i], s)
	}
}

// wanted is how many helpers a job pays for that reads and writes so many bytes.
func (h *helpers) wanted(bytes int) int {
	switch {
	case bytes < h.worth:
		return 0
	case bytes < manyTimes*h.worth:
		return min(h.n, 1)
	}
	return h.n
}

// share does a job on arrays of up to n bytes with so many helpers, and returns when
// it is done.
func (h *helpers) share(j job, n, wanted int) {
	h.offer(j, n, wanted)
	h.work()
	// What is left are blocks that helpers are at: microseconds, unless the kernel has
	// given a helper's core to another program.
	for i := 0; h.undone.Load() != 0; i++ {
		if i < helperLooks {
			pause()
			continue
		}
		runtime.Gosched()
		unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0)
	}
}

// offer cuts a job into blocks, which anybody may take from now on, and calls the
// helpers that are wanted.
func (h *helpers) offer(j job, n, wanted int) {
	for ; h.started < wanted; h.started++ {
		b := &h.bells[h.started]
		h.ended.Go(func() { h.help(b) })
	}
	j.block = max(leastBlock, min(mostBlock, n/(8*(wanted+1))&^(leastBlock-1)))
	j.blocks = (n + j.block - 1) / j.block
	if j.pairs {
		j.blocks *= len(j.srcs)
	}
	h.job = j
	h.number++
	h.undone.Store(int32(j.blocks))
	h.next.Store(uint64(h.number)<<32 | uint64(j.blocks))
	for i := range wanted {
		signal(&h.bells[i].flag[0], h.number)
	}
}

// help works on jobs until close. The first job that wants it starts this goroutine,
// n of them in the end; each has a thread of its own, for it either works, or looks,
// or sleeps in the kernel.
func (h *helpers) help(b *bell) {
	for seen := uint32(0); ; {
		seen = b.await(seen)
		if h.closed.Load() {
			return
		}
		h.work()
	}
}

// await returns the bell's flag once it is not seen any more.
func (b *bell) await(seen uint32) uint32 {
	for range helperLooks {
		if now := atomic.LoadUint32(&b.flag[0]); now != seen {
			return now
		}
		pause()
	}
	s := sleepers(&b.flag[0])
	atomic.AddUint32(s, 1)
	defer atomic.AddUint32(s, ^uint32(0))
	for {
		if now := atomic.LoadUint32(&b.flag[0]); now != seen {
			return now
		}
		// Without an end of its own: whoever uses the team rings, and so does Close.
		unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(&b.flag[0])), futexWait, uintptr(seen), 0, 0, 0)
	}
}

// work does blocks until none are left to take. The job is read only with a block in
// hand: it cannot end, nor the next one begin, before that is done.
func (h *helpers) work() {
	var dsts, srcs [maxRanks][]byte
	for {
		left, ok := h.take()
		if !ok {
			return
		}
		j := &h.job
		k := j.blocks - left
		if j.pairs {
			k, i := k/len(j.srcs), k%len(j.srcs)
			copyBounded(j.piece(j.dsts[i], k), j.piece(j.srcs[i], k))
		} else {
			for i, d := range j.dsts {
				dsts[i] = j.piece(d, k)
			}
			for i, s := range j.srcs {
				srcs[i] = j.piece(s, k)
			}
			vec.ReduceMany(j.dt, j.op, dsts[:len(j.dsts)], srcs[:len(j.srcs)])
		}
		h.undone.Add(-1)
	}
}

// take takes a block, and returns how many were left with it.
func (h *helpers) take() (left int, ok bool) {
	for {
		v := h.next.Load()
		if uint32(v) == 0 {
			return 0, false
		}
		if h.next.CompareAndSwap(v, v-1) {
			return int(uint32(v)), true
		}
	}
}

func (j *job) piece(x []byte, k int) []byte {
	return x[min(k*j.block, len(x)):min((k+1)*j.block, len(x))]
}

// close ends the helpers, after the last job.
func (h *helpers) close() {
	h.closed.Store(true)
	h.number++
	for i := range h.bells {
		signal(&h.bells[i].flag[0], h.number)
	}
	h.ended.Wait()
}
