package models

import (
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

// align is where regions begin: a cache line of every CPU, and what vectorised
// loads of a GPU ask for.
const align = 256

// Plan lays out in one block the memory that a model holds beside its
// parameters: offsets only, nothing is allocated. Regions that are not needed at
// the same time may share their place.
type Plan struct {
	regions []Region
	at      int // where the next region begins
	size    int // the highest end so far
}

// Region is a named part of a Plan: Count slots of Elems elements each.
type Region struct {
	Name   string
	DType  dtype.DType
	Count  int // slots, one a layer for instance
	Elems  int // elements of one slot
	Offset int // bytes from the plan's start
}

// Bytes is the size of all slots, alignment included.
func (r Region) Bytes() int { return r.Count * r.stride() }

func (r Region) stride() int { return roundUp(r.Elems * r.DType.Size()) }

func roundUp(n int) int { return (n + align - 1) / align * align }

// Add places count slots of elems elements behind what is there.
func (p *Plan) Add(name string, dt dtype.DType, count, elems int) Region {
	r := Region{Name: name, DType: dt, Count: count, Elems: elems, Offset: p.at}
	p.at += r.Bytes()
	p.size = max(p.size, p.at)
	p.regions = append(p.regions, r)
	return r
}

// Overlay lets the regions that each phase adds begin at the same place: they
// overwrite each other, so no phase may need what another one wrote.
func (p *Plan) Overlay(phases ...func()) {
	start, end := p.at, p.at
	for _, phase := range phases {
		p.at = start
		phase()
		end = max(end, p.at)
	}
	p.at = end
}

// Bytes is the size of the block.
func (p *Plan) Bytes() int64 { return int64(p.size) }

// Regions lists what was added, in that order.
func (p *Plan) Regions() []Region { return p.regions }

// String is a table of name, offset and bytes, and the total.
func (p *Plan) String() string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	for _, r := range p.regions {
		fmt.Fprintf(w, "%s\t%s x %d x %d\tat %d\t%d bytes\n", r.Name, r.DType, r.Count, r.Elems, r.Offset, r.Bytes())
	}
	fmt.Fprintf(w, "total\t\t\t%d bytes\n", p.size)
	w.Flush()
	return b.String()
}

// Alloc allocates the block on d, zeroed.
func (p *Plan) Alloc(d device.Device) (Memory, error) {
	buf, err := d.Alloc(p.size)
	if err != nil {
		return Memory{}, fmt.Errorf("%d bytes of activations and scratch on %s: %w", p.size, d, err)
	}
	return Memory{buf}, nil
}

// Memory is the block that a Plan describes.
type Memory struct{ buf device.Buffer }

// Tensor sees the beginning of a slot of r in the given shape. It panics when
// the shape does not fit.
func (m Memory) Tensor(r Region, slot int, shape ...int) tensor.Tensor {
	n := tensor.Numel(shape)
	if slot < 0 || slot >= r.Count || n > r.Elems {
		panic(fmt.Sprintf("models: slot %d with shape %v of region %s, which has %d slots of %d elements", slot, shape, r.Name, r.Count, r.Elems))
	}
	from := r.Offset + slot*r.stride()
	return tensor.New(m.buf.Slice(from, from+n*r.DType.Size()), r.DType, shape...)
}
