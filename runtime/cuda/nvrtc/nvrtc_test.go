package nvrtc

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/gorun-dev/gorun/runtime/cuda"
	"github.com/gorun-dev/gorun/runtime/cuda/cudatest"
	"github.com/gorun-dev/gorun/runtime/testenv"
)

const scale = `
struct args { float *x; float by; int n; };
extern "C" __global__ void scale(args a) {
	int i = blockIdx.x * blockDim.x + threadIdx.x;
	if (i < a.n) a.x[i] *= a.by;
}`

func compiler(t testing.TB) *Compiler {
	t.Helper()
	c, err := Load()
	if err != nil {
		testenv.Skip(t, "nvrtc", err.Error())
	}
	return c
}

// cache gives the test a cache of its own and returns its folder.
func cache(t testing.TB) string {
	t.Helper()
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	folder, err := Folder()
	if err != nil {
		t.Fatal(err)
	}
	return folder
}

// logged collects what is logged during the test.
func logged(t testing.TB) *bytes.Buffer {
	var b bytes.Buffer
	old := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(&b, nil)))
	t.Cleanup(func() { slog.SetDefault(old) })
	return &b
}

func entries(t testing.TB, folder string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(folder, "*"))
	if err != nil {
		t.Fatal(err)
	}
	hidden, _ := filepath.Glob(filepath.Join(folder, ".*"))
	return append(files, hidden...)
}

func TestCompile(t *testing.T) {
	c := compiler(t)
	if major, _ := c.Version(); major < oldest || major > newest {
		t.Errorf("version %d", major)
	}
	for _, arch := range []string{"sm_80", "sm_90", "sm_90a"} {
		cubin, log, err := c.Compile("scale.cu", scale, arch, "--std=c++17")
		if err != nil || log != "" {
			t.Fatalf("%s: %v, log %q", arch, err, log)
		}
		f, err := elf.NewFile(bytes.NewReader(cubin))
		if err != nil {
			t.Fatalf("%s: %v", arch, err)
		}
		if f.Section(".text.scale") == nil {
			t.Errorf("%s: no kernel came out", arch)
		}
	}
	// Hopper's own instructions pass for sm_90a alone.
	const hopper = `extern "C" __global__ void fence() { asm volatile("wgmma.fence.sync.aligned;"); }`
	if _, _, err := c.Compile("hopper.cu", hopper, "sm_90a"); err != nil {
		t.Error(err)
	}
	if _, _, err := c.Compile("hopper.cu", hopper, "sm_90"); err == nil {
		t.Error("wgmma was compiled for sm_90")
	}
}

// Kernels may include floats.cuh, and what was compiled with another one is not taken
// for what this one makes.
func TestTheHeader(t *testing.T) {
	c := compiler(t)
	const twice = "#include \"floats.cuh\"\nextern \"C\" __global__ void twice(bf16 *x) { *x = narrow<bf16>(2 * wide(*x)); }"
	if _, log, err := c.Compile("twice.cu", twice, "sm_80"); err != nil || log != "" {
		t.Errorf("%v, log %q", err, log)
	}
	if _, _, err := c.Compile("other.cu", `#include "other.cuh"`, "sm_80"); err == nil || !strings.Contains(err.Error(), "other.cuh") {
		t.Errorf("a header that is not there: %v", err)
	}
	before := c.key(twice, "sm_80", nil)
	defer func(old string) { floats = old }(floats)
	floats += "\n"
	if c.key(twice, "sm_80", nil) == before {
		t.Error("two headers have one key")
	}
}

func TestACompileErrorCarriesTheLog(t *testing.T) {
	c := compiler(t)
	cubin, log, err := c.Compile("broken.cu", "__global__ void k() { x = 1; }\n", "sm_80")
	if err == nil || cubin != nil {
		t.Fatalf("%d bytes, %v", len(cubin), err)
	}
	for _, want := range []string{"broken.cu", "sm_80", "NVRTC_ERROR_COMPILATION", `broken.cu(1): error: identifier "x" is undefined`} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q does not say %q", err, want)
		}
	}
	if !strings.Contains(log, `identifier "x" is undefined`) {
		t.Errorf("log %q", log)
	}
	if _, log, err = c.Compile("warns.cu", "__global__ void k() { int x; }\n", "sm_80"); err != nil || !strings.Contains(log, "never referenced") {
		t.Errorf("a warning: %q, %v", log, err)
	}
	if _, _, err = c.Compile("k.cu", scale, "sm_80", "--no-such-option"); err == nil || !strings.Contains(err.Error(), "--no-such-option") {
		t.Errorf("an unknown option: %v", err)
	}
	for arch, want := range map[string]string{"sm_35": "does not compile for sm_35", "hopper": `"hopper" is no architecture`} {
		if _, _, err = c.Compile("k.cu", scale, arch); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", arch, err)
		}
	}
}

