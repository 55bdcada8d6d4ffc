package comm

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/gorun-dev/gorun/comm/transport/rdma"
	"github.com/gorun-dev/gorun/runtime/cuda"
	"github.com/gorun-dev/gorun/runtime/device"
)

// hand is what staged asks of streams. Tests put another in its place, for the streams of
// fake GPUs do everything at once, and wait for nothing.
type hand interface {
	copy(s *cuda.Stream, dst, src device.Buffer)
	write(s *cuda.Stream, word uintptr, v uint32)
	wait(s *cuda.Stream, word uintptr, v uint32)
}

// newHand is what a group's engine takes, a variable for tests.
var newHand = func(*Group) hand { return ofGPU{} }

type ofGPU struct{}

func (ofGPU) copy(s *cuda.Stream, dst, src device.Buffer)  { s.Copy(dst, src) }
func (ofGPU) write(s *cuda.Stream, word uintptr, v uint32) { s.WriteValue32(word, v) }
func (ofGPU) wait(s *cuda.Stream, word uintptr, v uint32)  { s.WaitValue32(word, v) }

// handsOver sees that the GPUs of all ranks wait for words that the host writes, and write
// words that the host reads. The error is the same on all ranks.
func handsOver(ctx context.Context, g *Group, ex exchangeUnder, s *cuda.Stream) error {
	said := ""
	if err := tryWords(ctx, g.o.gpu, newHand(g), s); err != nil {
		said = err.Error()
	}
	all, err := ex.all(g.o.Rank, g.o.Size)(ctx, "words", []byte(said))
	if err != nil {
		return err
	}
	for r, text := range all {
		if len(text) > 0 {
			return fmt.Errorf("rank %d on %s: %s", r, g.members[r].Host, text)
		}
	}
	return nil
}

func tryWords(ctx context.Context, d *cuda.Device, h hand, s *cuda.Stream) (err error) {
	words, err := d.AllocHost(8)
	if err != nil {
		return err
	}
	v := device.View[uint32](words)
	h.wait(s, words.Addr(), 1)
	h.write(s, words.Addr()+4, 1)
	early := atomic.LoadUint32(&v[1]) != 0
	atomic.StoreUint32(&v[0], 1)
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("%s does not see what the host writes to its memory after %s", d, patience))
	defer cancel()
	for s.Err() == nil && ctx.Err() == nil && atomic.LoadUint32(&v[1]) == 0 {
		select {
		case <-time.After(spin):
		case <-ctx.Done():
		}
	}
	switch {
	case s.Err() != nil:
		err = s.Err()
	case ctx.Err() != nil:
		err = context.Cause(ctx)
	case early:
		err = fmt.Errorf("a stream of %s does not wait for a word in the host's memory", d)
	}
	return errors.Join(err, d.Free(words))
}

// probeBytes is how much of the GPU's memory a card is asked to reach.
const probeBytes = 64 << 10

// whyNotDirect says why network cards do not read and write the GPU's memory themselves.
func (e *staged) whyNotDirect() (string, error) {
	over := e.over
	if two, ok := over.(*twoLevel); ok {
		over = two.all
	}
	f, ok := over.(*flat)
	if !ok {
		return "the ranks are of one host", nil
	}
	mesh, ok := f.x.links.(*rdma.Mesh)
	if !ok {
		for r, m := range e.g.members {
			if m.NoRDMA != "" {
				return fmt.Sprintf("no RDMA: rank %d on %s: %s", r, m.Host, m.NoRDMA), nil
			}
		}
		return "no RDMA: the ranks are joined by " + e.g.linkTo(-1), nil
	}
	var err error
	if e.probe, err = e.dev.Alloc(probeBytes); err != nil {
		return "", err
	}
	memory, err := mesh.RegisterGPU(e.dev, e.probe)
	if err != nil {
		return "", err
	}
	if memory.Path == rdma.Staging {
		return memory.Why, nil
	}
	return fmt.Sprintf("the card could, by %s, and collectives do not use it yet", memory.Path), nil
}
