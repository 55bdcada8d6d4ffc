//go:build cu

// These tests run on the GPUs that the process finds: on the fake ones of
// testdata/fakecu.c, where .ci/cu puts that in the driver's place, or on real ones.
// Without either the process does not get here, for cu ends it.
package cubridge

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"testing"
	"time"
	"unsafe"

	"github.com/gorun-dev/gorun/comm/nccl/nccltest"
	"github.com/gorun-dev/gorun/runtime/cuda"
	"github.com/gorun-dev/gorun/runtime/cuda/cudatest"
	"github.com/gorun-dev/gorun/runtime/cuda/internal/driver"
	"github.com/gorun-dev/gorun/runtime/dl"
	"github.com/gorun-dev/gorun/runtime/testenv"
	"gorgonia.org/cu"
)

// machine is what a test runs on.
type machine struct {
	t    *testing.T
	fake *dl.Library // nil on real GPUs
}

// on is a machine of at least n GPUs. At its end the fake must hold what it held
// before: then nothing was left and nothing destroyed twice.
func on(t *testing.T, n int) *machine {
	t.Helper()
	if have, err := cuda.Count(); err != nil {
		t.Fatal(err) // cu has found one
	} else if have < n {
		testenv.Skip(t, fmt.Sprintf("gpu:%d", n), fmt.Sprintf("this host has %d", have))
	}
	lib, err := dl.Open(driver.Library)
	if err != nil {
		t.Fatal(err)
	}
	m := &machine{t: t, fake: lib}
	if _, err := lib.Proc("fake_live"); err != nil {
		m.fake = nil
		return m
	}
	nccltest.Fake(t, &cudatest.Driver{Path: "libcuda.so.1"})
	before := m.live()
	t.Cleanup(func() {
		if after := m.live(); !slices.Equal(before, after) {
			t.Errorf("alive are %v, before the test %v", after, before)
		}
	})
	return m
}

// live lists what is alive on the fake GPUs.
func (m *machine) live() (list []string) {
	p, err := m.fake.Proc("fake_live")
	if err != nil {
		m.t.Fatal(err)
	}
	for _, kind := range []string{"contexts", "streams", "events", "modules", "pools", "memory", "pinned"} {
		list = append(list, fmt.Sprint(kind, " ", p.Call(uintptr(unsafe.Pointer(dl.CString(kind))))))
	}
	return list
}

// must is x of two results, and check is for one: they end the test at an error.
func must[T any](x T, err error) func(t testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		check(t, err)
		return x
	}
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// primary is the primary context of a GPU, released at the test's end.
func primary(t *testing.T, gpu int) cu.CUContext {
	d := must(cu.GetDevice(gpu))(t)
	c := must(d.RetainPrimaryCtx())(t)
	t.Cleanup(func() {
		if err := d.ReleasePrimaryCtx(); err != nil {
			t.Errorf("releasing the primary context: %v", err)
		}
	})
	return c
}

// own is a context of the test's own, destroyed at its end.
func own(t *testing.T, gpu int) cu.CUContext {
	runtime.LockOSThread() // it becomes current on this thread
	defer runtime.UnlockOSThread()
	c := must(must(cu.GetDevice(gpu))(t).MakeContext(cu.SchedAuto))(t)
	check(t, cu.SetCurrentContext(cu.CUContext{}))
	t.Cleanup(func() {
		if err := c.Destroy(); err != nil {
			t.Errorf("destroying the context: %v", err)
		}
	})
	return c
}

func deadline(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func pointer[T any](s []T) unsafe.Pointer { return unsafe.Pointer(unsafe.SliceData(s)) }
