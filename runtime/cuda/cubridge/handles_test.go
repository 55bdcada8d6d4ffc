//go:build cu

package cubridge

import (
	"slices"
	"strings"
	"testing"
	"unsafe"

	"github.com/gorun-dev/gorun/runtime/cuda"
	"github.com/gorun-dev/gorun/runtime/cuda/nvrtc"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/testenv"
	"gorgonia.org/cu"
)

// contexts runs do with gorun's handle on a context of either kind, which is current,
// and closes the handle in the end.
func contexts(t *testing.T, do func(t *testing.T, m *machine, d *cuda.Device)) {
	for name, open := range map[string]func(*testing.T, int) cu.CUContext{"primary": primary, "own": own} {
		t.Run(name, func(t *testing.T) {
			m := on(t, 1)
			c := open(t, 0)
			d := must(BorrowContext(c))(t)
			if LendContext(d) != c {
				t.Errorf("lent %v back as %v", c, LendContext(d))
			}
			func() {
				defer d.Bind()()
				do(t, m, d)
			}()
			if err := d.Close(); err != nil {
				t.Errorf("Close: %v", err)
			}
		})
	}
}

// Both sides enqueue on one stream, of either's making, and see the same memory, of
// either's making. What cu made outlives gorun's handle on it, and only cu destroys it.
func TestStreamsAndMemory(t *testing.T) {
	contexts(t, func(t *testing.T, _ *machine, d *cuda.Device) {
		theirs := must(cu.MakeStream(cu.NonBlocking))(t)
		borrowed := must(BorrowStream(d, "theirs", theirs))(t)
		if LendStream(borrowed) != theirs {
			t.Error("a borrowed stream is lent back as another one")
		}
		ours := must(d.NewStream("ours"))(t).(*cuda.Stream)

		const n = 1000
		p := must(cu.MemAlloc(4 * n))(t)
		from := must(BorrowMemory(d, p, 4*n))(t)
		if LendMemory(from) != p {
			t.Errorf("memory at %v is lent back as %v", p, LendMemory(from))
		}
		to := must(d.Alloc(4 * n))(t)
		words := make([]uint32, n)
		for i := range words {
			words[i] = uint32(i) * 2654435761
		}
		for _, s := range []*cuda.Stream{borrowed, ours} {
			clear := make([]uint32, n)
			check(t, cu.MemcpyHtoD(LendMemory(to), pointer(clear), 4*n))
			check(t, cu.MemcpyHtoDAsync(p, pointer(words), 4*n, LendStream(s))) // cu writes
			s.Copy(to, from)                                                    // gorun copies
			got := make([]uint32, n)
			check(t, cu.MemcpyDtoHAsync(pointer(got), LendMemory(to), 4*n, LendStream(s))) // cu reads
			check(t, s.Synchronize(deadline(t)))
			if !slices.Equal(got, words) {
				t.Errorf("stream %s: the words are others", s.Name())
			}
		}

		check(t, borrowed.Close())
		check(t, theirs.Synchronize())
		check(t, ours.Close())
		check(t, theirs.Destroy())
		check(t, d.Free(to))
		if err := d.Free(from); err == nil {
			t.Error("gorun freed cu's memory")
		}
		check(t, cu.MemFree(p))

		managed := must(cu.MemAllocManaged(4*n, cu.AttachGlobal))(t)
		if b := must(BorrowMemory(d, managed, 4*n))(t); LendMemory(b) != managed || b.Len() != 4*n {
			t.Errorf("managed memory at %v came as %d bytes at %v", managed, b.Len(), LendMemory(b))
		}
		check(t, cu.MemFree(managed))
	})
}

// Streams of one side wait for events of the other.
func TestEvents(t *testing.T) {
	contexts(t, func(t *testing.T, _ *machine, d *cuda.Device) {
		theirs := must(cu.MakeStream(cu.NonBlocking))(t)
		borrowed := must(BorrowStream(d, "theirs", theirs))(t)
		ours := must(d.NewStream("ours"))(t).(*cuda.Stream)

		mark := must(cu.MakeEvent(cu.DefaultEvent))(t)
		check(t, mark.Record(theirs))
		e := BorrowEvent(borrowed, mark)
		if LendEvent(e) != mark {
			t.Error("a borrowed event is lent back as another one")
		}
		ours.Wait(e)
		own := ours.Record().(*cuda.Event)
		check(t, theirs.Wait(LendEvent(own), 0))
		check(t, theirs.Synchronize())
		check(t, LendEvent(own).Query())
		if done, err := e.Reached(); !done || err != nil {
			t.Errorf("reached: %t, %v", done, err)
		}
		if took, err := own.Since(e); err != nil || took < 0 {
			t.Errorf("%s between the two sides' events, %v", took, err)
		}
		e.Release()
		check(t, mark.Record(theirs)) // it is cu's again
		check(t, mark.Synchronize())
		check(t, ours.Close())
		check(t, borrowed.Close())
		check(t, cu.DestroyEvent(&mark))
		check(t, theirs.Destroy())
	})
}

