package dma

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/gorun-dev/gorun/runtime/cuda"
	"github.com/gorun-dev/gorun/runtime/cuda/cudatest"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dl"
	"github.com/gorun-dev/gorun/runtime/testenv"
)

// The kernels run on the CPU, as they are: the C++ compiler of the host takes their text,
// with floats.h of testdata in the place of what knows the GPU. Ranks are goroutines with
// fake GPUs, whose memory is the host's and whose streams do everything at once: a call
// returns when it is done on this rank.

var (
	emulatorOnce sync.Once
	emulatorPath string
	emulatorErr  error
)

func TestMain(m *testing.M) {
	code := m.Run()
	if emulatorPath != "" {
		os.RemoveAll(filepath.Dir(emulatorPath))
	}
	os.Exit(code)
}

// buildEmulator compiles the kernels, once.
func buildEmulator() (path string, err error) {
	compiler, err := exec.LookPath("g++")
	if err != nil {
		return "", err
	}
	dir, err := os.MkdirTemp("", "kernels")
	if err != nil {
		return "", err
	}
	path = filepath.Join(dir, "libkernels.so")
	floats, err := os.ReadFile("testdata/floats.h")
	if err != nil {
		return path, err
	}
	for name, text := range map[string]string{
		"floats.cuh": string(floats),
		"exchange.h": elementsText + watchText + exchangeOnly + directOnly + pairsOnly,
		"sum.h":      text,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			return path, err
		}
	}
	cmd := exec.Command(compiler, "-std=c++17", "-O1", "-shared", "-fPIC", "-fno-strict-aliasing", "-Wall", "-Wno-unknown-pragmas", "-Werror",
		"-I", dir, "-o", path, "testdata/emulate.cc")
	if out, err := cmd.CombinedOutput(); err != nil {
		return path, fmt.Errorf("g++: %w: %s", err, out)
	}
	return path, nil
}

// emulator is a machine that runs kernels on the CPU, with fewer threads in a block than
// are asked for.
type emulator struct {
	t    testing.TB
	run  dl.Proc
	seed atomic.Uint32 // of the order in which threads take turns

	mute    atomic.Bool // kernels do not say when they begin and end
	stalled atomic.Bool // kernels wait
	waiting chan func() // those that do
}

// emulatedThreads is how many threads a block has.
const emulatedThreads = 16

func newEmulator(t testing.TB) *emulator {
	t.Helper()
	emulatorOnce.Do(func() { emulatorPath, emulatorErr = buildEmulator() })
	if emulatorErr != nil {
		if _, err := exec.LookPath("g++"); err != nil {
			testenv.Skip(t, "gcc", emulatorErr.Error())
		}
		t.Fatal(emulatorErr)
	}
	t.Setenv("GORUN_TEST_KERNELS", emulatorPath)
	lib, err := dl.Open(dl.Spec{Env: "GORUN_TEST_KERNELS", Name: "the kernels for the CPU"})
	if err != nil {
		t.Fatal(err)
	}
	run, err := lib.Proc("emulate")
	if err != nil {
		t.Fatal(err)
	}
	return &emulator{t: t, run: run, waiting: make(chan func(), 8)}
}

func (e *emulator) module(d *cuda.Device, name, _ string) (*cuda.Module, error) {
	kernels := map[string][]int{}
	for _, k := range kernelNames() {
		kernels[k] = []int{int(unsafe.Sizeof(exchangeArgs{}))}
		if strings.HasPrefix(k, "direct") {
			kernels[k] = []int{int(unsafe.Sizeof(directArgs{}))}
		}
	}
	kernels["pairs"] = []int{int(unsafe.Sizeof(pairsArgs{}))}
	for _, k := range []string{"sum_f32", "sum_bf16", "sum_f16"} {
		kernels[k] = []int{int(unsafe.Sizeof(sumArgs{}))}
	}
	return d.LoadModule(name, cudatest.Module(kernels))
}

func (e *emulator) launch(s *cuda.Stream, f *cuda.Function, g cuda.Grid, args any) {
	gpu{}.launch(s, f, g, args) // which looks at the arguments
	v := reflect.ValueOf(args)
	if a, ok := args.(*exchangeArgs); ok && e.mute.Load() {
		a.watch.stamps = 0
	}
	if e.stalled.Load() {
		own := reflect.New(v.Type().Elem()) // the caller uses args again
		own.Elem().Set(v.Elem())
		e.waiting <- func() { e.emulate(f, g, own.UnsafePointer(), own.Type().Elem().Size()) }
		return
	}
	e.emulate(f, g, v.UnsafePointer(), v.Type().Elem().Size())
}

func (e *emulator) emulate(f *cuda.Function, g cuda.Grid, args unsafe.Pointer, size uintptr) {
	name := dl.CString(f.Name())
	r := e.run.Call(uintptr(unsafe.Pointer(name)), uintptr(args), size,
		uintptr(g.Blocks.X), uintptr(min(g.Threads.X, emulatedThreads)), uintptr(e.seed.Add(1)))
	if r != 0 {
		e.t.Errorf("kernel %s: %d", f.Name(), r)
	}
}

// wait is what the fake driver does not do. An abort fills the counters.
func (e *emulator) wait(s *cuda.Stream, addr uintptr, v uint32) {
	s.WaitValue32(addr, v) // which looks at the address
	word := *(**uint32)(unsafe.Pointer(&addr))
	for int32(atomic.LoadUint32(word)-v) < 0 {
		runtime.Gosched()
	}
}

// emulated makes a team of n ranks on fake GPUs whose kernels run.
func emulated(t *testing.T, n int) []*Team {
	t.Helper()
	driver := cudatest.FakeOf(t, cudatest.Machine{GPUs: n})
	e := newEmulator(t)
	b, teams := newBoard(n), make([]*Team, n)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	ranks(t, n, func(rank int) error {
		d, err := cuda.Open(rank)
		if err != nil {
			return err
		}
		teams[rank], err = join(ctx, d, e, Options{Rank: rank, Size: n, Exchange: b.exchange(rank), MaxBlocks: 4})
		return err
	})
	t.Cleanup(func() {
		ranks(t, n, func(rank int) error {
			d := teams[rank].d
			return errors.Join(teams[rank].Close(), d.Close())
		})
		if live := driver.Live(); len(live) > 0 {
			t.Errorf("left over on the GPUs: %v", live)
		}
	})
	return teams
}

// ranks calls f for each rank at the same time.
func ranks(t testing.TB, n int, f func(rank int) error) {
	t.Helper()
	var all sync.WaitGroup
	for rank := range n {
		all.Go(func() {
			if err := f(rank); err != nil {
				t.Errorf("rank %d: %v", rank, err)
			}
		})
	}
	all.Wait()
	if t.Failed() {
		t.FailNow()
	}
}

// view is memory of a fake GPU.
func view(b device.Buffer) []byte {
	addr := b.Addr()
	return unsafe.Slice(*(**byte)(unsafe.Pointer(&addr)), b.Len())
}

func TestJoinEmulated(t *testing.T) {
	for _, n := range []int{2, 3} {
		t.Run(fmt.Sprint(n), func(t *testing.T) { emulated(t, n) })
	}
}
