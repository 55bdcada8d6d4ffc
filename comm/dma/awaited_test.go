package dma

import (
	"context"
	"errors"
	"testing"

	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
)

// A rank whose copies wait for a peer names it, until the peer has come. Fake streams
// wait for nothing: the test takes back what this rank's says of itself.
func TestAwaited(t *testing.T) {
	_, teams := fakes(t)
	me := teams[0]
	mine, err := newStream(me.d, "mine")
	if err != nil {
		t.Fatal(err)
	}
	memory := make([]device.Buffer, 2)
	each(t, teams, func(ctx context.Context, team *Team) (err error) {
		memory[team.me], err = team.Alloc(ctx, 1<<10)
		return err
	})
	awaits := func(what string, want bool) {
		t.Helper()
		rank, ok, err := me.Awaited(t.Context())
		if err != nil || ok != want || ok && rank != 1 {
			t.Errorf("%s: waits for rank %d, %v, %v; want rank 1: %v", what, rank, ok, err, want)
		}
	}
	awaits("before a call", false)
	before := me.seq
	if err := me.AllReduce(mine, memory[0], dtype.F32, false); err != nil {
		t.Fatal(err)
	}
	if err := mine.Synchronize(t.Context()); err != nil {
		t.Fatal(err)
	}
	awaits("a call that has ended", false)
	mine.WriteValue32(me.passed().Addr(), before)
	awaits("the peer has not called", true)
	theirs, err := newStream(teams[1].d, "theirs")
	if err != nil {
		t.Fatal(err)
	}
	theirs.WriteValue32(teams[1].word(0, 1, sent), me.seq)
	awaits("the peer has sent its part, and is not done", true)
	theirs.WriteValue32(teams[1].word(0, 1, added), me.seq)
	awaits("the peer is done", false)
	mine.WriteValue32(me.passed().Addr(), me.seq)
	if err := errors.Join(mine.Close(), theirs.Close()); err != nil {
		t.Error(err)
	}
}

// Of several peers the one that lacks the earlier step is named.
func TestMissing(t *testing.T) {
	team := &Team{me: 1, size: 4}
	counters := make([]uint32, 2*4)
	set := func(rank, step int, to uint32) { counters[2*rank+step] = to }
	for _, p := range []int{0, 2, 3} {
		set(p, sent, 7)
		set(p, added, 7)
	}
	if rank, ok := team.missing(counters, 7); ok {
		t.Errorf("rank %d is missed, and all have come", rank)
	}
	set(2, added, 6)
	if rank, ok := team.missing(counters, 7); !ok || rank != 2 {
		t.Errorf("rank %d, %v: want rank 2, which is not done", rank, ok)
	}
	set(0, sent, 6)
	if rank, ok := team.missing(counters, 7); !ok || rank != 0 {
		t.Errorf("rank %d, %v: want rank 0, whose part has not come", rank, ok)
	}
}