func TestTheCacheSparesTheCompiler(t *testing.T) {
	c := compiler(t)
	folder := cache(t)
	first, err := c.Cached("scale.cu", scale, "sm_80")
	if err != nil {
		t.Fatal(err)
	}
	idle := *c
	idle.createProgram = 0 // a call of it panics
	again, err := idle.Cached("scale.cu", scale, "sm_80")
	if err != nil || !bytes.Equal(first, again) {
		t.Errorf("%d bytes, then %d, %v", len(first), len(again), err)
	}
	if n := len(entries(t, folder)); n != 1 {
		t.Errorf("%d entries", n)
	}
	// All that goes into the compiler makes another entry.
	for _, other := range []func() ([]byte, error){
		func() ([]byte, error) { return c.Cached("scale.cu", scale+" ", "sm_80") },
		func() ([]byte, error) { return c.Cached("scale.cu", scale, "sm_90") },
		func() ([]byte, error) { return c.Cached("scale.cu", scale, "sm_80", "-DA=1") },
		func() ([]byte, error) { return c.Cached("scale.cu", scale, "sm_80", "-DA=1", "-DB") },
		func() ([]byte, error) { newer := *c; newer.minor++; return newer.Cached("scale.cu", scale, "sm_80") },
		func() ([]byte, error) {
			patched := *c
			patched.bytes++
			return patched.Cached("scale.cu", scale, "sm_80")
		},
	} {
		before := len(entries(t, folder))
		if _, err := other(); err != nil {
			t.Error(err)
		}
		if n := len(entries(t, folder)); n != before+1 {
			t.Errorf("%d entries, then %d", before, n)
		}
	}
	if _, err := c.Cached("broken.cu", "broken", "sm_80"); err == nil || len(entries(t, folder)) != 7 {
		t.Errorf("a text that does not compile: %v, %d entries", err, len(entries(t, folder)))
	}
}

func TestADamagedEntryIsCompiledAgain(t *testing.T) {
	c := compiler(t)
	folder := cache(t)
	want, err := c.Cached("scale.cu", scale, "sm_80")
	if err != nil {
		t.Fatal(err)
	}
	file := entries(t, folder)[0]
	whole, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	flipped := bytes.Clone(whole)
	flipped[len(flipped)/2] ^= 1
	for name, damaged := range map[string][]byte{
		"empty": {}, "cut": whole[:len(whole)-1], "header only": whole[:len(magic)+32], "a bit flipped": flipped, "another format": append([]byte("x"), whole...),
	} {
		if err := os.WriteFile(file, damaged, 0o644); err != nil {
			t.Fatal(err)
		}
		log := logged(t)
		got, err := c.Cached("scale.cu", scale, "sm_80")
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: %d bytes, %v", name, len(got), err)
		}
		if !strings.Contains(log.String(), "damaged") || !strings.Contains(log.String(), file) {
			t.Errorf("%s: logged %q", name, log)
		}
		if now, err := os.ReadFile(file); err != nil || !bytes.Equal(now, whole) {
			t.Errorf("%s: the entry was not written anew", name)
		}
	}
}

func TestACacheThatCannotBeUsedIsLogged(t *testing.T) {
	c := compiler(t)
	for name, setUp := range map[string]func(t *testing.T){
		"a file in its place": func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "file")
			if err := os.WriteFile(file, nil, 0o644); err != nil {
				t.Fatal(err)
			}
			t.Setenv("XDG_CACHE_HOME", file)
		},
		"no home": func(t *testing.T) { t.Setenv("XDG_CACHE_HOME", ""); t.Setenv("HOME", "") },
		"an entry that is a folder": func(t *testing.T) {
			cache(t)
			e, err := entryFor(c.key(scale, "sm_80", nil))
			if err != nil {
				t.Fatal(err)
			}
			if err := os.MkdirAll(filepath.Join(string(e), "x"), 0o755); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			setUp(t)
			log := logged(t)
			if b, err := c.Cached("scale.cu", scale, "sm_80"); err != nil || len(b) == 0 {
				t.Errorf("%d bytes, %v", len(b), err)
			}
			if !strings.Contains(log.String(), "kept") {
				t.Errorf("logged %q", log)
			}
			if folder, err := Folder(); err == nil {
				for _, e := range entries(t, folder) {
					if strings.Contains(e, ".new-") {
						t.Errorf("%s is left", e)
					}
				}
			}
		})
	}
}

