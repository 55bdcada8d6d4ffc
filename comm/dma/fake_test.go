package dma

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/gorun-dev/gorun/runtime/cuda"
	"github.com/gorun-dev/gorun/runtime/cuda/cudatest"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
)

// fakes makes a team on two fake GPUs. Their kernels add nothing up.
func fakes(t *testing.T) (*cudatest.Driver, []*Team) {
	t.Helper()
	const n = 2
	driver := cudatest.FakeOf(t, cudatest.Machine{GPUs: n})
	b, teams := newBoard(n), make([]*Team, n)
	for rank := range n {
		d, err := cuda.Open(rank)
		if err != nil {
			t.Fatal(err)
		}
		teams[rank] = &Team{d: d, machine: gpu{}, me: rank, size: n, exchange: b.exchange(rank)}
	}
	t.Cleanup(func() {
		each(t, teams, func(_ context.Context, team *Team) error { return errors.Join(team.Close(), team.d.Close()) })
		if live := driver.Live(); len(live) > 0 {
			t.Errorf("left over on the GPUs: %v", live)
		}
	})
	each(t, teams, func(ctx context.Context, team *Team) (err error) {
		m, err := team.d.LoadModule("sum", cudatest.Module(map[string][]int{"sum_f32": {int(unsafe.Sizeof(sumArgs{}))}}))
		if err != nil {
			return err
		}
		sum, err := m.Function("sum_f32")
		if err != nil {
			return err
		}
		team.sumModule, team.sums = m, map[dtype.DType]*cuda.Function{dtype.F32: sum}
		if team.rescue, err = newStream(team.d, "rescue"); err != nil {
			return err
		}
		if team.words, err = team.d.AllocHost(wordsBytes); err != nil {
			return err
		}
		return team.meet(ctx)
	})
	return driver, teams
}

func newStream(d *cuda.Device, name string) (*cuda.Stream, error) {
	s, err := d.NewStream(name)
	if err != nil {
		return nil, err
	}
	return s.(*cuda.Stream), nil
}

// each calls f for each team at the same time.
func each(t *testing.T, teams []*Team, f func(ctx context.Context, team *Team) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var all sync.WaitGroup
	for rank, team := range teams {
		all.Go(func() {
			if err := f(ctx, team); err != nil {
				t.Errorf("rank %d: %v", rank, err)
			}
		})
	}
	all.Wait()
	if t.Failed() {
		t.FailNow()
	}
}

// What Where tells is the same on all ranks for the same place, though addresses differ.
func TestWhere(t *testing.T) {
	_, teams := fakes(t)
	each(t, teams, func(ctx context.Context, team *Team) error {
		first, err := team.Alloc(ctx, 1<<12)
		if err != nil {
			return err
		}
		second, err := team.Alloc(ctx, 1<<13)
		if err != nil {
			return err
		}
		other, err := team.d.Alloc(64)
		if err != nil {
			return err
		}
		for _, c := range []struct {
			b             device.Buffer
			alloc, offset int
			ok            bool
		}{
			{first, 1, 0, true},
			{first.Slice(256, 512), 1, 256, true},
			{second.Slice(1<<12, 1<<13), 2, 1 << 12, true},
			{device.At(second.Addr()+1<<13-4, 8), 0, 0, false},
			{other, 0, 0, false},
		} {
			if alloc, offset, ok := team.Where(c.b); alloc != c.alloc || offset != c.offset || ok != c.ok {
				t.Errorf("rank %d: byte %d of Alloc %d, %t; want byte %d of Alloc %d, %t", team.me, offset, alloc, ok, c.offset, c.alloc, c.ok)
			}
		}
		return team.d.Free(other)
	})
}

// Takes may be asked while Alloc goes on, for calls are made by other goroutines.
func TestTakesBesideAlloc(t *testing.T) {
	_, teams := fakes(t)
	each(t, teams, func(ctx context.Context, team *Team) error {
		first, err := team.Alloc(ctx, 1<<10)
		if err != nil {
			return err
		}
		var asking sync.WaitGroup
		asking.Go(func() {
			for range 1000 {
				if !team.Takes(first, dtype.F32) || team.Takes(first, dtype.I32) {
					t.Error("the team does not take its own memory, or takes what it cannot add up")
				}
			}
		})
		defer asking.Wait()
		for range 10 {
			if _, err := team.Alloc(ctx, 1<<10); err != nil {
				return err
			}
		}
		return nil
	})
}

