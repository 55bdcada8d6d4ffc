package workers_test

import (
	"sync/atomic"
	"testing"

	"github.com/gorun-dev/gorun/kernels/internal/kerntest"
	"github.com/gorun-dev/gorun/kernels/internal/workers"
	"github.com/gorun-dev/gorun/runtime/device"
)

func TestRunDoesEveryTaskOnce(t *testing.T) {
	for _, threads := range []int{0, 1, 2, 4, 9} {
		p := workers.New(threads)
		for _, n := range []int{0, 1, 2, 3, 100, 1000} {
			counts := make([]atomic.Int32, n)
			busy := make([]atomic.Int32, p.Threads())
			p.Run(n, func(worker, task int) {
				if busy[worker].Add(1) != 1 {
					t.Error("one worker ran two tasks at once")
				}
				counts[task].Add(1)
				busy[worker].Add(-1)
			})
			for i := range counts {
				if c := counts[i].Load(); c != 1 {
					t.Fatalf("%d threads: task %d of %d ran %d times", threads, i, n, c)
				}
			}
		}
		p.Close()
	}
}

func TestRangeCoversInOrder(t *testing.T) {
	for _, threads := range []int{1, 3} {
		p := kerntest.Pool(t, threads)
		for _, n := range []int{0, 1, 9, 10, 11, 1000} {
			covered := make([]atomic.Int32, n)
			p.Range(n, 10, func(_, from, to int) {
				if from >= to || to > n || threads > 1 && to-from < 10 && to != n {
					t.Errorf("range [%d, %d) of %d", from, to, n)
				}
				for i := from; i < to; i++ {
					covered[i].Add(1)
				}
			})
			for i := range covered {
				if covered[i].Load() != 1 {
					t.Fatalf("%d of %d covered %d times", i, n, covered[i].Load())
				}
			}
		}
	}
}

// With one thread a task runs on the caller's goroutine: no other one exists.
func TestOneThreadRunsInline(t *testing.T) {
	p := kerntest.Pool(t, 1)
	order := []int{} // unguarded: the race detector would object to another goroutine
	p.Run(5, func(worker, task int) { order = append(order, worker*100+task) })
	for i, v := range order {
		if v != i {
			t.Fatalf("order %v", order)
		}
	}
}

// Two goroutines that call Run take turns, so that a worker's scratch is its own.
func TestRunsTakeTurns(t *testing.T) {
	p := kerntest.Pool(t, 2)
	scratch := make([]int, 2) // unguarded, as in kernels
	done := make(chan bool)
	for range 2 {
		go func() {
			for range 200 {
				p.Run(4, func(worker, _ int) { scratch[worker]++ })
			}
			done <- true
		}()
	}
	<-done
	<-done
	if scratch[0]+scratch[1] != 1600 {
		t.Errorf("%v", scratch)
	}
}

func TestRunAfterClosePanics(t *testing.T) {
	p := workers.New(2)
	p.Close()
	kerntest.Panics(t, func() { p.Run(1, func(_, _ int) {}) }, "closed")
}

// elsewhere is a stream of another kind of device.
type elsewhere struct{ device.Stream }

func (elsewhere) Device() device.Device { return device.NewCPU() }

func TestEnqueueRefusesOtherStreams(t *testing.T) {
	kerntest.Panics(t, func() { workers.Enqueue(elsewhere{}, "add", nil) }, "add", "CPU")
}
