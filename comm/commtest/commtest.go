// Package commtest runs ranks as goroutines and checks what collectives do. It
// serves the tests of comm, and of the packages that stand on it.
package commtest

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gorun-dev/gorun/comm"
	"github.com/gorun-dev/gorun/runtime/device"
)

// Groups makes n ranks, which are closed when the test ends.
func Groups(t testing.TB, n int, o ...comm.Options) []*comm.Group {
	t.Helper()
	groups, err := comm.Local(n, o...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { Close(groups) })
	return groups
}

// Close closes all ranks at once; their errors are the test's to look at before.
func Close(groups []*comm.Group) error {
	errs := make([]error, len(groups))
	var all sync.WaitGroup
	for i, g := range groups {
		all.Go(func() { errs[i] = g.Close() })
	}
	all.Wait()
	return errors.Join(errs...)
}

// Each runs f for every rank, with a stream of its own that f need not close, and
// returns the ranks' errors.
func Each(groups []*comm.Group, f func(g *comm.Group, s *device.CPUStream) error) []error {
	errs := make([]error, len(groups))
	var all sync.WaitGroup
	for i, g := range groups {
		all.Go(func() {
			s := device.NewCPUStream(fmt.Sprintf("rank %d", g.Rank()), nil)
			errs[i] = f(g, s)
			if err := s.Close(); errs[i] == nil {
				errs[i] = err
			}
		})
	}
	all.Wait()
	return errs
}

// EachOn is Each on devices, one for each rank: f has a stream of its rank's device,
// for which 1 MiB is reserved, and its goroutine a thread of its own.
func EachOn(groups []*comm.Group, devices []device.Device, f func(g *comm.Group, s device.Stream) error) []error {
	errs := make([]error, len(groups))
	var all, ready sync.WaitGroup
	ready.Add(len(groups))
	for i, g := range groups {
		all.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			s, err := devices[i].NewStream(fmt.Sprintf("rank %d", g.Rank()))
			if err == nil {
				err = Reserve(s, 1<<20)
			}
			ready.Done()
			ready.Wait()
			if err == nil {
				err = f(g, s)
			}
			if s != nil {
				if e := s.Close(); err == nil {
					err = e
				}
			}
			errs[i] = err
		})
	}
	all.Wait()
	return errs
}

// Run is Each for ranks that must not fail. The first error aborts the groups, so
// that nobody waits for the rank which had it; after five minutes Run gives up.
func Run(t testing.TB, groups []*comm.Group, f func(g *comm.Group, s *device.CPUStream) error) {
	t.Helper()
	run(t, func(note func(*comm.Group, error) error) []error {
		return Each(groups, func(g *comm.Group, s *device.CPUStream) error { return note(g, f(g, s)) })
	})
}

// RunOn is EachOn for ranks that must not fail, as Run is Each.
func RunOn(t testing.TB, groups []*comm.Group, devices []device.Device, f func(g *comm.Group, s device.Stream) error) {
	t.Helper()
	run(t, func(note func(*comm.Group, error) error) []error {
		return EachOn(groups, devices, func(g *comm.Group, s device.Stream) error { return note(g, f(g, s)) })
	})
}

// run runs ranks, which note their errors.
func run(t testing.TB, ranks func(note func(g *comm.Group, err error) error) []error) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		first := make(chan struct{}, 1)
		first <- struct{}{}
		errs := ranks(func(g *comm.Group, err error) error {
			if err != nil {
				select {
				case <-first:
					g.Abort(err)
				default:
					if g.Err() != nil {
						return nil // an echo of the first
					}
				}
			}
			return err
		})
		for r, err := range errs {
			if err != nil {
				t.Errorf("rank %d: %v", r, err)
			}
		}
	}()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	select {
	case <-done:
	case <-ctx.Done():
		buf := make([]byte, 1<<20)
		t.Fatalf("the ranks hang:\n%s", buf[:runtime.Stack(buf, true)])
	}
}

// CheckLeaks fails the test if goroutines of this module are left over when it and
// its clean-ups have ended. Call it first.
func CheckLeaks(t testing.TB) {
	t.Helper()
	t.Cleanup(func() {
		buf := make([]byte, 1<<20)
		var left []string
		for until := time.Now().Add(30 * time.Second); time.Now().Before(until); runtime.Gosched() {
			left = nil
			for _, stack := range strings.Split(string(buf[:runtime.Stack(buf, true)]), "\n\n") {
				if strings.Contains(stack, "gorun/comm") && !strings.Contains(stack, "testing.(*T)") && !strings.Contains(stack, "CheckLeaks") {
					left = append(left, stack)
				}
			}
			if len(left) == 0 {
				return
			}
		}
		t.Errorf("%d goroutines are left over:\n%s", len(left), strings.Join(left, "\n\n"))
	})
}