// A reader finds a whole entry, while others write the same one.
func TestEntriesAreReplacedWhole(t *testing.T) {
	folder := cache(t)
	log := logged(t)
	e, err := entryFor([32]byte{1})
	if err != nil {
		t.Fatal(err)
	}
	cubin := bytes.Repeat([]byte("machine code "), 1<<16)
	if err := e.replace(cubin); err != nil {
		t.Fatal(err)
	}
	var writers, readers sync.WaitGroup
	var over atomic.Bool
	for range 2 {
		writers.Go(func() {
			for range 30 {
				if err := e.replace(cubin); err != nil {
					t.Error(err)
				}
			}
		})
		readers.Go(func() {
			for !over.Load() {
				if got := e.read("test"); !bytes.Equal(got, cubin) {
					t.Errorf("read %d bytes", len(got))
					return
				}
			}
		})
	}
	writers.Wait()
	over.Store(true)
	readers.Wait()
	if len(entries(t, folder)) != 1 || log.Len() > 0 {
		t.Errorf("%v, logged %s", entries(t, folder), log)
	}
}

// Workers of one host start together and want the same kernels: goroutines here,
// and processes beside them.
func TestConcurrentWorkers(t *testing.T) {
	c := compiler(t)
	if os.Getenv("GORUN_TEST_WORKER") != "" {
		work(t, c)
		return
	}
	folder := cache(t)
	var workers []*exec.Cmd
	for range 3 {
		cmd := exec.Command(os.Args[0], "-test.run=^TestConcurrentWorkers$", "-test.count=1")
		cmd.Env = append(os.Environ(), "GORUN_TEST_WORKER=1")
		cmd.Stdout = new(bytes.Buffer)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		workers = append(workers, cmd)
	}
	work(t, c)
	for _, w := range workers {
		if err := w.Wait(); err != nil {
			t.Errorf("a worker: %v: %s", err, w.Stdout)
		}
	}
	if left := entries(t, folder); len(left) != texts {
		t.Errorf("%d entries: %v", len(left), left)
	}
}

const texts = 4