const twice = `extern "C" __global__ void twice(unsigned *x, int n) {
	int i = blockIdx.x * blockDim.x + threadIdx.x;
	if (i < n) x[i] *= 2;
}`

// A kernel of cu's module is launched by gorun, and one of gorun's by cu. The fake
// checks the launches and does not compute.
func TestModules(t *testing.T) {
	compiler, err := nvrtc.Load()
	if err != nil {
		testenv.Skip(t, "nvrtc", err.Error())
	}
	contexts(t, func(t *testing.T, m *machine, d *cuda.Device) {
		image, log, err := compiler.Compile("twice.cu", twice, nvrtc.Arch(d))
		if err != nil {
			t.Fatalf("%v: %s", err, log)
		}
		theirs := must(cu.LoadData(string(image)))(t)
		ours := must(d.LoadModule("ours", image))(t)
		borrowed := BorrowModule(d, "theirs", theirs)
		if LendModule(borrowed) != theirs {
			t.Error("a borrowed module is lent back as another one")
		}
		s := must(d.NewStream("s"))(t).(*cuda.Stream)
		const n = 300
		words, got := make([]uint32, n), make([]uint32, n)
		for i := range words {
			words[i] = uint32(i)
		}
		x := must(d.Alloc(4 * n))(t)
		s.Copy(x, device.Of(words))
		launches := m.launches()

		byGorun := must(borrowed.Function("twice"))(t)
		cuda.Launch(s, byGorun, cuda.Grid{Blocks: cuda.Dim{X: 3}, Threads: cuda.Dim{X: 128}}, &struct {
			x uint64
			n int32
			_ int32
		}{uint64(x.Addr()), n, 0})
		byCu := must(LendModule(ours).Function("twice"))(t)
		p, count := LendMemory(x), int64(n) // cu reads 8 bytes of each
		check(t, byCu.Launch(3, 1, 1, 128, 1, 1, 0, LendStream(s), []unsafe.Pointer{unsafe.Pointer(&p), unsafe.Pointer(&count)}))
		s.Copy(device.Of(got), x)
		check(t, s.Synchronize(deadline(t)))
		for i := range got {
			want := 4 * words[i]
			if m.fake != nil {
				want = words[i]
			}
			if got[i] != want {
				t.Fatalf("word %d is %d, want %d", i, got[i], want)
			}
		}
		if m.fake != nil && m.launches()-launches != 2 {
			t.Errorf("%d launches, want one by each side", m.launches()-launches)
		}
		check(t, borrowed.Unload())
		check(t, must(theirs.Function("twice"))(t).Launch(1, 1, 1, 1, 1, 1, 0, LendStream(s), []unsafe.Pointer{unsafe.Pointer(&p), unsafe.Pointer(&count)}))
		check(t, s.Synchronize(deadline(t)))
		check(t, theirs.Unload())
		check(t, ours.Unload())
	})
}

// launches is how many kernels the fake was asked to launch.
func (m *machine) launches() int {
	if m.fake == nil {
		return 0
	}
	p, err := m.fake.Proc("fake_launches")
	check(m.t, err)
	return int(p.Call())
}

func TestWhatCannotBeBorrowed(t *testing.T) {
	contexts(t, func(t *testing.T, _ *machine, d *cuda.Device) {
		p := must(cu.MemAlloc(1000))(t)
		says := func(err error, want string) {
			t.Helper()
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("got %v, want an error that says %q", err, want)
			}
		}
		_, err := BorrowContext(cu.CUContext{})
		says(err, "a context of zero")
		_, err = BorrowStream(d, "s", cu.NoStream)
		says(err, "stream s is the default stream")
		_, err = BorrowMemory(d, p+900, 101)
		says(err, "ends after 100")
		_, err = NewArena(d, p+8, 900)
		says(err, "a multiple of 256")
		_, err = NewArena(d, p, 1001)
		says(err, "ends after 1000")
		check(t, cu.MemFree(p))
	})
}
