package nccl_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gorun-dev/gorun/comm/nccl"
	"github.com/gorun-dev/gorun/comm/nccl/nccltest"
	"github.com/gorun-dev/gorun/comm/transport"
	"github.com/gorun-dev/gorun/runtime/cuda"
	"github.com/gorun-dev/gorun/runtime/cuda/cudatest"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dl"
	"github.com/gorun-dev/gorun/runtime/dtype"
)

// rank is one rank of a communicator, on a fake GPU.
type rank struct {
	n      int
	dev    *cuda.Device
	stream *cuda.Stream
	comm   *nccl.Comm
}

// machine is n fake GPUs with a fake NCCL, which prepare may steer before it is loaded.
func machine(t *testing.T, n int, prepare func(*nccltest.Library)) (*nccltest.Library, *nccl.Library, []*cuda.Device) {
	t.Helper()
	fake := nccltest.Fake(t, cudatest.FakeOf(t, cudatest.Machine{GPUs: n}))
	if prepare != nil {
		prepare(fake)
	}
	lib, err := nccl.Load()
	if err != nil {
		t.Fatal(err)
	}
	devices := make([]*cuda.Device, n)
	for i := range devices {
		if devices[i], err = cuda.Open(i); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { devices[i].Close() })
	}
	return fake, lib, devices
}

// join makes a communicator. Ranks that could not be made have none.
func join(t *testing.T, ctx context.Context, lib *nccl.Library, devices []*cuda.Device, maxCTAs int) ([]*rank, []error) {
	t.Helper()
	id, err := lib.NewID()
	if err != nil {
		t.Fatal(err)
	}
	ranks, errs := make([]*rank, len(devices)), make([]error, len(devices))
	var all sync.WaitGroup
	for i, d := range devices {
		all.Go(func() {
			s, err := d.NewStream("comm")
			if err != nil {
				errs[i] = err
				return
			}
			c, err := lib.NewComm(ctx, d, nccl.Options{Rank: i, Size: len(devices), ID: id, Name: "test", MaxCTAs: maxCTAs, Patience: 10 * time.Second})
			ranks[i], errs[i] = &rank{i, d, s.(*cuda.Stream), c}, err
		})
	}
	all.Wait()
	return ranks, errs
}

// each runs f for all ranks at once.
func each(ranks []*rank, f func(r *rank) error) []error {
	errs := make([]error, len(ranks))
	var all sync.WaitGroup
	for i, r := range ranks {
		all.Go(func() { errs[i] = f(r) })
	}
	all.Wait()
	return errs
}

