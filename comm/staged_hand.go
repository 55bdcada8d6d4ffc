package comm

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/gorun-dev/gorun/runtime/cuda"
	"github.com/gorun-dev/gorun/runtime/cuda/nvrtc"
	"github.com/gorun-dev/gorun/runtime/device"
)

// hand is what relays ask of streams. Tests put another in its place, for the streams of
// fake GPUs do everything at once, wait for nothing, and run no kernels.
type hand interface {
	copy(s *cuda.Stream, dst, src device.Buffer)
	write(s *cuda.Stream, word uintptr, v uint32)
	wait(s *cuda.Stream, word uintptr, v uint32)
	module(d *cuda.Device, name, text string) (*cuda.Module, error)
	fold(s *cuda.Stream, f *cuda.Function, g cuda.Grid, args *foldArgs)
}

// newHand is what a group's engine takes, a variable for tests.
var newHand = func(*Group) hand { return ofGPU{} }

type ofGPU struct{}

func (ofGPU) copy(s *cuda.Stream, dst, src device.Buffer)  { s.Copy(dst, src) }
func (ofGPU) write(s *cuda.Stream, word uintptr, v uint32) { s.WriteValue32(word, v) }
func (ofGPU) wait(s *cuda.Stream, word uintptr, v uint32)  { s.WaitValue32(word, v) }

func (ofGPU) module(d *cuda.Device, name, text string) (*cuda.Module, error) {
	return nvrtc.Module(d, name, text)
}

func (ofGPU) fold(s *cuda.Stream, f *cuda.Function, g cuda.Grid, args *foldArgs) {
	cuda.Launch(s, f, g, args)
}

// handsOver sees that the GPUs of all ranks wait for words that the host writes, and write
// words that the host reads. The error is the same on all ranks.
func handsOver(ctx context.Context, g *Group, ex exchangeUnder, s *cuda.Stream) error {
	why, err := ex.agree(ctx, g, "words", said(tryWords(ctx, g.o.gpu, newHand(g), s)))
	if err == nil && why != "" {
		err = errors.New(why)
	}
	return err
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
