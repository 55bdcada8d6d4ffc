// Package workers runs the pieces of CPU kernels on a fixed number of threads.
//
// A kernel splits its output into tasks, never a sum: each output element is
// computed by one task in one order, so results do not depend on how many
// workers there are or on which of them takes which task.
package workers

import (
	"sync"
	"sync/atomic"

	"github.com/gorun-dev/gorun/kernels/internal/check"
	"github.com/gorun-dev/gorun/runtime/device"
)

// Pool runs tasks on Threads workers: the goroutine that calls Run and
// Threads-1 goroutines of its own. With one thread everything runs inline.
type Pool struct {
	threads int
	run     sync.Mutex // held by the Run in progress
	wake    chan *job  // one send wakes one worker for one job; closed by Close
	ended   sync.WaitGroup
	closed  bool // guarded by run
}

// job is one Run as its workers see it.
type job struct {
	task func(worker, task int)
	n    int64
	next atomic.Int64 // the next task to take
	left sync.WaitGroup
}

// New starts a pool of threads workers, at least one. Close ends them.
func New(threads int) *Pool {
	p := &Pool{threads: max(threads, 1)}
	p.wake = make(chan *job, p.threads)
	for w := 1; w < p.threads; w++ {
		p.ended.Add(1)
		go p.work(w)
	}
	return p
}

// Threads is the number of workers.
func (p *Pool) Threads() int { return p.threads }

// Run calls f(worker, task) for every task in [0, n) and returns when all calls
// have. worker, in [0, Threads), names scratch that no call running at the same
// time uses: Runs of several streams take turns. f must not call Run.
func (p *Pool) Run(n int, f func(worker, task int)) {
	p.run.Lock()
	defer p.run.Unlock()
	if p.closed {
		panic("kernels: work on operations that are closed")
	}
	helpers := min(p.threads, n) - 1
	if helpers <= 0 {
		for i := range n {
			f(0, i)
		}
		return
	}
	j := &job{task: f, n: int64(n)}
	j.left.Add(helpers)
	for range helpers {
		p.wake <- j
	}
	j.take(0)
	j.left.Wait()
}

// Range splits [0, n) into ranges of about grain or more and calls f for each.
func (p *Pool) Range(n, grain int, f func(worker, from, to int)) {
	// A few tasks a worker: enough to even out a busy core, few enough to be cheap.
	size := max(grain, 1)
	if p.threads == 1 {
		size = max(n, 1)
	} else if even := (n + 4*p.threads - 1) / (4 * p.threads); even > size {
		size = even
	}
	p.Run((n+size-1)/size, func(worker, task int) {
		f(worker, task*size, min((task+1)*size, n))
	})
}

// work is one worker. New starts it, Close ends it.
func (p *Pool) work(worker int) {
	defer p.ended.Done()
	for j := range p.wake {
		j.take(worker)
		j.left.Done()
	}
}

func (j *job) take(worker int) {
	for i := j.next.Add(1) - 1; i < j.n; i = j.next.Add(1) - 1 {
		j.task(worker, int(i))
	}
}

// Close waits for the Run in progress and ends the workers. Work enqueued
// behind it panics, so close the streams first.
func (p *Pool) Close() {
	p.run.Lock()
	defer p.run.Unlock()
	if !p.closed {
		p.closed = true
		close(p.wake)
		p.ended.Wait()
	}
}

// Enqueue puts f on s, which must be a stream of the CPU.
func Enqueue(s device.Stream, op string, f func() error) {
	c, ok := s.(*device.CPUStream)
	if !ok {
		check.Fail(op, "a CPU operation cannot run on a stream of %v", s.Device())
	}
	c.Do(op, f)
}

// sumPiece is how many elements Sum gives to one call.
const sumPiece = 1 << 14

// Sum adds up f over pieces of [0, n) in the order of the pieces, whose size is
// fixed, so that the result does not depend on the number of workers.
func (p *Pool) Sum(n int, f func(from, to int) float64) float64 {
	parts := make([]float64, (n+sumPiece-1)/sumPiece)
	p.Run(len(parts), func(_, task int) {
		parts[task] = f(task*sumPiece, min((task+1)*sumPiece, n))
	})
	var sum float64
	for _, s := range parts {
		sum += s
	}
	return sum
}
