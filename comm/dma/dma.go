// Package dma sums arrays over the GPUs of one host by their copy engines. While a
// copy is under way it occupies no multiprocessor, so that a backward pass beside it
// keeps the whole GPU; only the addition itself, a pass over the sums, is a kernel.
//
// Every rank of a Team has memory that the others can write (Alloc). A call cuts an
// array into as many parts as there are ranks, and in two steps
//
//	each rank sends part p of its array to rank p, which adds up what it gets
//	each rank sends the part that it has added up to all others
//
// so (W-1)/W of the array crosses each link twice, as in a ring. The sums are formed
// in the order of the ranks, in f32, and rounded once: all ranks have the same bits.
//
// Streams of different GPUs order each other by counters: a rank writes the number of
// the call to a word of its peer's memory behind a copy, and the peer's stream waits
// for that word. No host takes part.
package dma

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"sync"

	"github.com/gorun-dev/gorun/runtime/cuda"
	"github.com/gorun-dev/gorun/runtime/cuda/nvrtc"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
)

//go:embed sum.cu
var text string

const (
	// MaxRanks bounds a team: sum.cu takes so many arrays.
	MaxRanks = 8
	// slotBytes is the room for a part that a peer sends. Longer arrays go in rounds.
	slotBytes = 32 << 20
	// lineBytes keeps the counters of different writers apart.
	lineBytes = 128
	// align is where parts begin: what the copy engines and the kernel like.
	align = 256
	// blocks of the kernel: enough for most of the memory's speed, few enough to
	// leave the multiprocessors to the computation beside it.
	blocks, threads = 64, 512
)

// Exchange gives every rank what all ranks bring, in the order of the ranks. key
// tells the exchanges of a team apart.
type Exchange func(ctx context.Context, key string, mine []byte) ([][]byte, error)

// Team is the GPUs of one host's ranks. Its calls must be made in one order on all
// ranks, by one goroutine at a time.
type Team struct {
	d        *cuda.Device
	me, size int
	exchange Exchange
	module   *cuda.Module
	sums     map[dtype.DType]*cuda.Function
	rescue   *cuda.Stream  // on which Abort works
	seen     device.Buffer // of the host: what Abort reads

	flags   shared // the counters: a line for each peer and step, and one for passed
	scratch shared // slotBytes for each rank: what it has sent
	allocs  int
	seq     uint32

	mu      sync.Mutex // guards what follows
	regions []shared
	aborted error
}

// shared is a piece of memory that every rank has one of, as this rank sees them.
type shared struct {
	own   device.Buffer
	ranks []device.Buffer // the own one among them
	maps  []mapping       // of peers
}

// Join makes the team of size ranks, of which this is me, on d. It fails, on every
// rank alike, where some GPU cannot write another's memory, or where what arrives is
// not what was sent.
func Join(ctx context.Context, d *cuda.Device, me, size int, exchange Exchange) (*Team, error) {
	if size < 2 || size > MaxRanks {
		return nil, fmt.Errorf("copy engines: %d ranks, want 2 to %d", size, MaxRanks)
	}
	t := &Team{d: d, me: me, size: size, exchange: exchange, sums: map[dtype.DType]*cuda.Function{}}
	err := t.agree(ctx, "prepared", t.prepare(ctx))
	if err == nil {
		err = t.agree(ctx, "verified", t.verify(ctx))
	}
	if err != nil {
		return nil, errors.Join(err, t.Abort(err, abortWithin), t.Close())
	}
	return t, nil
}

func (t *Team) prepare(ctx context.Context) (err error) {
	if t.module, err = nvrtc.Module(t.d, "dma sum.cu", text); err != nil {
		return err
	}
	for _, dt := range []dtype.DType{dtype.F32, dtype.BF16, dtype.F16} {
		if t.sums[dt], err = t.module.Function("sum_" + dt.String()); err != nil {
			return err
		}
	}
	s, err := t.d.NewStream("copy engines' rescue")
	if err != nil {
		return err
	}
	t.rescue = s.(*cuda.Stream)
	t.seen, err = t.d.AllocHost(4)
	return err
}

// agree makes one rank's failure every rank's.
func (t *Team) agree(ctx context.Context, key string, mine error) error {
	said := ""
	if mine != nil {
		said = mine.Error()
	}
	all, err := t.exchange(ctx, key, []byte(said))
	if err != nil {
		return errors.Join(mine, fmt.Errorf("copy engines: %w", err))
	}
	for r, text := range all {
		if len(text) > 0 {
			return fmt.Errorf("copy engines: rank %d: %s", r, text)
		}
	}
	return nil
}