// work reads and writes the same few entries, from several goroutines, and
// damages them now and then: a reader finds a whole entry or none.
func work(t *testing.T, c *Compiler) {
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			for i := range 3 * texts {
				text := scale + strings.Repeat("\n", i%texts)
				cubin, err := c.Cached(fmt.Sprintf("worker %d", g), text, "sm_80")
				if err != nil {
					t.Error(err)
					return
				}
				if _, err := elf.NewFile(bytes.NewReader(cubin)); err != nil {
					t.Error(err)
				}
				if g == 0 && i == 2*texts-1 {
					e, err := entryFor(c.key(text, "sm_80", nil))
					if err == nil {
						err = os.Truncate(string(e), 100)
					}
					if err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	wg.Wait()
}

func TestModuleIsCompiledForItsGPU(t *testing.T) {
	f := cudatest.Fake(t) // of compute capability 9.0
	compiler(t)
	cache(t)
	d, err := cuda.Open(0)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if a := Arch(d); a != "sm_90a" {
		t.Errorf("a Hopper gets %s", a)
	}
	m, err := Module(d, "scale.cu", scale)
	if err != nil {
		t.Fatal(err)
	}
	scale, err := m.Function("scale")
	if err != nil {
		t.Fatal(err)
	}
	s, err := d.NewStream("s")
	if err != nil {
		t.Fatal(err)
	}
	one := cuda.Grid{Blocks: cuda.Dim{X: 1}, Threads: cuda.Dim{X: 32}}
	cuda.Launch(s.(*cuda.Stream), scale, one, &struct {
		X  uintptr
		By float32
		N  int32
	}{1, 2, 3})
	if err := s.Synchronize(t.Context()); err != nil || f.Launches() != 1 {
		t.Errorf("%d launches, %v", f.Launches(), err)
	}
	// The cubin itself tells the size of the parameters.
	cuda.Launch(s.(*cuda.Stream), scale, one, &struct{ X uintptr }{})
	if err := s.Close(); err == nil || !strings.Contains(err.Error(), "scale takes 16 bytes of parameters") {
		t.Errorf("arguments that are too short: %v", err)
	}
	if _, err := Module(d, "broken.cu", "broken"); err == nil || !strings.HasPrefix(err.Error(), "cuda:0: compile broken.cu for sm_90a: ") {
		t.Errorf("a text that does not compile: %v", err)
	}
}

// A tensor map is aligned to 64 bytes in the GPU's memory of parameters, which
// itself begins elsewhere: each parameter has to be handed over on its own.
func TestTensorMapsArriveWhereTheKernelLooks(t *testing.T) {
	f := cudatest.Fake(t)
	compiler(t)
	cache(t)
	d, err := cuda.Open(0)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	m, err := Module(d, "mapped.cu", `
		struct alignas(64) map { char bytes[128]; };
		struct args { long long *out; int n; };
		extern "C" __global__ void mapped(const __grid_constant__ map a, const __grid_constant__ map b, args p) {
			p.out[0] = a.bytes[p.n] + b.bytes[p.n];
		}`)
	if err != nil {
		t.Fatal(err)
	}
	mapped, err := m.Function("mapped")
	if err != nil {
		t.Fatal(err)
	}
	s, err := d.NewStream("s")
	if err != nil {
		t.Fatal(err)
	}
	args := struct {
		A, B cuda.TensorMap
		Out  uint64
		N    int32
	}{Out: 0x1122334455667788, N: 99}
	for i := range args.A {
		args.A[i], args.B[i] = byte(i), byte(128+i)
	}
	cuda.Launch(s.(*cuda.Stream), mapped, cuda.Grid{Blocks: cuda.Dim{X: 1}, Threads: cuda.Dim{X: 1}}, &args)
	if err := s.Synchronize(t.Context()); err != nil {
		t.Fatal(err)
	}
	got := f.Last().Params // from where the driver counts
	if len(got) < 272 {
		t.Fatalf("%d bytes of parameters", len(got))
	}
	t.Logf("the first map is %d bytes in", len(got)-272)
	got = got[len(got)-272:]
	if !bytes.Equal(got[:128], args.A[:]) || !bytes.Equal(got[128:256], args.B[:]) ||
		binary.LittleEndian.Uint64(got[256:]) != args.Out || binary.LittleEndian.Uint32(got[264:]) != 99 {
		t.Errorf("the kernel finds %x", got)
	}
}

func TestTheCompilerFitsTheDriver(t *testing.T) {
	cache(t)
	cudatest.FakeOf(t, cudatest.Machine{Version: 12040})
	c := compiler(t)
	major, _ := c.Version()
	if major == 12 {
		return // as it should be
	}
	// Only a newer one is there, because a variable names it.
	d, err := cuda.Open(0)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if _, err := Module(d, "scale.cu", scale); err == nil || !strings.Contains(err.Error(), "the driver, of CUDA 12.4, cannot load") || !strings.Contains(err.Error(), "nvidia-cuda-nvrtc-cu12") {
		t.Errorf("got %v", err)
	}
}

func TestWhereNVRTCIsMissing(t *testing.T) {
	cudatest.Fake(t)
	t.Setenv("GORUN_NVRTC_LIB", "/nowhere/libnvrtc.so.13")
	d, err := cuda.Open(0)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if _, err := Module(d, "scale.cu", scale); err == nil || !strings.Contains(err.Error(), "cuda:0: kernels of scale.cu: NVRTC: GORUN_NVRTC_LIB names a file that does not open") {
		t.Errorf("got %v", err)
	}
	s := spec(13, 12)
	if strings.Join(s.Files, " ") != "libnvrtc.so.13 libnvrtc.so.12" || strings.Join(s.Folders, " ") != "nvidia/cu13/lib nvidia/cuda_nvrtc/lib" || !strings.Contains(s.Install, "nvidia-cuda-nvrtc or nvidia-cuda-nvrtc-cu12") {
		t.Errorf("%+v", s)
	}
}
