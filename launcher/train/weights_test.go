package train

import (
	"bytes"
	"context"
	"testing"

	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/device/devicetest"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

// onGPU is a job with memory that the host cannot touch.
func onGPU(t *testing.T) (*job, *devicetest.GPU) {
	t.Helper()
	g := devicetest.NewGPU(t)
	s, err := g.NewStream("compute")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return &job{machine: &machine{device: g, compute: s}}, g
}

// What is saved of a GPU and what it goes on with pass through the stream: in one copy
// of all, and in pieces where that is more than fits the memory in between.
func TestStateOfAGPUIsCopiedByItsStream(t *testing.T) {
	j, gpu := onGPU(t)
	const n = stagingBytes/4 + 1001
	x, err := tensor.Alloc(gpu, dtype.F32, n)
	if err != nil {
		t.Fatal(err)
	}
	values := make([]float32, n)
	for i := range values {
		values[i] = float32(i % 100_003)
	}
	want := device.Of(values).Bytes()
	// This rank has all of it, and writes all but the first 5 and the last 7 elements.
	p := piece{name: "x", shape: x.Shape, has: elements{0, n}, writes: elements{5, n - 7}, store: inMemory{j, x}}
	misaligned := append(make([]byte, 1), want...)[1:] // as a mapped file may be
	if err := p.write(t.Context(), 0, misaligned); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(gpu.See(x).Buf.Bytes(), want) {
		t.Error("the GPU does not have what was read")
	}
	if j.staging.Len() != stagingBytes {
		t.Errorf("%d bytes in between", j.staging.Len())
	}
	if err := p.write(t.Context(), 3, device.Of([]float32{-1, -2}).Bytes()); err != nil {
		t.Fatal(err)
	}
	values[3], values[4] = -1, -2
	if !bytes.Equal(gpu.See(x).Buf.Bytes(), want) {
		t.Error("a part that was read has come to another place")
	}

	var b bytes.Buffer
	if err := j.download(context.Background(), &b, p); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(b.Bytes(), want[4*5:4*(n-7)]) {
		t.Error("what is written is not what the GPU has")
	}
	files := []file{{kind: weightsKind, pieces: []piece{p, {name: "nothing", shape: []int{4}}}}}
	if j.shot, err = gpu.AllocHost(files[0].bytes()); err != nil {
		t.Fatal(err)
	}
	// The copy sees what the stream has to do before it, and nothing behind it.
	late, err := tensor.Alloc(gpu, dtype.F32, 1)
	if err != nil {
		t.Fatal(err)
	}
	gpu.See(late).F32()[0] = 7
	j.compute.Copy(x.Rows(6, 7).Buf, late.Buf)
	if err := j.snapshot(t.Context(), files); err != nil {
		t.Fatal(err)
	}
	j.compute.Copy(x.Rows(8, 9).Buf, late.Buf)
	if err := j.compute.Synchronize(t.Context()); err != nil {
		t.Fatal(err)
	}
	values[6] = 7
	if !bytes.Equal(files[0].pieces[0].copied, want[4*5:4*(n-7)]) || files[0].pieces[1].copied != nil {
		t.Error("the copy is not of where it was made")
	}
}

// A rank's share of what all have is as large as another's, and all shares together
// are everything, once.
func TestWhatAllHaveIsDealtOut(t *testing.T) {
	for ranks := 1; ranks <= 9; ranks++ {
		covered := [][]int{make([]int, 6), nil, make([]int, 1), make([]int, 5)}
		for rank := range ranks {
			f := file{}
			for _, shape := range [][]int{{3, 2}, {0, 4}, {1}, {5}} {
				f.pieces = append(f.pieces, piece{shape: shape})
			}
			f.deal(rank, ranks)
			if n := f.bytes() / 4; n < 12/ranks || n > (12+ranks-1)/ranks {
				t.Errorf("rank %d of %d writes %d elements of 12", rank, ranks, n)
			}
			for i, p := range f.pieces {
				for e := p.writes.from; e < p.writes.to; e++ {
					covered[i][e]++
				}
			}
			if got := len(f.written(rank)); rank == 0 && ranks == 1 && got != 4 || rank > 0 && got > 3 {
				t.Errorf("rank %d of %d writes parts of %d tensors", rank, ranks, got)
			}
		}
		for i, list := range covered {
			for e, n := range list {
				if n != 1 {
					t.Errorf("%d ranks: element %d of tensor %d is written %d times", ranks, e, i, n)
				}
			}
		}
	}
}