// meet shares the team's own memory.
func (t *Team) meet(ctx context.Context) (err error) {
	if t.flags, err = t.share(ctx, "flags", (2*t.size+1)*lineBytes); err != nil {
		return err
	}
	if t.scratch, err = t.share(ctx, "scratch", t.size*slotBytes); err != nil {
		return err
	}
	hello, err := t.share(ctx, "hello", 4*helloCount)
	if err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.regions = append(t.regions, hello)
	return nil
}

// helloCount is how many elements the first sum has, which is looked at.
const helloCount = 64 << 10

// verify sums known numbers.
func (t *Team) verify(ctx context.Context) error {
	if err := t.meet(ctx); err != nil {
		return err
	}
	hello := t.regions[0].own
	host, err := t.d.AllocHost(4 * helloCount)
	if err != nil {
		return err
	}
	v := device.View[float32](host)
	for i := range v {
		v[i] = float32(i%1000 + t.me)
	}
	s, err := t.d.NewStream("copy engines' first sum")
	if err != nil {
		return err
	}
	defer s.Close()
	s.Copy(hello, host)
	if err := t.AllReduce(s.(*cuda.Stream), hello, dtype.F32, false); err != nil {
		return err
	}
	s.Copy(host, hello)
	if err := s.Synchronize(ctx); err != nil {
		// A stream that waits for a peer's counter would wait for ever.
		return errors.Join(fmt.Errorf("the first sum is not done: %w", err), t.Abort(err, abortWithin))
	}
	for i := range v {
		if want := float32(t.size*(i%1000) + t.size*(t.size-1)/2); v[i] != want {
			err = fmt.Errorf("the GPUs exchange wrong data: element %d of the first sum is %v, want %v (over PCIe, access control (ACS) or an IOMMU can do that)", i, v[i], want)
			break
		}
	}
	return errors.Join(err, t.d.Free(host))
}

// Alloc gives n zeroed bytes that AllReduce takes. All ranks call it with the same n;
// the memory lives until Close.
func (t *Team) Alloc(ctx context.Context, n int) (device.Buffer, error) {
	t.allocs++
	r, err := t.share(ctx, fmt.Sprintf("alloc/%d", t.allocs), n)
	if err != nil {
		return device.Buffer{}, fmt.Errorf("copy engines: %w", err)
	}
	t.mu.Lock()
	t.regions = append(t.regions, r) // while other goroutines ask where memory lies
	t.mu.Unlock()
	return r.own, nil
}

// Where tells in which memory b lies, that of the first Alloc being 1, and at which
// byte of it. ok is false where b is not memory of the team. It may be called from any
// goroutine.
func (t *Team) Where(b device.Buffer) (alloc, offset int, ok bool) {
	_, alloc, offset, ok = t.find(b)
	return alloc, offset, ok
}

func (t *Team) find(b device.Buffer) (r shared, alloc, offset int, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i, r := range t.regions {
		if b.Addr() >= r.own.Addr() && b.Addr()+uintptr(b.Len()) <= r.own.Addr()+uintptr(r.own.Len()) {
			return r, i, int(b.Addr() - r.own.Addr()), true // 0 is what the first sum was made in
		}
	}
	return shared{}, 0, 0, false
}

// Takes reports whether AllReduce takes b with elements of dt. It may be called from
// any goroutine.
func (t *Team) Takes(b device.Buffer, dt dtype.DType) bool {
	_, _, ok := t.Where(b)
	return ok && t.sums[dt] != nil && b.Addr()%16 == 0
}

// AllReduce replaces b, memory that Alloc gave, with the sum over all ranks' b; with
// avg with the mean. All ranks give the same place, which nobody checks: the same
// offset and length in memory of the same Alloc. It enqueues on s and returns.
func (t *Team) AllReduce(s *cuda.Stream, b device.Buffer, dt dtype.DType, avg bool) error {
	region, _, offset, ok := t.find(b)
	switch {
	case !ok:
		return fmt.Errorf("copy engines: %d bytes at %#x are not memory of the team", b.Len(), b.Addr())
	case !t.Takes(b, dt):
		return fmt.Errorf("copy engines: no sums of %s at %#x: want f32, bf16 or f16, aligned to 16 bytes", dt, b.Addr())
	}
	for at := 0; at < b.Len(); at += t.size * slotBytes {
		t.mu.Lock()
		err := t.aborted
		if err == nil {
			err = s.Err()
		}
		if err == nil {
			t.round(s, region, offset+at, min(t.size*slotBytes, b.Len()-at), dt, avg)
		}
		t.mu.Unlock()
		if err != nil {
			return err
		}
	}
	return s.Err()
}

