package cuda

import (
	"bytes"
	"encoding/binary"
	"math"
	"reflect"
	"testing"

	"github.com/gorun-dev/gorun/runtime/cuda/cudatest"
)

// mixed has C's layout: struct { char flag; int n; short s; double x; void *p; float y; }.
type mixed struct {
	Flag bool
	N    int32
	S    int16
	X    float64
	P    uintptr
	Y    float32
}

func (m mixed) bytes() []byte {
	b := make([]byte, 40)
	if m.Flag {
		b[0] = 1
	}
	le := binary.LittleEndian
	le.PutUint32(b[4:], uint32(m.N))
	le.PutUint16(b[8:], uint16(m.S))
	le.PutUint64(b[16:], math.Float64bits(m.X))
	le.PutUint64(b[24:], uint64(m.P))
	le.PutUint32(b[32:], math.Float32bits(m.Y))
	return b
}

func TestLaunchHandsOverWhatWasAsked(t *testing.T) {
	f := cudatest.Fake(t)
	d := open(t, f)
	s := stream(t, d, "s")
	add, mapped, none := function(t, d, "add"), function(t, d, "mapped"), function(t, d, "none")
	if err := add.SetShared(100 << 10); err != nil {
		t.Fatal(err)
	}
	m := mixed{true, -5, -3, math.Pi, 0x7f0012345678, 1.5}
	Launch(s, add, Grid{Blocks: Dim{1000000, 3, 2}, Threads: Dim{32, 4, 8}, Shared: 100 << 10}, &m)
	want := cudatest.Launch{Function: "add", Blocks: [3]int{1000000, 3, 2}, Threads: [3]int{32, 4, 8}, Shared: 100 << 10, Params: m.bytes()}
	if got := f.Last(); !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}

	type withMap struct {
		Map TensorMap
		A   uint64
		N   int32
	}
	w := withMap{A: 0x1122334455667788, N: 9}
	for i := range w.Map {
		w.Map[i] = byte(i)
	}
	Launch(s, mapped, Grid{Blocks: Dim{X: 1}, Threads: Dim{X: 2}}, &w)
	if got := f.Last(); got.Blocks != [3]int{1, 1, 1} || got.Threads != [3]int{2, 1, 1} || !bytes.Equal(got.Params[:128], w.Map[:]) ||
		binary.LittleEndian.Uint64(got.Params[128:]) != w.A || got.Params[136] != 9 || len(got.Params) != 144 {
		t.Errorf("%+v", got)
	}
	Launch(s, none, Grid{Blocks: Dim{X: 1}, Threads: Dim{X: 1}}, &struct{}{})
	if got := f.Last(); got.Function != "none" || len(got.Params) != 0 {
		t.Errorf("%+v", got)
	}
	if err := s.Synchronize(deadline(t)); err != nil {
		t.Error(err)
	}
}

// The block of parameters survives a stack that moves: each depth of recursion
// launches from a frame of its own.
func TestLaunchFromAStackThatMoves(t *testing.T) {
	f := cudatest.Fake(t)
	d := open(t, f)
	s := stream(t, d, "s")
	add := function(t, d, "add")
	var launch func(depth int, room [64]byte)
	launch = func(depth int, room [64]byte) {
		m := mixed{N: int32(depth), X: float64(room[0])}
		Launch(s, add, Grid{Blocks: Dim{X: 1}, Threads: Dim{X: 1}}, &m)
		if got := f.Last(); !bytes.Equal(got.Params, m.bytes()) {
			t.Fatalf("at depth %d the driver got %x, want %x", depth, got.Params, m.bytes())
		}
		if depth < 2000 {
			room[0]++
			launch(depth+1, room)
		}
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		launch(0, [64]byte{})
	}()
	<-done
	if f.Launches() != 2001 {
		t.Errorf("%d launches", f.Launches())
	}
}