// Parts go to the rank that they belong to, and come back to all. Fake streams wait for
// nothing: ranks make their calls one after the other.
func TestWhereItGoes(t *testing.T) {
	const part = 1 << 10
	_, teams := fakes(t)
	streams, memory, host := make([]*cuda.Stream, 2), make([]device.Buffer, 2), make([]device.Buffer, 2)
	each(t, teams, func(ctx context.Context, team *Team) (err error) {
		if memory[team.me], err = team.Alloc(ctx, 2*part); err != nil {
			return err
		}
		if streams[team.me], err = newStream(team.d, "comm"); err != nil {
			return err
		}
		host[team.me], err = team.d.AllocHost(2 * part)
		return err
	})
	filled := func(rank, at int) byte { return byte(1 + 2*rank + at/part) } // another byte for each rank's parts
	for rank, team := range teams {
		for i := range host[rank].Bytes() {
			host[rank].Bytes()[i] = filled(rank, i)
		}
		streams[rank].Copy(memory[rank], host[rank])
		if err := team.ReduceScatter(streams[rank], memory[rank].Slice(rank*part, (rank+1)*part), memory[rank], dtype.F32, false); err != nil {
			t.Fatal(err)
		}
	}
	is := func(what string, rank int, b device.Buffer, want byte) {
		t.Helper()
		to := host[rank].Slice(0, b.Len())
		streams[rank].Copy(to, b)
		if err := streams[rank].Synchronize(t.Context()); err != nil {
			t.Fatal(err)
		}
		for i, got := range to.Bytes() {
			if got != want {
				t.Fatalf("rank %d, %s: byte %d is %d, want %d", rank, what, i, got, want)
			}
		}
	}
	for rank, team := range teams {
		peer := 1 - rank
		is("what the peer sent", rank, team.slot(rank, peer, part), filled(peer, rank*part))
	}
	for rank, team := range teams {
		own := memory[rank].Slice(rank*part, (rank+1)*part)
		if err := team.AllGather(streams[rank], memory[rank], own); err != nil {
			t.Fatal(err)
		}
	}
	for rank := range teams {
		for p := range 2 {
			is("gathered", rank, memory[rank].Slice(p*part, (p+1)*part), filled(p, p*part))
		}
	}
	for rank, team := range teams {
		for name, err := range map[string]error{
			"scattering 3 parts over 2 ranks": team.ReduceScatter(streams[rank], memory[rank].Slice(0, 512), memory[rank].Slice(0, 1536), dtype.F32, false),
			"scattering integers":             team.ReduceScatter(streams[rank], memory[rank].Slice(0, part), memory[rank], dtype.I32, false),
			"scattering from an odd place":    team.ReduceScatter(streams[rank], memory[rank].Slice(4, 516), memory[rank].Slice(0, 1024), dtype.F32, false),
			"gathering 3 parts of 2 ranks":    team.AllGather(streams[rank], memory[rank].Slice(0, 1536), memory[rank].Slice(0, 512)),
			"gathering elsewhere":             team.AllGather(streams[rank], team.slot(rank, 0, 2*part), memory[rank].Slice(0, part)),
		} {
			if err == nil {
				t.Errorf("rank %d: %s is no error", rank, name)
			}
		}
		if err := errors.Join(team.d.Free(host[rank]), streams[rank].Close()); err != nil {
			t.Error(err)
		}
	}
}

// What a peer's stream writes late must not undo Abort, which goes on until the calls
// on this rank's stream are through. Fake streams wait for nothing: the test takes back
// what this rank's says of itself, and says it when it is time.
func TestAbortOutlastsLateWrites(t *testing.T) {
	_, teams := fakes(t)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	me, peer := teams[0], teams[1]
	mine, err := newStream(me.d, "mine")
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := newStream(peer.d, "theirs")
	if err != nil {
		t.Fatal(err)
	}
	var memory device.Buffer
	each(t, teams, func(ctx context.Context, team *Team) error {
		b, err := team.Alloc(ctx, 1<<10)
		if team == me {
			memory = b
		}
		return err
	})
	for range 2 { // the peer makes one of these calls
		if err := me.AllReduce(mine, memory, dtype.F32, false); err != nil {
			t.Fatal(err)
		}
	}
	mine.WriteValue32(me.passed().Addr(), 0)
	if err := me.Abort(errors.New("the test says so"), 10*refill); err == nil {
		t.Fatal("Abort came back without an error while a call was on the stream")
	}
	if err := me.AllReduce(mine, memory, dtype.F32, false); err == nil {
		t.Error("a call behind Abort was accepted")
	}

	ended := make(chan error)
	go func() { ended <- me.Abort(errors.New("the test says so again"), time.Minute) }()
	word := device.At(me.word(0, 1, added), 4)
	seen, err := me.d.AllocHost(4)
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		theirs.WriteValue32(peer.word(0, 1, added), 1)
		for v := device.View[uint32](seen); ; {
			if mine.Copy(seen, word); int32(v[0]-me.seq) >= 0 {
				break
			}
			if ctx.Err() != nil {
				t.Fatalf("the counter stays at %d, which a peer wrote behind Abort, and a call waits for %d", v[0], me.seq)
			}
		}
		select {
		case err := <-ended:
			t.Fatalf("Abort ended while a call was on the stream: %v", err)
		default:
		}
	}
	mine.WriteValue32(me.passed().Addr(), 2)
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if err := errors.Join(me.d.Free(seen), mine.Close(), theirs.Close()); err != nil {
		t.Error(err)
	}
}

// A rank frees its memory once its peers have closed theirs, or after a while where
// they do not. Nothing of the team stays behind.
func TestCloseWaitsForPeers(t *testing.T) {
	driver, teams := fakes(t)
	memory := func() int { return driver.Live()["memory"] }
	all := memory()
	closed := make(chan error, 1)
	met := make(chan struct{})
	exchange := teams[0].exchange
	teams[0].exchange = func(ctx context.Context, key string, mine []byte) ([][]byte, error) {
		close(met)
		return exchange(context.WithoutCancel(ctx), key, mine)
	}
	go func() { closed <- teams[0].Close() }()
	<-met
	if n := memory(); n != all {
		t.Errorf("%d of %d pieces of memory are there while a peer has them open", n, all)
	}
	teams[0].exchange = exchange
	if err := errors.Join(teams[1].Close(), <-closed); err != nil {
		t.Error(err)
	}
	if n := memory(); n != 0 {
		t.Errorf("%d pieces of memory are left", n)
	}
	for _, team := range teams {
		if _, ok := here.Load(team.key()); ok {
			t.Error("the process still knows a team that is closed")
		}
	}
}

func TestCloseWithoutPeers(t *testing.T) {
	driver, teams := fakes(t)
	all := driver.Live()["memory"]
	if err := teams[0].Close(); err != nil {
		t.Error(err)
	}
	if n := driver.Live()["memory"]; n != all/2 {
		t.Errorf("%d of %d pieces of memory are left", n, all)
	}
}
