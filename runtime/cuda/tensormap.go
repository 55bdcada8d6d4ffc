package cuda

import (
	"fmt"
	"unsafe"
)

// TensorMap describes to the GPU's copy engine (TMA) how a tensor lies in memory
// and which tile a kernel loads of it. It is a kernel's parameter, aligned to 64
// bytes in C: as the first fields of a launch's arguments it is so in Go too.
type TensorMap [128]byte

// TileType is the type of a tensor's elements.
type TileType int32

const (
	TileU8   TileType = 0
	TileI32  TileType = 3
	TileF16  TileType = 6
	TileF32  TileType = 7
	TileBF16 TileType = 9
)

// Swizzle is how the 16-byte pieces of a tile's rows are interleaved in shared
// memory so that reads meet no bank conflicts; the tile's innermost extent must
// not be wider than it.
type Swizzle int32

const (
	NoSwizzle Swizzle = iota
	Swizzle32
	Swizzle64
	Swizzle128
)

// Promotion is how many bytes the L2 cache fetches at least.
type Promotion int32

const (
	NoPromotion Promotion = iota
	Promote64
	Promote128
	Promote256
)

// Tile says what EncodeTiled encodes. All lists start with the innermost
// dimension; a tensor has one to five.
type Tile struct {
	Type      TileType
	Addr      uintptr  // of the tensor, a multiple of 16
	Dims      []uint64 // the tensor's extents, in elements
	Strides   []uint64 // bytes between neighbours in each dimension but the innermost; multiples of 16
	Box       []uint32 // the tile's extents, in elements, at most 256
	Steps     []uint32 // of the elements that are taken; nil: each
	Swizzle   Swizzle
	Promotion Promotion
	NaN       bool // elements outside of the tensor are read as NaN, not as 0
}

// EncodeTiled writes the description of t into m. It depends on addresses, so it
// must be made anew when the tensor lies elsewhere. It needs compute capability 9.
func (d *Device) EncodeTiled(m *TensorMap, t Tile) error {
	rank := len(t.Dims)
	if rank < 1 || rank > 5 || len(t.Strides) != rank-1 || len(t.Box) != rank || (t.Steps != nil && len(t.Steps) != rank) {
		return fmt.Errorf("%s: a tensor map of %d dimensions with %d strides, a box of %d and %d steps", d, rank, len(t.Strides), len(t.Box), len(t.Steps))
	}
	// The driver wants its output at a multiple of 64.
	in := new(struct {
		out     [len(m) + align]byte
		dims    [5]uint64
		strides [4]uint64
		box     [5]uint32
		steps   [5]uint32
	})
	copy(in.dims[:], t.Dims)
	copy(in.strides[:], t.Strides)
	copy(in.box[:], t.Box)
	in.steps = [5]uint32{1, 1, 1, 1, 1}
	copy(in.steps[:], t.Steps)
	skip := -uintptr(unsafe.Pointer(in)) & (align - 1)
	out := in.out[skip:][:len(m)]
	var nan uintptr
	if t.NaN {
		nan = 1
	}
	const interleave = 0
	r := d.call(d.api.TensorMapEncodeTiled, uintptr(unsafe.Pointer(&out[0])), uintptr(t.Type), uintptr(rank), t.Addr,
		uintptr(unsafe.Pointer(&in.dims)), uintptr(unsafe.Pointer(&in.strides)), uintptr(unsafe.Pointer(&in.box)), uintptr(unsafe.Pointer(&in.steps)),
		interleave, uintptr(t.Swizzle), uintptr(t.Promotion), nan)
	if r != 0 {
		return d.fail(r, "cuTensorMapEncodeTiled(%+v)", t)
	}
	copy(m[:], out)
	return nil
}
