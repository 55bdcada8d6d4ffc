package compress

import (
	"slices"

	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

// State is a tensor that a Compressor keeps from step to step.
type State struct {
	Name string // such as "error.layers.0.weight"
	tensor.Tensor
}

// shape is what a scheme wants to keep.
type shape struct {
	name string
	dims []int
}

func (x shape) numel() int { return tensor.Numel(x.dims) }

// kept is everything that stays from step to step. Each tensor has two places: what was
// there before the window, and what the window leaves, so that a skipped window can be
// taken back.
type kept struct {
	list  []*slot
	named map[string]*slot
}

type slot struct {
	shape
	at      [2][]float32
	current int  // place of what was there before the window
	written bool // the other place holds what the window leaves so far
}

// add makes a slot in memory, two f32 for each element.
func (k *kept) add(x shape, memory device.Buffer) {
	n := x.numel()
	all := device.View[float32](memory)
	s := &slot{shape: x, at: [2][]float32{all[:n:n], all[n : 2*n : 2*n]}}
	if k.named == nil {
		k.named = map[string]*slot{}
	}
	k.list, k.named[x.name] = append(k.list, s), s
}

// same says that list is what is kept, in any order.
func (k *kept) same(list []shape) bool {
	for _, x := range list {
		if s := k.named[x.name]; s == nil || !slices.Equal(s.dims, x.dims) {
			return false
		}
	}
	return len(list) == len(k.list)
}

// turn is where the next work on the stream reads a slot, and where it writes it. The
// two are the same from the second time in a window on.
func (s *slot) turn() (old, next []float32) {
	next = s.at[1-s.current]
	old = s.at[s.current]
	if s.written {
		old = next
	}
	s.written = true
	return old, next
}

// settle makes what the window has left count.
func (k *kept) settle() {
	for _, s := range k.list {
		if s.written {
			s.current, s.written = 1-s.current, false
		}
	}
}

func (k *kept) discard() {
	for _, s := range k.list {
		s.written = false
	}
}

func (k *kept) state() (list []State) {
	for _, s := range k.list {
		list = append(list, State{s.name, tensor.New(device.Of(s.at[s.current]), dtype.F32, s.dims...)})
	}
	return list
}

// keep writes what is finite of x to next, and what was there before in the place of
// the rest.
func keep(next, x, old []float32) {
	for i, v := range x {
		if v-v != 0 { // infinite or no number
			v = old[i]
		}
		next[i] = v
	}
}
