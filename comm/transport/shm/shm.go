// Package shm moves data between the ranks of one host, through memory that they
// share.
//
// A Team is the ranks of a group that live on the host. Its calls block; the
// caller brings the deadline. Every call begins with each rank publishing what it
// calls, so that ranks which disagree fail with a *transport.MismatchError instead
// of mixing their data. A process that ends gives a *transport.PeerError on the
// others within a second, a deadline a *transport.TimeoutError that names the rank
// which is behind. After a failure the team stays broken, for all ranks and with
// one reason.
//
// Three algorithms carry AllReduce. One-shot, for a few KB: everyone publishes
// everything and sums everything. Push, for buffers from Alloc: each rank sums its
// shard of all buffers and stores the sum in all of them, so that each byte is read
// and written once. Mailbox, for private buffers: chunks go through shared slots
// that stay in the cache. All of them add in the order of ranks, each element on
// one rank or everywhere alike, so all ranks get the same bits.
//
// Where ranks have two cores each or more, see threads, helpers share their long sums
// and copies. GOMAXPROCS bounds the cores that count.
package shm

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gorun-dev/gorun/comm/transport"
	"github.com/gorun-dev/gorun/runtime/dtype"
)

// Exchange is where the ranks of a team find each other: a key-value store that
// only the ranks of the job can read and write.
type Exchange interface {
	Set(ctx context.Context, key string, value []byte) error
	// Wait returns the value of key once it is set.
	Wait(ctx context.Context, key string) ([]byte, error)
}

// Options say who the ranks of a team are.
type Options struct {
	Rank, Size int    // among the ranks of the host
	Ranks      []int  // Ranks[i] is the number in the group of the host's rank i, for errors
	Key        string // in Exchange; unique to the group and to the attempt at running the job
	Exchange   Exchange
	// Timeout bounds Join, and every wait of a call without a deadline.
	Timeout time.Duration
	// Cores is the number of processors that the ranks of the host share; 0 means
	// those that this process may use. With fewer cores than ranks, waiting gives
	// the processor away sooner.
	Cores int
}

func (o Options) check() error {
	switch {
	case o.Size < 1 || o.Size > maxRanks:
		return fmt.Errorf("shm: a team of %d ranks: 1 to %d share a host's memory", o.Size, maxRanks)
	case o.Rank < 0 || o.Rank >= o.Size:
		return fmt.Errorf("shm: rank %d in a team of %d", o.Rank, o.Size)
	case len(o.Ranks) != o.Size:
		return fmt.Errorf("shm: %d group ranks for a team of %d", len(o.Ranks), o.Size)
	case o.Timeout <= 0:
		return errors.New("shm: Timeout must be positive: every wait needs an end")
	case o.Size > 1 && (o.Exchange == nil || o.Key == ""):
		return errors.New("shm: Exchange and Key are needed to find the other ranks")
	}
	return nil
}

// Team is one rank's end of the shared memory. Collectives are called by one
// goroutine at a time, in the same order on every rank. For each peer, one Send and
// one Recv may run beside them.
type Team struct {
	control
	patience
	rank    int
	members []int
	host    string
	lock    rankLock
	oneShot int // bytes up to which AllReduce is one-shot

	open   sync.RWMutex // held shared by calls, exclusively while Close unmaps
	broken atomic.Pointer[error]

	// The numbers below only grow, alike on every rank, and wrap with the flags.
	ops            atomic.Uint32 // calls entered
	chunks         uint32        // chunks that ever went through slots
	sent, received [maxRanks]uint32

	arena   []segment
	fileEnd int // where the next segment starts in the file

	dsts, srcs [maxRanks][]byte // of the collective under way
	helpers    helpers
}

// process tells ranks apart that are goroutines of one process.
var process = rand.Uint64() | 1

// Join makes a team of o.Size ranks; all call it with the same Size, Ranks and Key.
// It returns once every rank has joined.
func Join(ctx context.Context, o Options) (*Team, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, o.Timeout)
	defer cancel()
	l := newLayout(o.Size)
	var fd int
	var err error
	if o.Rank == 0 {
		fd, err = lead(ctx, o, l.size())
	} else {
		fd, err = follow(ctx, o)
	}
	if err != nil {
		return nil, err
	}
	t, err := open(o, l, fd)
	unix.Close(fd)
	if err != nil {
		return nil, err
	}
	// A cancelled context ends the wait by breaking the team. A deadline is the wait's
	// own: then the error names who is missing.
	stop := context.AfterFunc(ctx, func() {
		if errors.Is(ctx.Err(), context.Canceled) {
			t.keep(context.Cause(ctx))
		}
	})
	err = t.meet(ctx)
	if !stop() && err == nil {
		err = t.Err()
	}
	if err != nil {
		t.Close()
		return nil, fmt.Errorf("shm: rank %d cannot join its host's team of %d: %w", o.Ranks[o.Rank], o.Size, err)
	}
	return t, nil
}

