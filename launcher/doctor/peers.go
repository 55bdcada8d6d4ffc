package doctor

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/gorun-dev/gorun/runtime/cuda"
	"github.com/gorun-dev/gorun/runtime/device"
)

const (
	peerBytes = 8 << 20         // that go from one GPU to another
	pairBound = 5 * time.Second // for the copies of a pair
)

// PeerCopy is what became of copies between two GPUs, by the engines of the first, in
// both directions.
type PeerCopy struct {
	From    int    `json:"from"`
	To      int    `json:"to"`
	Done    bool   `json:"done"`              // false: they were begun
	Refused string `json:"refused,omitempty"` // why the driver allows no direct access
	Error   string `json:"error,omitempty"`
	Wrong   int    `json:"wrong,omitempty"` // words of 4 bytes that arrived as something else
}

// peerGPU is a GPU with peerBytes of memory.
type peerGPU interface {
	// fill writes a pattern that depends on the seed and the place.
	fill(ctx context.Context, seed uint32) error
	// reach asks for direct access to another GPU's memory; its error is a refusal.
	reach(other peerGPU) error
	// push copies this GPU's memory over that of another, and pull the other way, both
	// by this GPU's engines.
	push(ctx context.Context, to peerGPU) error
	pull(ctx context.Context, from peerGPU) error
	// wrong counts the words that are not the pattern's.
	wrong(ctx context.Context, seed uint32) (int, error)
}

// CopyBetweenGPUs copies data between all pairs of GPUs, verifies it, and writes a
// PeerCopy as a line of JSON before and after each pair, so that one that hangs is
// known. gorun doctor runs it in a process of its own, which it can end.
func CopyBetweenGPUs(ctx context.Context, w io.Writer) (err error) {
	n, err := cuda.Count()
	if err != nil {
		return err
	}
	var gpus []peerGPU
	for i := range n {
		d, err := cuda.Open(i)
		if err != nil {
			return err
		}
		g, err := newCudaGPU(d)
		if err != nil {
			return err
		}
		gpus = append(gpus, g)
	}
	return copyBetween(ctx, gpus, w)
}

func copyBetween(ctx context.Context, gpus []peerGPU, w io.Writer) error {
	out := json.NewEncoder(w)
	for i, a := range gpus {
		for j, b := range gpus {
			if i == j {
				continue
			}
			c := PeerCopy{From: i, To: j}
			if err := out.Encode(c); err != nil {
				return err
			}
			seed := uint32(i*len(gpus)+j) + 1
			ctx, cancel := context.WithTimeout(ctx, pairBound)
			c.measure(ctx, a, b, seed)
			cancel()
			if err := out.Encode(c); err != nil {
				return err
			}
		}
	}
	return nil
}

// measure sends a pattern from a to b and another one back.
func (c *PeerCopy) measure(ctx context.Context, a, b peerGPU, seed uint32) {
	c.Done = true
	if err := a.reach(b); err != nil {
		c.Refused = err.Error()
		return
	}
	there, back := seed<<16, seed<<16|1
	check := func(g peerGPU, pattern uint32) error {
		n, err := g.wrong(ctx, pattern)
		c.Wrong += n
		return err
	}
	for _, step := range []func() error{
		func() error { return a.fill(ctx, there) },
		func() error { return b.fill(ctx, ^there) },
		func() error { return a.push(ctx, b) },
		func() error { return check(b, there) },
		func() error { return b.fill(ctx, back) },
		func() error { return a.pull(ctx, b) },
		func() error { return check(a, back) },
	} {
		if err := step(); err != nil {
			c.Error = err.Error()
			return
		}
	}
}

// cudaGPU is a peerGPU of CUDA.
type cudaGPU struct {
	d    *cuda.Device
	s    device.Stream
	mem  device.Buffer
	host []byte
}

func newCudaGPU(d *cuda.Device) (*cudaGPU, error) {
	s, err := d.NewStream("doctor")
	if err != nil {
		return nil, err
	}
	mem, err := d.Alloc(peerBytes)
	if err != nil {
		return nil, err
	}
	return &cudaGPU{d: d, s: s, mem: mem, host: make([]byte, peerBytes)}, nil
}

func word(seed uint32, i int) uint32 { return seed ^ uint32(i)*2654435761 }

func (g *cudaGPU) fill(ctx context.Context, seed uint32) error {
	for i := range peerBytes / 4 {
		binary.LittleEndian.PutUint32(g.host[4*i:], word(seed, i))
	}
	g.s.Copy(g.mem, device.Host(g.host))
	return g.s.Synchronize(ctx)
}

func (g *cudaGPU) reach(other peerGPU) error { return g.d.EnablePeerAccess(other.(*cudaGPU).d) }

func (g *cudaGPU) push(ctx context.Context, to peerGPU) error {
	g.s.Copy(to.(*cudaGPU).mem, g.mem)
	return g.s.Synchronize(ctx)
}

func (g *cudaGPU) pull(ctx context.Context, from peerGPU) error {
	g.s.Copy(g.mem, from.(*cudaGPU).mem)
	return g.s.Synchronize(ctx)
}

func (g *cudaGPU) wrong(ctx context.Context, seed uint32) (n int, err error) {
	g.s.Copy(device.Host(g.host), g.mem)
	if err := g.s.Synchronize(ctx); err != nil {
		return 0, fmt.Errorf("reading back: %w", err)
	}
	for i := range peerBytes / 4 {
		if binary.LittleEndian.Uint32(g.host[4*i:]) != word(seed, i) {
			n++
		}
	}
	return n, nil
}
