package cublaslt

import (
	"bytes"
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/gorun-dev/gorun/runtime/cuda"
	"github.com/gorun-dev/gorun/runtime/cuda/cublaslt/fakelt"
	"github.com/gorun-dev/gorun/runtime/cuda/cudatest"
	"github.com/gorun-dev/gorun/runtime/device"
)

// fake is a device and a cuBLASLt that compute on the host.
type fake struct {
	gpu    *cudatest.Driver
	lt     *fakelt.Library
	dev    *cuda.Device
	stream *cuda.Stream
	log    *bytes.Buffer
}

// newFake puts the fakes in the places of the driver and the library, with an empty
// cache of choices, until the test ends.
func newFake(t *testing.T) *fake {
	t.Helper()
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	f := &fake{gpu: cudatest.Fake(t), lt: fakelt.Fake(t), log: new(bytes.Buffer)}
	before := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(f.log, &slog.HandlerOptions{Level: slog.LevelDebug})))
	t.Cleanup(func() { slog.SetDefault(before) })
	var err error
	if f.dev, err = cuda.Open(0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.dev.Close() }) // it returns the error of a failed stream, which the test knows
	f.stream = f.newStream(t)
	return f
}

func (f *fake) newStream(t *testing.T) *cuda.Stream {
	t.Helper()
	s, err := f.dev.NewStream("test")
	if err != nil {
		t.Fatal(err)
	}
	return s.(*cuda.Stream)
}

// handle opens the fake library; it is closed with the test.
func (f *fake) handle(t *testing.T, workspace int) *Handle {
	t.Helper()
	h, err := New(f.dev, workspace)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	})
	return h
}

func wait(t testing.TB, s *cuda.Stream) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := s.Synchronize(ctx); err != nil {
		t.Fatal(err)
	}
}

// download copies device memory to the host.
func download(t testing.TB, s *cuda.Stream, b device.Buffer) []byte {
	t.Helper()
	out := make([]byte, b.Len())
	s.Copy(device.Host(out), b)
	wait(t, s)
	return out
}