func deadline(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func must(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// sum is an AllReduce whose result is looked at.
func sum(r *rank, ranks int) error {
	x := make([]int32, 100)
	for i := range x {
		x[i] = int32(i + r.n)
	}
	buf, err := r.dev.Alloc(4 * len(x))
	if err != nil {
		return err
	}
	defer r.dev.Free(buf)
	r.stream.Copy(buf, device.Of(x))
	if err := r.comm.AllReduce(r.stream.Handle(), buf.Addr(), buf.Addr(), len(x), dtype.I32, transport.Sum); err != nil {
		return err
	}
	r.stream.Copy(device.Of(x), buf)
	for i, got := range x {
		if want := int32(ranks*i + ranks*(ranks-1)/2); got != want {
			return fmt.Errorf("element %d is %d, want %d", i, got, want)
		}
	}
	return r.stream.Err()
}

// A communicator is made by the function that the release has: from 2.23 on by
// pointers alone, before with the id by value.
func TestEveryReleaseMakesCommunicators(t *testing.T) {
	for code, want := range map[int]string{
		21403: "ncclCommInitRankConfig", 22203: "ncclCommInitRankConfig",
		22304: "ncclCommInitRankScalable", 22803: "ncclCommInitRankScalable", 23007: "ncclCommInitRankScalable",
	} {
		t.Run(fmt.Sprint(code), func(t *testing.T) {
			fake, lib, devices := machine(t, 3, func(l *nccltest.Library) { l.Version(code) })
			ctas := 8
			if code < 21700 {
				ctas = 0
			}
			ranks, errs := join(t, deadline(t), lib, devices, ctas)
			must(t, errs...)
			must(t, each(ranks, func(r *rank) error { return sum(r, 3) })...)
			for _, name := range []string{"ncclCommInitRankConfig", "ncclCommInitRankScalable"} {
				if n := fake.Calls(name); (n != 0) != (name == want) {
					t.Errorf("%s was called %d times", name, n)
				}
			}
			name, most := fake.Config()
			if wantName := map[bool]string{true: "test"}[code >= 22700]; name != wantName || ctas != 0 && most != ctas {
				t.Errorf("NCCL was given the name %q and %d CTAs", name, most)
			}
			must(t, each(ranks, func(r *rank) error { return r.comm.Close(time.Minute) })...)
			for _, r := range ranks {
				if err := r.comm.Failed(); err != nil {
					t.Errorf("a closed communicator has failed: %v", err)
				}
				if err := sum(r, 3); !errors.Is(err, nccl.ErrAborted) {
					t.Errorf("a call on a closed communicator: %v", err)
				}
			}
		})
	}
}

func TestMaxCTAsNeedANewerRelease(t *testing.T) {
	_, lib, devices := machine(t, 1, func(l *nccltest.Library) { l.Version(21602) })
	_, errs := join(t, deadline(t), lib, devices, 4)
	if err := errs[0]; err == nil || !strings.Contains(err.Error(), "NCCL 2.16.2 cannot be told") {
		t.Errorf("got %v", err)
	}
}

func TestLibraryThatIsMissingOrTooOld(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("GORUN_NCCL_LIB", filepath.Join(dir, "none.so"))
	if _, err := nccl.Load(); err == nil || !strings.Contains(err.Error(), "none.so") || !strings.Contains(err.Error(), "GORUN_NCCL_LIB") {
		t.Errorf("got %v", err)
	}
	fake := nccltest.Fake(t, nil)
	for code, text := range map[int]string{21304: "2.13.4", 2708: "2.7.8"} {
		fake.Version(code)
		// Load asks once for each path.
		again := filepath.Join(dir, fmt.Sprint(code))
		if err := os.Symlink(fake.Path, again); err != nil {
			t.Fatal(err)
		}
		t.Setenv("GORUN_NCCL_LIB", again)
		if _, err := nccl.Load(); err == nil || !strings.Contains(err.Error(), "is release "+text) || !strings.Contains(err.Error(), "want 2.14.0 or later") {
			t.Errorf("got %v", err)
		}
	}
	// Something else than NCCL.
	libc, err := dl.Open(dl.Spec{Name: "libm", Files: []string{"libm.so.6"}})
	if err != nil {
		t.Fatal(err)
	}
	other := filepath.Join(dir, "other.so")
	if files, _ := filepath.Glob("/lib/*/" + libc.Path); len(files) > 0 && os.Symlink(files[0], other) == nil {
		t.Setenv("GORUN_NCCL_LIB", other)
		if _, err := nccl.Load(); err == nil || !strings.Contains(err.Error(), "ncclGetVersion") {
			t.Errorf("got %v", err)
		}
	}
}

// What goes wrong while a communicator is made is told, and leaves nothing.
func TestMakingFails(t *testing.T) {
	t.Run("the call", func(t *testing.T) {
		fake, lib, devices := machine(t, 1, nil)
		fake.Fail("ncclCommInitRankScalable", 0, nccltest.CUDAError, 0)
		_, errs := join(t, deadline(t), lib, devices, 0)
		e, ok := errors.AsType[*nccl.Error](errs[0])
		if !ok || e.Result != nccltest.CUDAError || e.Call != "cuda:0: ncclCommInitRankScalable" ||
			!strings.Contains(e.Error(), "unhandled cuda error (result 1): ncclCommInitRankScalable was told to fail") {
			t.Errorf("got %v", errs[0])
		}
	})
	t.Run("later", func(t *testing.T) {
		fake, lib, devices := machine(t, 2, nil)
		fake.Fail("making", 1, nccltest.SystemError, 0)
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Minute, func() { cancel(errors.New("too late")) })
		ranks, errs := join(t, ctx, lib, devices, 0)
		if e, ok := errors.AsType[*nccl.Error](errs[1]); !ok || e.Result != nccltest.SystemError {
			t.Errorf("got %v", errs[1])
		}
		must(t, errs[0], ranks[0].comm.Abort(time.Minute))
	})
	t.Run("never done", func(t *testing.T) {
		fake, lib, devices := machine(t, 2, nil)
		fake.Deaf(true)
		why := errors.New("rank 7 has failed")
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(50*time.Millisecond, func() { cancel(why) })
		_, errs := join(t, ctx, lib, devices, 0)
		for _, err := range errs {
			if !errors.Is(err, why) {
				t.Errorf("got %v", err)
			}
		}
	})
	t.Run("the id", func(t *testing.T) {
		fake, lib, _ := machine(t, 1, nil)
		fake.Fail("ncclGetUniqueId", -1, nccltest.SystemError, 0)
		if _, err := lib.NewID(); err == nil || !strings.Contains(err.Error(), "ncclGetUniqueId") {
			t.Errorf("got %v", err)
		}
	})
}

// Each call that fails at once says so, and its communicator makes no more.
func TestCallsThatFail(t *testing.T) {
	s, a := func(r *rank) uintptr { return r.stream.Handle() }, func(r *rank) uintptr { return r.stream.Handle() } // any address
	for name, call := range map[string]func(r *rank) error{
		"ncclAllReduce":     func(r *rank) error { return r.comm.AllReduce(s(r), a(r), a(r), 1, dtype.F32, transport.Sum) },
		"ncclReduceScatter": func(r *rank) error { return r.comm.ReduceScatter(s(r), a(r), a(r), 1, dtype.F32, transport.Sum) },
		"ncclAllGather":     func(r *rank) error { return r.comm.AllGather(s(r), a(r), a(r), 1, dtype.F32) },
		"ncclBroadcast":     func(r *rank) error { return r.comm.Broadcast(s(r), a(r), 1, dtype.F32, 0) },
		"ncclReduce":        func(r *rank) error { return r.comm.Reduce(s(r), a(r), a(r), 1, dtype.F32, transport.Sum, 0) },
		"ncclSend": func(r *rank) error {
			return r.comm.Exchange(s(r), []nccl.Part{{Peer: 1, Addr: a(r), N: 1}}, nil, dtype.F32)
		},
		"ncclRecv": func(r *rank) error {
			return r.comm.Exchange(s(r), nil, []nccl.Part{{Peer: 1, Addr: a(r), N: 1}}, dtype.F32)
		},
		"ncclGroupStart":        func(r *rank) error { return r.comm.Exchange(s(r), nil, nil, dtype.F32) },
		"ncclGroupEnd":          func(r *rank) error { return r.comm.Exchange(s(r), nil, nil, dtype.F32) },
		"ncclCommGetAsyncError": func(r *rank) error { return r.comm.Failed() },
		"async":                 func(r *rank) error { return r.comm.Failed() },
	} {
		t.Run(name, func(t *testing.T) {
			fake, lib, devices := machine(t, 2, nil)
			ranks, errs := join(t, deadline(t), lib, devices, 0)
			must(t, errs...)
			fake.Fail(name, 0, nccltest.InternalError, 0)
			e, ok := errors.AsType[*nccl.Error](call(ranks[0]))
			if !ok || e.Result != nccltest.InternalError || e.Detail != name+" was told to fail" {
				t.Errorf("got %v", e)
			}
			fake.Fail(name, 0, 0, 0)
			if err := sum(ranks[0], 2); !errors.Is(err, e) {
				t.Errorf("the next call gave %v, want the first error", err)
			}
			must(t, each(ranks, func(r *rank) error { return r.comm.Abort(time.Minute) })...)
		})
	}
}

// A call that is under way when it fails is one that failed.
func TestCallThatFailsInProgress(t *testing.T) {
	fake, lib, devices := machine(t, 2, nil)
	ranks, errs := join(t, deadline(t), lib, devices, 0)
	must(t, errs...)
	fake.Fail("carrying", 1, nccltest.RemoteError, 0)
	errs = each(ranks, func(r *rank) error { return sum(r, 2) })
	if e, ok := errors.AsType[*nccl.Error](errs[1]); !ok || e.Result != nccltest.RemoteError || errs[0] != nil {
		t.Errorf("got %v", errs)
	}
	must(t, each(ranks, func(r *rank) error { return r.comm.Abort(time.Minute) })...)
}

// A call for which a peer does not come ends with Abort, or when NCCL has had the time
// that it may take.
func TestCallsEnd(t *testing.T) {
	fake, lib, devices := machine(t, 2, nil)
	ranks, errs := join(t, deadline(t), lib, devices, 0)
	must(t, errs...)
	done := make(chan error, 1)
	go func() { done <- sum(ranks[0], 2) }()
	for fake.Calls("ncclAllReduce") == 0 {
		runtime.Gosched()
	}
	must(t, ranks[0].comm.Abort(time.Minute), ranks[0].comm.Abort(time.Minute))
	if err := <-done; !errors.Is(err, nccl.ErrAborted) {
		t.Errorf("got %v", err)
	}
	must(t, ranks[1].comm.Abort(time.Minute))

	id, err := lib.NewID()
	must(t, err)
	impatient := make([]*rank, 2)
	must(t, each(ranks, func(r *rank) error {
		c, err := lib.NewComm(deadline(t), r.dev, nccl.Options{Rank: r.n, Size: 2, ID: id, Patience: 20 * time.Millisecond})
		impatient[r.n] = &rank{r.n, r.dev, r.stream, c}
		return err
	})...)
	if err := sum(impatient[1], 2); !errors.Is(err, nccl.ErrSlow) || !strings.Contains(err.Error(), "cuda:1: ncclAllReduce") {
		t.Errorf("got %v", err)
	}
	must(t, each(impatient, func(r *rank) error { return r.comm.Abort(time.Minute) })...)
}

// What cannot be ended well is aborted.
func TestCloseThatFails(t *testing.T) {
	for _, name := range []string{"ncclCommFinalize", "ncclCommDestroy", "ncclCommAbort"} {
		fake, lib, devices := machine(t, 1, nil)
		ranks, errs := join(t, deadline(t), lib, devices, 0)
		must(t, errs...)
		fake.Fail(name, 0, nccltest.SystemError, 0)
		end := ranks[0].comm.Close
		if name == "ncclCommAbort" {
			end = ranks[0].comm.Abort
		}
		if err := end(time.Minute); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("got %v", err)
		}
	}
}