func TestTheHotPathDoesNotAllocate(t *testing.T) {
	f := cudatest.Fake(t)
	d := open(t, f)
	s, other := stream(t, d, "s"), stream(t, d, "other")
	add := function(t, d, "add")
	b := alloc(t, d, 64)
	e := other.Record()
	for name, use := range map[string]func(){
		"Launch": func() {
			Launch(s, add, Grid{Blocks: Dim{X: 1}, Threads: Dim{X: 32}}, &mixed{N: 1})
		},
		"Copy":  func() { s.Copy(b.Slice(0, 32), b.Slice(32, 64)) },
		"Clear": func() { s.Clear(b) },
		"Wait":  func() { s.Wait(e) },
	} {
		if n := testing.AllocsPerRun(1000, use); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
	if err := s.Synchronize(deadline(t)); err != nil {
		t.Error(err)
	}
}

func TestModules(t *testing.T) {
	f := cudatest.Fake(t)
	d := open(t, f)
	for name, c := range map[string]struct {
		image []byte
		want  string
	}{
		"empty":   {nil, "cuda:0: module test is empty"},
		"garbage": {[]byte("garbage"), "cuda:0: module test: cuModuleLoadDataEx(7 bytes): a PTX JIT compilation failed (CUDA_ERROR_INVALID_PTX): fake ptxas: line 1: no .version"},
	} {
		if _, err := d.LoadModule("test", c.image); err == nil || err.Error() != c.want {
			t.Errorf("%s: %v", name, err)
		}
	}
	m, err := d.LoadModule("test", kernels)
	if err != nil {
		t.Fatal(err)
	}
	const want = "cuda:0: module test: cuModuleGetFunction(absent): named symbol not found (CUDA_ERROR_NOT_FOUND)"
	if _, err := m.Function("absent"); err == nil || err.Error() != want {
		t.Errorf("got %v", err)
	}
	add, err := m.Function("add")
	if err != nil || add.Name() != "add" || m.Name() != "test" {
		t.Errorf("%v, %v", add, err)
	}
	if err := add.SetShared(1 << 20); err == nil {
		t.Error("a MiB of shared memory was accepted")
	}
	if n, err := add.Occupancy(256, 0); n != 8 || err != nil {
		t.Errorf("%d blocks, %v", n, err)
	}
	for range 2 {
		if err := m.Unload(); err != nil {
			t.Error(err)
		}
	}
}

func TestEncodeTiled(t *testing.T) {
	f := cudatest.Fake(t)
	d := open(t, f)
	good := Tile{Type: TileBF16, Addr: 1 << 20, Dims: []uint64{128, 4096, 8}, Strides: []uint64{256, 1 << 20}, Box: []uint32{64, 128, 1}, Swizzle: Swizzle128, Promotion: Promote256, NaN: true}
	var m TensorMap
	if err := d.EncodeTiled(&m, good); err != nil {
		t.Fatal(err)
	}
	word := func(i int) uint64 { return binary.LittleEndian.Uint64(m[8*i:]) }
	list := func(v ...uint64) (h uint64) {
		for _, x := range v {
			h = h*31 + x
		}
		return h
	}
	got := []uint64{word(0), word(1), word(2), word(3), word(4), word(5), word(6), word(7), word(8), word(9)}
	want := []uint64{1 << 20, 9, 3, 3, 3, 1, list(128, 4096, 8), list(64, 128, 1), list(1, 1, 1), list(256, 1<<20)}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("the driver saw %v, want %v", got, want)
	}
	for name, spoil := range map[string]func(*Tile){
		"no dimension":     func(t *Tile) { t.Dims = nil },
		"six":              func(t *Tile) { t.Dims = make([]uint64, 6) },
		"a stride missing": func(t *Tile) { t.Strides = t.Strides[:1] },
		"a box missing":    func(t *Tile) { t.Box = t.Box[:2] },
		"a step missing":   func(t *Tile) { t.Steps = []uint32{1} },
		"misaligned":       func(t *Tile) { t.Addr += 8 },
	} {
		bad := good
		spoil(&bad)
		if err := d.EncodeTiled(&m, bad); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func BenchmarkLaunch(b *testing.B) {
	d := open(b, cudatest.Fake(b))
	s := stream(b, d, "s")
	add := function(b, d, "add")
	b.ReportAllocs()
	for b.Loop() {
		Launch(s, add, Grid{Blocks: Dim{X: 1}, Threads: Dim{X: 32}}, &mixed{N: 1})
	}
	if err := s.Err(); err != nil {
		b.Error(err)
	}
}

func BenchmarkRecordAndWait(b *testing.B) {
	d := open(b, cudatest.Fake(b))
	s, other := stream(b, d, "s"), stream(b, d, "other")
	b.ReportAllocs()
	for b.Loop() {
		e := s.Record().(*Event)
		other.Wait(e)
		e.Release()
	}
	if err := other.Err(); err != nil {
		b.Error(err)
	}
}
