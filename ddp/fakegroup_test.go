package ddp

import (
	"errors"
	"fmt"
	"sync"

	"github.com/gorun-dev/gorun/comm"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/device/devicetest"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

// hub is a group of ranks in one process. A collective is a meeting: the last
// rank to come does the arithmetic for all.
type hub struct {
	size  int
	abort chan struct{} // closed by the first Abort
	once  sync.Once
	err   error // set before abort is closed

	mu       sync.Mutex
	meetings map[int]*meeting
}

type meeting struct {
	call string
	bufs []device.Buffer
	srcs []device.Buffer
	came int
	done chan struct{} // closed by the last to come
}

// fakeGroup is one rank of a hub. calls is its record of collectives, in the
// order in which they were enqueued.
type fakeGroup struct {
	*hub
	rank   int
	seq    int
	calls  []string
	gpu    *devicetest.GPU // whose memory it gives and reduces; nil: the host's
	allocs int
}

func newHub(n int) []*fakeGroup {
	h := &hub{size: n, abort: make(chan struct{}), meetings: map[int]*meeting{}}
	groups := make([]*fakeGroup, n)
	for r := range groups {
		groups[r] = &fakeGroup{hub: h, rank: r}
	}
	return groups
}

func (g *fakeGroup) Rank() int { return g.rank }
func (g *fakeGroup) Size() int { return g.size }

func (g *fakeGroup) Host(rank int) string { return fmt.Sprintf("node%d", rank) }

func (g *fakeGroup) Abort(err error) {
	g.once.Do(func() {
		g.err = err
		close(g.abort)
	})
}

func (g *fakeGroup) Alloc(n int) (device.Buffer, error) {
	if g.gpu == nil {
		return device.NewCPU().Alloc(n)
	}
	g.allocs++
	return g.gpu.Alloc(n)
}

func (g *fakeGroup) AllReduce(s device.Stream, buf device.Buffer, dt dtype.DType, op comm.Op) *comm.Work {
	return g.enqueue(s, fmt.Sprintf("AllReduce(%s, %s, %d)", op, dt, buf.Len()/dt.Size()), buf, buf, func(m *meeting) {
		n := buf.Len() / dt.Size()
		ranks := make([]tensor.Tensor, g.size)
		for r := range ranks {
			ranks[r] = tensor.New(m.bufs[r], dt, n)
		}
		if dt == dtype.I32 {
			sum := make([]int32, n)
			for _, t := range ranks {
				for i, x := range t.I32() {
					sum[i] += x
				}
			}
			for _, t := range ranks {
				copy(t.I32(), sum)
			}
			return
		}
		for i := range n {
			sum := 0.0
			for _, t := range ranks {
				sum += loader(t)(i)
			}
			if op == comm.Avg {
				sum /= float64(g.size)
			}
			for _, t := range ranks {
				storer(t)(i, sum)
			}
		}
	})
}

func (g *fakeGroup) AllGather(s device.Stream, dst, src device.Buffer, dt dtype.DType) *comm.Work {
	return g.enqueue(s, fmt.Sprintf("AllGather(%s, %d)", dt, src.Len()), dst, src, func(m *meeting) {
		for _, dst := range m.bufs {
			at := dst.Bytes()
			for _, src := range m.srcs {
				at = at[copy(at, src.Bytes()):]
			}
		}
	})
}

func (g *fakeGroup) AllToAll(s device.Stream, dst, src device.Buffer, dt dtype.DType) *comm.Work {
	return g.enqueue(s, fmt.Sprintf("AllToAll(%s, %d)", dt, src.Len()), dst, src, func(m *meeting) {
		n := src.Len() / g.size
		for to, dst := range m.bufs {
			for from, src := range m.srcs {
				copy(dst.Bytes()[from*n:(from+1)*n], src.Bytes()[to*n:(to+1)*n])
			}
		}
	})
}

func (g *fakeGroup) Broadcast(s device.Stream, buf device.Buffer, dt dtype.DType, root int) *comm.Work {
	return g.enqueue(s, fmt.Sprintf("Broadcast(%s, %d, root %d)", dt, buf.Len(), root), buf, buf, func(m *meeting) {
		for r, b := range m.bufs {
			if r != root {
				copy(b.Bytes(), m.bufs[root].Bytes())
			}
		}
	})
}

func (g *fakeGroup) enqueue(s device.Stream, call string, dst, src device.Buffer, do func(*meeting)) *comm.Work {
	seq := g.seq
	g.seq++
	g.calls = append(g.calls, call)
	stream := s.(hostStream)
	if onHost := s.Device().Kind() == device.CPU; dst.Len()+src.Len() > 0 && (dst.OnHost() != onHost || src.OnHost() != onHost) {
		stream.Do(call, func() error { return fmt.Errorf("%s: a stream of %s, and memory elsewhere", call, s.Device()) })
		return nil
	}
	dst, src = g.gpu.Host(dst), g.gpu.Host(src)
	stream.Do(call, func() error {
		m, last, err := g.join(seq, call, dst, src)
		if err != nil {
			return err
		}
		if last {
			do(m)
			close(m.done)
			return nil
		}
		select {
		case <-m.done:
			return nil
		case <-g.abort:
			return g.err
		}
	})
	return nil
}

func (g *fakeGroup) join(seq int, call string, dst, src device.Buffer) (m *meeting, last bool, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	select {
	case <-g.abort:
		return nil, false, g.err
	default:
	}
	m = g.meetings[seq]
	if m == nil {
		m = &meeting{call: call, bufs: make([]device.Buffer, g.size), srcs: make([]device.Buffer, g.size), done: make(chan struct{})}
		g.meetings[seq] = m
	}
	if m.call != call {
		err := fmt.Errorf("rank %d called %s, another rank %s", g.rank, call, m.call)
		g.Abort(err)
		return nil, false, errors.Join(err)
	}
	m.bufs[g.rank], m.srcs[g.rank] = dst, src
	m.came++
	if m.came < g.size {
		return m, false, nil
	}
	delete(g.meetings, seq)
	return m, true, nil
}
