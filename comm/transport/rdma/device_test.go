package rdma

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/gorun-dev/gorun/comm/transport"
	"github.com/gorun-dev/gorun/comm/transport/rdma/verbs"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/testenv"
)

// exchange is a store within the test.
type exchange struct {
	mu      sync.Mutex
	values  map[string][]byte
	changed chan struct{}
}

func newExchange() *exchange {
	return &exchange{values: map[string][]byte{}, changed: make(chan struct{})}
}

func (e *exchange) Set(_ context.Context, key string, value []byte) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.values[key] = value
	close(e.changed)
	e.changed = make(chan struct{})
	return nil
}

func (e *exchange) Wait(ctx context.Context, key string) ([]byte, error) {
	for {
		e.mu.Lock()
		v, ok := e.values[key]
		changed := e.changed
		e.mu.Unlock()
		if ok {
			return v, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// end is a rank's mesh, and why it was lost.
type end struct {
	*Mesh
	traffic transport.Traffic
	lost    chan error
}

// join makes n ends, of one device each where there are as many.
func join(t *testing.T, n int, api *verbs.API, s Settings) []*end {
	t.Helper()
	ends, errs := tryJoin(t, n, func(r int) Options { return Options{API: api, Settings: s} })
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	return ends
}

func tryJoin(t *testing.T, n int, options func(rank int) Options) ([]*end, []error) {
	t.Helper()
	hosts := make([]string, n)
	for r := range hosts {
		hosts[r] = fmt.Sprintf("host%d", r)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	ex := newExchange()
	near := make([]Near, n)
	for r := range near {
		o := options(r)
		near[r], _ = Nearest(o.API, o.Settings, Spot{}) // Join tells the error
	}
	ports := Share(near)
	ends, errs := make([]*end, n), make([]error, n)
	var all sync.WaitGroup
	for r := range n {
		all.Go(func() {
			e := &end{lost: make(chan error, 1)}
			o := options(r)
			o.Rank, o.Hosts, o.Port, o.Exchange = r, hosts, ports[r], ex
			o.Traffic, o.Logger, o.Lost = &e.traffic, slog.Default(), func(err error) { e.lost <- err }
			if e.Mesh, errs[r] = Join(ctx, o); errs[r] != nil {
				cancel()
				return
			}
			ends[r] = e
		})
	}
	all.Wait()
	t.Cleanup(func() { closeAll(t, ends) })
	return ends, errs
}

func closeAll(t *testing.T, ends []*end) {
	var all sync.WaitGroup
	for _, e := range ends {
		if e != nil {
			all.Go(func() {
				if err := e.Close(); err != nil {
					t.Errorf("Close: %v", err)
				}
			})
		}
	}
	all.Wait()
}

func callAt(seq uint64, within time.Duration) *transport.Call {
	return &transport.Call{Header: transport.Header{Seq: seq, Kind: transport.Broadcast, DType: dtype.U8, Root: 0}, Deadline: time.Now().Add(within)}
}

// fill is a pattern that differs from message to message.
func fill(b []byte, seed int) {
	for i := range b {
		b[i] = byte(i*7 + i>>8*13 + seed*31)
	}
}

// devices skips the test where there is no usable RDMA device, real or emulated.
func devices(t *testing.T) {
	t.Helper()
	names, err := Usable(nil, Settings{})
	if err != nil {
		testenv.Skip(t, "rdma", err.Error())
	}
	t.Logf("%q", names)
}

func TestTwoEndsOnDevices(t *testing.T) {
	devices(t)
	exchangeBothWays(t, join(t, 2, nil, Settings{Timeout: 14}))
}

// exchangeBothWays sends messages of all sizes and both kinds of memory in both
// directions at once.
func exchangeBothWays(t *testing.T, ends []*end) {
	t.Helper()
	sizes := []int{0, 1, 13, 4096, ends[0].slotSize - headSize, ends[0].slotSize - headSize + 1, directLeast, directLeast + 1, 1 << 20, 3<<20 + 5}
	errs := make([]error, len(ends))
	var all sync.WaitGroup
	for r, e := range ends {
		all.Go(func() {
			errs[r] = func() error {
				to := (r + 1) % len(ends)
				from := (r + len(ends) - 1) % len(ends)
				for round, kinds := range [][2]bool{{false, false}, {true, true}, {true, false}, {false, true}} {
					c := callAt(uint64(round), 2*time.Minute)
					memory := func(n int, registered bool) []byte {
						if !registered {
							return make([]byte, n)
						}
						b, err := e.Alloc(n)
						if err != nil {
							t.Error(err)
						}
						return b
					}
					var got [][]byte
					for i, n := range sizes {
						out, in := memory(n, kinds[0]), memory(n, kinds[1])
						fill(out, i+r)
						got = append(got, in)
						if err := errors.Join(e.PostSend(c, to, out), e.PostRecv(c, from, in)); err != nil {
							return err
						}
					}
					for i, n := range sizes {
						if err := e.WaitRecv(c, from); err != nil {
							return fmt.Errorf("message %d of %d bytes: %w", i, n, err)
						}
						want := make([]byte, n)
						fill(want, i+from)
						if string(got[i]) != string(want) {
							return fmt.Errorf("round %d: message %d of %d bytes is wrong", round, i, n)
						}
					}
					for range sizes {
						if err := e.WaitSend(c, to); err != nil {
							return err
						}
					}
				}
				return nil
			}()
		})
	}
	all.Wait()
	for r, err := range errs {
		if err != nil {
			t.Errorf("rank %d: %v", r, err)
		}
	}
}
