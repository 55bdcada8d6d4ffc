// Package cudnn is causal grouped-query attention by cuDNN, through its plain C
// backend API: the library is opened at run time, and what it shall compute is
// described by a graph of tensors and operations (attention.go).
//
// Letters: B sequences, T positions, H query heads, K key and value heads, D head
// size.
package cudnn

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/gorun-dev/gorun/kernels/internal/nv"
	"github.com/gorun-dev/gorun/runtime/cuda"
	"github.com/gorun-dev/gorun/runtime/cuda/nvrtc"
	"github.com/gorun-dev/gorun/runtime/device"
)

// Limit is how much scratch memory a backward pass may take, in bytes. It is
// quadratic in T: a pass that would take more is cut into slices, with the same bits
// and some loss of speed.
const Limit = 1 << 30

// SDPA is cuDNN's attention on one GPU. Its methods may be called from any
// goroutine; one at a time enqueues. Plans, which cuDNN compiles, are made at the
// first sight of a shape and kept on disk.
type SDPA struct {
	lib   *library
	card  card
	cache cache
	limit int64 // Limit, but in tests

	mu      sync.Mutex // guards what follows
	spare   *session   // for the first stream
	lanes   map[stream]*lane
	scalars device.Buffer // floats in pinned memory: see scalar
	closed  bool
}

// card is what an SDPA needs of a GPU: of nv.Env, but for tests.
type card interface {
	// String is the GPU's name in errors.
	String() string
	// Bind keeps the goroutine on its thread, with the GPU's primary context current
	// there, until unbind.
	Bind() (unbind func())
	// Scratch is device memory, as nv.Env gives it.
	Scratch(user string, n int) (device.Buffer, error)
	// AllocHost is host memory that the garbage collector neither moves nor frees.
	AllocHost(n int) (device.Buffer, error)
}

// stream is what an SDPA needs of a *cuda.Stream.
type stream interface {
	Handle() uintptr
	Err() error
	Fail(error)
}

// gpu is an environment as a card.
type gpu struct {
	*nv.Env
}

func (g gpu) String() string        { return g.Device.String() }
func (g gpu) Bind() (unbind func()) { return g.Device.Bind() }

// lane is what one stream needs: a handle, which carries one stream, and the plans
// that were made with it.
type lane struct {
	*session
	user  string // of scratch memory, so that streams share none
	plans map[planKey]*plan
}

type planKey struct {
	backward bool
	shape    shape
}

// Open opens cuDNN 9.14 or newer for the GPU of env. The error of a library that is
// missing or too old says what was found and what to install. Only GPUs of compute
// capability 9.0 (Hopper) are accepted: nothing is known of determinism, workspace
// and accuracy on others. Close the SDPA before env.
func Open(env *nv.Env) (*SDPA, error) {
	if major, minor := env.Device.Arch(); major != 9 || minor != 0 {
		return nil, fmt.Errorf("%s: cuDNN attention is proved on compute capability 9.0 alone, and %s has %d.%d: use native attention",
			env.Device, env.Device.Name(), major, minor)
	}
	lib, err := load()
	if err != nil {
		return nil, err
	}
	if err := lib.prepare(); err != nil {
		return nil, err
	}
	driver, err := driverText()
	if err != nil {
		return nil, err
	}
	folder, err := nvrtc.Folder()
	if err != nil {
		slog.Warn("cudnn: plans are not kept on disk", "error", err)
	}
	a, err := open(lib, gpu{env}, cache{
		folder: folder, cudnn: versionText(lib.version), driver: driver,
		card: fmt.Sprintf("%s, %d multiprocessors", env.Device.Name(), env.SMs),
	})
	if err != nil {
		return nil, fmt.Errorf("%s: cuDNN %s: %w", env.Device, versionText(lib.version), err)
	}
	slog.Debug("cudnn: opened", "device", env.Device.String(), "library", lib.path, "version", a.Version(), "plans", a.cache.folder)
	return a, nil
}

func open(lib *library, c card, plans cache) (*SDPA, error) {
	a := &SDPA{lib: lib, card: c, cache: plans, limit: Limit, lanes: map[stream]*lane{}}
	if err := a.allocScalars(); err != nil {
		return nil, err
	}
	defer c.Bind()()
	var err error
	a.spare, err = newSession(lib)
	return a, err
}

// driverText names the driver: the version of CUDA that it knows, and where the
// kernel tells it its own.
func driverText() (string, error) {
	major, minor, err := cuda.DriverVersion()
	if err != nil {
		return "", err
	}
	text := fmt.Sprintf("%d.%d", major, minor)
	if own, err := os.ReadFile("/sys/module/nvidia/version"); err == nil {
		text += " " + strings.TrimSpace(string(own))
	}
	return text, nil
}

// Version is cuDNN's: "9.14.0".
func (a *SDPA) Version() string { return versionText(a.lib.version) }

// Supported says why attention of this shape is refused, nil where it is not.
func (a *SDPA) Supported(B, T, H, K, D int) error {
	return supported(B, T, H, K, D, a.limit)
}

func supported(B, T, H, K, D int, limit int64) error {
	switch {
	case B < 1 || H < 1 || K < 1 || H%K != 0:
		return fmt.Errorf("cuDNN attention: %d sequences, %d heads of queries, %d of keys", B, H, K)
	case T < 2:
		// The backward pass of one position leaves rounding noise in dq and dk, which
		// must be zero.
		return fmt.Errorf("cuDNN attention: %d positions, its backward pass is right from 2 on", T)
	case !slices.Contains(headSizes, int64(D)):
		return fmt.Errorf("cuDNN attention: heads of size %d, proved are %v", D, headSizes)
	}
	s := whole(B, T, H, K, D)
	// Far from what was run, and the library may count elements in 32 bits.
	if s.B*s.T*s.E > math.MaxInt32 {
		return fmt.Errorf("cuDNN attention: qkv has %d elements, proved are less than 2^31", s.B*s.T*s.E)
	}
	if part, ok := s.part(limit); !ok {
		return fmt.Errorf("cuDNN attention: the backward pass of one head of keys over %d positions takes %d bytes of scratch memory, and the limit is %d",
			T, part.scratch(), limit)
	}
	return nil
}

// Workspace is how many bytes of scratch memory Forward and Backward take for this
// shape, which must be supported.
func (a *SDPA) Workspace(B, T, H, K, D int) int64 {
	part, _ := whole(B, T, H, K, D).part(a.limit)
	return max(part.scratch(), forwardWorkspace())
}

// Close frees plans and handles. Synchronize the streams that were used before.
func (a *SDPA) Close() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return nil
	}
	a.closed = true
	defer a.card.Bind()()
	var errs []error
	for _, l := range a.lanes {
		for _, p := range l.plans {
			errs = append(errs, l.destroy(p.desc))
		}
		errs = append(errs, l.close())
	}
	if a.spare != nil {
		errs = append(errs, a.spare.close())
	}
	a.lanes, a.spare = nil, nil
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("%s: cuDNN %s: %w", a.card, a.Version(), err)
	}
	return nil
}