// The two steps of a round, by their counters.
const (
	sent  = iota // a peer's part has come
	added        // a peer's sums have come, so it is done with all that it was sent
)

// round sums n bytes, at most slotBytes a rank. Waiting for all peers' sums at its
// end makes it safe to overwrite their slots, and the array, in the next.
func (t *Team) round(s *cuda.Stream, r shared, at, n int, dt dtype.DType, avg bool) {
	t.seq++
	unit := t.size * align
	part := (n + unit - 1) / unit * align // at most slotBytes
	cut := func(b device.Buffer, rank int) device.Buffer {
		return b.Slice(at+min(rank*part, n), at+min((rank+1)*part, n))
	}
	for i := 1; i < t.size; i++ {
		p := (t.me + i) % t.size // all ranks begin with another peer
		mine := cut(r.own, p)
		s.Copy(t.slot(p, t.me, mine.Len()), mine)
		s.WriteValue32(t.word(p, t.me, sent), t.seq)
	}
	for i := 1; i < t.size; i++ {
		s.WaitValue32(t.word(t.me, (t.me+i)%t.size, sent), t.seq)
	}
	t.add(s, cut(r.own, t.me), dt, avg)
	for i := 1; i < t.size; i++ {
		p := (t.me + i) % t.size
		s.Copy(cut(r.ranks[p], t.me), cut(r.own, t.me))
		s.WriteValue32(t.word(p, t.me, added), t.seq)
	}
	for i := 1; i < t.size; i++ {
		s.WaitValue32(t.word(t.me, (t.me+i)%t.size, added), t.seq)
	}
	s.WriteValue32(t.passed().Addr(), t.seq)
}

// sumArgs is the kernel's parameter, as in sum.cu.
type sumArgs struct {
	dst    uintptr
	src    [MaxRanks]uintptr // in the order of the ranks
	n      int64
	ranks  int32
	factor float32
}

// add replaces own, this rank's part, with the sum of it and of what the peers sent.
func (t *Team) add(s *cuda.Stream, own device.Buffer, dt dtype.DType, avg bool) {
	if own.Len() == 0 {
		return
	}
	a := sumArgs{dst: own.Addr(), n: int64(own.Len() / dt.Size()), ranks: int32(t.size), factor: 1}
	if avg {
		a.factor = 1 / float32(t.size)
	}
	for p := range t.size {
		a.src[p] = t.slot(t.me, p, 0).Addr()
	}
	a.src[t.me] = own.Addr()
	cuda.Launch(s, t.sums[dt], cuda.Grid{Blocks: cuda.Dim{X: blocks}, Threads: cuda.Dim{X: threads}}, &a)
}

// slot is where rank keeps what from sends it.
func (t *Team) slot(rank, from, n int) device.Buffer {
	at := from * slotBytes
	if n == 0 { // an empty slice has no address
		return device.At(t.scratch.ranks[rank].Addr()+uintptr(at), 0)
	}
	return t.scratch.ranks[rank].Slice(at, at+n)
}

// word is the address of the counter in rank's memory that from writes.
func (t *Team) word(rank, from, step int) uintptr {
	return t.flags.ranks[rank].Addr() + uintptr((2*from+step)*lineBytes)
}

// Close releases everything. No call is under way on this rank. Memory is freed when
// no peer has it open any more; a peer that does not close too is waited for, but not
// for long.
func (t *Team) Close() error {
	if t.aborted != nil {
		if err := t.Abort(t.aborted, abortWithin); err != nil {
			return fmt.Errorf("%w: the team's memory is not released, which would wait for them", err)
		}
	}
	var errs []error
	if t.rescue != nil {
		errs = append(errs, t.rescue.Close())
	}
	if t.seen.Len() > 0 {
		errs = append(errs, t.d.Free(t.seen))
	}
	all := append([]shared{t.flags, t.scratch}, t.regions...)
	for _, s := range all {
		errs = append(errs, t.unmap(s))
	}
	t.part()
	for _, s := range all {
		if s.own.Len() > 0 {
			errs = append(errs, t.d.Free(s.own))
		}
	}
	here.Delete(t.key())
	t.flags, t.scratch, t.regions, t.seen = shared{}, shared{}, nil, device.Buffer{}
	if t.module != nil {
		errs = append(errs, t.module.Unload())
		t.module = nil
	}
	return errors.Join(errs...)
}