func TestMemory(t *testing.T) {
	fake, lib, devices := machine(t, 1, nil)
	p, err := lib.Alloc(devices[0], 1000)
	must(t, err)
	fake.Fail("ncclMemFree", -1, nccltest.CUDAError, 0)
	if err := lib.Free(devices[0], p); err == nil || !strings.Contains(err.Error(), "cuda:0: ncclMemFree") {
		t.Errorf("got %v", err)
	}
	fake.Fail("ncclMemFree", -1, 0, 0)
	must(t, lib.Free(devices[0], p))
	fake.Fail("ncclMemAlloc", -1, nccltest.CUDAError, 0)
	if _, err := lib.Alloc(devices[0], 1000); err == nil || !strings.Contains(err.Error(), "cuda:0: ncclMemAlloc(1000)") {
		t.Errorf("got %v", err)
	}
	_, old, devices := machine(t, 1, func(l *nccltest.Library) { l.Version(21805) })
	if _, err := old.Alloc(devices[0], 1000); !errors.Is(err, nccl.ErrNoAlloc) {
		t.Errorf("got %v", err)
	}
}

// The path is read from what NCCL logs, unless the user has a say in the log.
func TestPathIsRead(t *testing.T) {
	use := func() nccl.Path {
		_, lib, devices := machine(t, 2, nil)
		ranks, errs := join(t, deadline(t), lib, devices, 0)
		must(t, errs...)
		must(t, each(ranks, func(r *rank) error { return sum(r, 2) })...)
		p := ranks[1].comm.Path()
		must(t, each(ranks, func(r *rank) error { return r.comm.Close(time.Minute) })...)
		return p
	}
	if got, want := use().String(), "NVLink (P2P/CUMEM), 24 channels"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	conf := filepath.Join(t.TempDir(), "nccl.conf")
	must(t, os.WriteFile(conf, []byte("# log\nNCCL_DEBUG=WARN\n"), 0o600))
	t.Setenv("NCCL_CONF_FILE", conf)
	if p := use(); p.Err == nil || !strings.Contains(p.String(), "NCCL_DEBUG is set in "+conf) {
		t.Errorf("got %q", p)
	}
	t.Setenv("NCCL_DEBUG_FILE", "/dev/null")
	if p := use(); p.Err == nil || !strings.Contains(p.String(), "NCCL_DEBUG_FILE is set in the environment") {
		t.Errorf("got %q", p)
	}
}