// open maps the team's memory and takes this rank's lock.
func open(o Options, l layout, fd int) (t *Team, err error) {
	own, err := reopen(fd)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			unix.Close(own)
		}
	}()
	var st unix.Stat_t
	if err := unix.Fstat(own, &st); err != nil {
		return nil, fmt.Errorf("shm: %w", err)
	}
	if st.Size != int64(l.size()) {
		return nil, fmt.Errorf("shm: the team's memory has %d bytes, want %d for %d ranks: do all ranks run the same program?", st.Size, l.size(), o.Size)
	}
	lock := rankLock{own}
	if err := lock.take(o.Rank); err != nil {
		return nil, fmt.Errorf("shm: lock of rank %d: %w: does another process have the same rank?", o.Ranks[o.Rank], err)
	}
	mem, err := mapFile(own, 0, l.size())
	if err != nil {
		return nil, err
	}
	c := control{layout: l, mem: mem}
	if err := populateControl(&c, o.Rank); err != nil {
		unix.Munmap(mem)
		return nil, err
	}
	host, err := os.Hostname()
	if err != nil {
		host = "" // it only adorns errors
	}
	t = &Team{
		control: c,
		rank:    o.Rank,
		members: append([]int(nil), o.Ranks...),
		host:    host,
		lock:    lock,
		oneShot: max(256, min(4<<10, 8<<10/o.Size)),
		fileEnd: l.size(),
	}
	t.fallback = o.Timeout
	t.inside = true // until meet knows: be ready for both
	t.patience.set(o.Size, processors(o))
	return t, nil
}

func processors(o Options) int {
	if o.Cores > 0 {
		return o.Cores
	}
	return runtime.NumCPU()
}

// meet waits until every rank has mapped the memory, and finds out who lives in
// this process and who shares its cores.
func (t *Team) meet(ctx context.Context) error {
	own := t.lineOff(t.rank, state)
	atomic.StoreUint64(t.word64(own+processOff), process)
	*t.mayRunOn(t.rank) = ownCores()
	atomic.StoreUint32(t.word(own+joinedOff), 1)
	deadline, _ := ctx.Deadline()
	c := transport.Call{Header: transport.Header{Kind: transport.Barrier, DType: dtype.U8, Root: -1}, Deadline: deadline}
	if err := t.publish(&c, 0, 0); err != nil {
		return err
	}
	if _, err := t.agree(&c); err != nil {
		return err
	}
	t.inside = false
	for r := range t.ranks {
		if r != t.rank && atomic.LoadUint64(t.word64(t.lineOff(r, state)+processOff)) == process {
			t.inside = true
		}
	}
	var all [maxRanks]unix.CPUSet
	for r := range t.ranks {
		all[r] = *t.mayRunOn(r)
	}
	t.helpers.n, t.helpers.worth = threads(&all[t.rank], all[:t.ranks], runtime.GOMAXPROCS(0))-1, worthBytes
	return nil
}

// Rank and Size are this rank's number among the ranks of the host, and theirs.
func (t *Team) Rank() int { return t.rank }
func (t *Team) Size() int { return t.ranks }

// Close leaves the team. A call under way on this rank fails within a moment, and
// so do calls of others that still need it. Memory from Alloc is gone afterwards:
// nobody may touch it any more. Closing twice is fine.
func (t *Team) Close() error {
	t.keep(ErrClosed)
	t.open.Lock()
	defer t.open.Unlock()
	if t.mem == nil {
		return nil
	}
	t.helpers.close()
	atomic.StoreUint32(t.word(t.lineOff(t.rank, state)+leftOff), 1)
	var errs []error
	for _, s := range t.arena {
		errs = append(errs, unix.Munmap(s.mem))
	}
	errs = append(errs, unix.Munmap(t.mem), unix.Close(t.lock.fd))
	t.mem, t.arena = nil, nil
	return errors.Join(errs...)
}
