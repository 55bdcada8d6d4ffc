package cuda

import (
	"errors"
	"regexp"
	"strings"
	"testing"

	"github.com/gorun-dev/gorun/runtime/cuda/cudatest"
	"github.com/gorun-dev/gorun/runtime/cuda/internal/driver"
)

// everything does each thing that the package can do once, goes on after errors,
// and returns them all.
func everything(t *testing.T) error {
	var all []error
	note := func(err error) { all = append(all, err) }
	d, err := Open(0)
	if err != nil {
		return err
	}
	_, _, err = d.Memory()
	note(err)
	if p, err := Open(1); err != nil {
		note(err)
	} else {
		note(d.EnablePeerAccess(p))
		note(d.EnablePeerAccess(p))
		_, err := d.NVLinked(p.UUID())
		note(err)
		note(p.Close())
	}
	b, err := d.Alloc(4096)
	if err != nil {
		return errors.Join(append(all, err, d.Close())...)
	}
	h, err := d.AllocHost(4096)
	note(err)
	if unregister, err := d.Register(make([]byte, 4096)); err != nil {
		note(err)
	} else {
		note(unregister())
	}

	// A stream for each, for its first error hides the next.
	for _, use := range []func(s *Stream){
		func(s *Stream) { s.Copy(b, b) },
		func(s *Stream) { s.Clear(b) },
		func(s *Stream) { s.Fill32(b, 1) },
		func(s *Stream) {
			_, err := s.Query()
			note(err)
		},
		func(s *Stream) { s.WriteValue32(b.Addr(), 1) },
		func(s *Stream) { s.WaitValue32(b.Addr(), 1) },
		func(s *Stream) {
			other, err := d.NewPriorityStream("other", true)
			if err != nil {
				note(err)
				return
			}
			a := other.Record()
			s.Wait(a)
			z := s.Record()
			note(z.Sync(deadline(t)))
			_, err = z.Since(a)
			note(err)
			note(other.Close())
		},
		func(s *Stream) {
			p, err := d.NewPool(1 << 20)
			if err != nil {
				note(err)
				return
			}
			m, err := p.Alloc(s, 100)
			note(err)
			p.Free(s, m)
			_, _, err = p.Size()
			note(err)
			note(p.Trim(0))
			note(p.Close())
		},
		func(s *Stream) {
			m, err := d.LoadModule("test", kernels)
			if err != nil {
				note(err)
				return
			}
			f, err := m.Function("add")
			note(err)
			if err == nil {
				note(f.SetShared(100 << 10))
				_, err := f.Occupancy(256, 0)
				note(err)
				Launch(s, f, Grid{Blocks: Dim{X: 1}, Threads: Dim{X: 1}}, &struct{ A, B, C, D, E uint64 }{})
			}
			note(m.Unload())
		},
	} {
		s, err := d.newStream("s", 0)
		if err != nil {
			note(err)
			continue
		}
		use(s)
		note(s.Close())
	}
	if m, err := d.ShareMemory(b.Slice(256, 512)); err != nil {
		note(err)
	} else if o, err := d.OpenMemory(m); err != nil {
		note(err)
	} else {
		note(d.CloseMemory(m, o))
	}
	_, err = d.HandleForAddressRange(b)
	note(err)
	note(d.FlushWrites())
	if again, err := Borrow(d.Context()); err != nil {
		note(err)
	} else {
		if s, err := d.newStream("lent", 0); err != nil {
			note(err)
		} else {
			_, err := again.BorrowStream("borrowed", s.Handle())
			note(err)
		}
		_, err := again.BorrowMemory(b.Addr(), b.Len())
		note(err)
		note(again.Close())
	}
	note(d.EncodeTiled(new(TensorMap), Tile{Type: TileBF16, Addr: b.Addr(), Dims: []uint64{64, 8}, Strides: []uint64{128}, Box: []uint32{64, 8}, Swizzle: Swizzle128}))
	note(d.Free(b))
	note(d.Free(h))
	note(d.Close())
	return errors.Join(all...)
}

func TestEverythingWorks(t *testing.T) {
	f := cudatest.FakeOf(t, cudatest.Machine{GPUs: 2})
	if err := everything(t); err != nil {
		t.Error(err)
	}
	if live := f.Live(); len(live) > 0 {
		t.Errorf("left %v", live)
	}
	for _, name := range driver.Names() {
		if name = unversioned(name); f.Calls(name) == 0 && !strings.HasPrefix(name, "cuGetError") {
			t.Errorf("%s is not called: the test of its failure would be empty", name)
		}
	}
}

func unversioned(name string) string { return regexp.MustCompile(`_v\d$`).ReplaceAllString(name, "") }

// A call that fails is named, with the driver's text, wherever that happens.
func TestEachCallsFailureIsAnError(t *testing.T) {
	for _, name := range driver.Names() {
		name = unversioned(name)
		if strings.HasPrefix(name, "cuGetError") {
			continue // their own failure is tested with a code that they do not know
		}
		t.Run(name, func(t *testing.T) {
			f := cudatest.FakeOf(t, cudatest.Machine{GPUs: 2})
			f.Fail(name, 999)
			err := everything(t)
			if err == nil {
				t.Fatal("no error")
			}
			var e *Error
			if !errors.As(err, &e) || e.Code != 999 || e.Name != "CUDA_ERROR_UNKNOWN" || e.Text != "unknown error" {
				t.Errorf("the error is %#v", e)
			}
			if !regexp.MustCompile(name + `(\(.*\))?: unknown error \(CUDA_ERROR_UNKNOWN\)`).MatchString(err.Error()) {
				t.Errorf("the error does not name the call: %v", err)
			}
		})
	}
}

// The same for a call that fails later, once the first ones have passed.
func TestAContextThatIsLost(t *testing.T) {
	f := cudatest.FakeOf(t, cudatest.Machine{GPUs: 2})
	for after := 1; after < 200; after += 7 {
		before := f.Calls("cuCtxSetCurrent")
		f.FailAfter("cuCtxSetCurrent", after, 201)
		err := everything(t)
		f.Fail("cuCtxSetCurrent", 0)
		if n := f.Calls("cuCtxSetCurrent") - before; err == nil {
			if n <= after {
				break // nothing is left to fail
			}
			t.Errorf("no error after %d calls", after)
		} else if !strings.Contains(err.Error(), "cuCtxSetCurrent: invalid device context (CUDA_ERROR_INVALID_CONTEXT)") {
			t.Errorf("after %d calls: %v", after, err)
		}
	}
}
