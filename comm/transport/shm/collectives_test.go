package shm

import (
	"fmt"
	"testing"

	"github.com/gorun-dev/gorun/comm/transport"
	"github.com/gorun-dev/gorun/runtime/dtype"
)

// collectiveMatrix runs the collectives that move or reduce parts, on private
// buffers at odd addresses and in the arena, in place where that is allowed.
func collectiveMatrix(t *Team, counts []int) error {
	most := counts[len(counts)-1] * 8 * t.ranks
	arena, err := t.Alloc(2 * (most + 64))
	if err != nil {
		return err
	}
	seq := 0
	for _, dt := range []dtype.DType{dtype.F32, dtype.BF16, dtype.I64, dtype.U8} {
		for _, n := range counts {
			part, guardPart := odd(n * dt.Size())
			whole, guardWhole := odd(n * dt.Size() * t.ranks)
			for _, b := range []struct {
				name        string
				part, whole []byte
			}{
				{"private", part, whole},
				{"in place", whole[t.rank*len(part):][:len(part)], whole},
				{"arena", part, arena[8:][:len(whole)]},
				{"arena in place", arena[8+t.rank*len(part):][:len(part)], arena[8:][:len(whole)]},
			} {
				what := fmt.Sprintf("%d %v, %s", n, dt, b.name)
				m := moves{t, dt, n, b.part, b.whole, &seq}
				if err := m.all(); err != nil {
					return fmt.Errorf("%s: %w", what, err)
				}
			}
			if err := guardPart(); err != nil {
				return err
			}
			if err := guardWhole(); err != nil {
				return err
			}
		}
	}
	return nil
}

// moves are collectives between part, n elements, and whole, a part for each rank.
type moves struct {
	*Team
	dt          dtype.DType
	n           int
	part, whole []byte
	seq         *int
}

func (m moves) call(kind transport.Kind, root int) transport.Call {
	*m.seq++
	c := call(kind, transport.Sum, m.dt, *m.seq)
	c.Count, c.Root = uint64(m.n), int32(root)
	return c
}

func (m moves) all() error {
	ranks := m.ranks
	// of is what rank has before a call, and others have of rank afterwards.
	of := func(rank int) func(i int) float64 {
		return func(i int) float64 { return float64(value(transport.Sum, rank, i)) }
	}
	// parts says of each part what rank finds or puts there.
	parts := func(each func(rank int, part []byte) error) error {
		for r := range ranks {
			if err := each(r, m.whole[r*len(m.part):][:len(m.part)]); err != nil {
				return err
			}
		}
		return nil
	}
	ofRank := func(what string) func(rank int, part []byte) error {
		return func(rank int, part []byte) error {
			return expect(fmt.Sprintf("%s: part of rank %d", what, rank), m.dt, part, of(rank))
		}
	}

	fill(m.dt, m.part, of(m.rank))
	if err := m.AllGather(m.call(transport.AllGather, -1), m.whole, m.part); err != nil {
		return err
	}
	if err := parts(ofRank("all-gather")); err != nil {
		return err
	}

	fill(m.dt, m.whole, of(m.rank))
	if err := m.ReduceScatter(m.call(transport.ReduceScatter, -1), m.part, m.whole); err != nil {
		return err
	}
	sum := func(i int) float64 { return result(transport.Sum, ranks, i) }
	if err := expect("reduce-scatter", m.dt, m.part, func(i int) float64 { return sum(m.rank*m.n + i) }); err != nil {
		return err
	}

	for _, root := range []int{0, ranks - 1} {
		fill(m.dt, m.part, of(m.rank))
		if err := m.Broadcast(m.call(transport.Broadcast, root), m.part, root); err != nil {
			return err
		}
		if err := expect("broadcast", m.dt, m.part, of(root)); err != nil {
			return err
		}

		fill(m.dt, m.part, of(m.rank))
		dst := m.part
		if m.rank != root {
			dst = nil // it counts on root alone
		}
		if err := m.Reduce(m.call(transport.Reduce, root), dst, m.part, root); err != nil {
			return err
		}
		want := sum
		if m.rank != root {
			want = of(m.rank) // the source stays as it was
		}
		if err := expect("reduce", m.dt, m.part, want); err != nil {
			return err
		}

		clear(m.whole)
		fill(m.dt, m.part, of(m.rank))
		if err := m.Gather(m.call(transport.Gather, root), m.whole, m.part, root); err != nil {
			return err
		}
		if m.rank == root {
			if err := parts(ofRank("gather")); err != nil {
				return err
			}
		}

		clear(m.part)
		if m.rank == root {
			if err := parts(func(rank int, part []byte) error {
				fill(m.dt, part, of(rank))
				return nil
			}); err != nil {
				return err
			}
		}
		if err := m.Scatter(m.call(transport.Scatter, root), m.part, m.whole, root); err != nil {
			return err
		}
		if err := expect("scatter", m.dt, m.part, of(m.rank)); err != nil {
			return err
		}
	}
	return m.Barrier(m.call(transport.Barrier, -1))
}

func TestCollectivesAreClosedForm(t *testing.T) {
	for _, size := range sizes {
		t.Run(fmt.Sprintf("%d ranks", size), func(t *testing.T) {
			teamOf(t, size, func(t *Team) error { return collectiveMatrix(t, []int{0, 1, 1001, 70003}) })
		})
	}
}

// allToAll sends sizes(from, to) elements between each pair; element i of a message
// tells where it comes from, where it goes, and where it stands.
func allToAll(t *Team, dt dtype.DType, seq int, sizes func(from, to int) int) error {
	element := func(from, to, i int) float64 { return float64((from*5 + to*3 + i) % period) }
	var send, recv []int
	out, in := 0, 0
	for r := range t.ranks {
		send, recv = append(send, sizes(t.rank, r)), append(recv, sizes(r, t.rank))
		out, in = out+send[r], in+recv[r]
	}
	src, _ := odd(out * dt.Size())
	dst, guard := odd(in * dt.Size())
	at := 0
	for r, n := range send {
		for i := range n {
			put(dt, src, at+i, element(t.rank, r, i))
		}
		at += n
	}
	if err := t.AllToAllV(call(transport.AllToAll, transport.Sum, dt, seq), dst, src, send, recv); err != nil {
		return err
	}
	at = 0
	for r, n := range recv {
		if err := expect(fmt.Sprintf("from rank %d", r), dt, dst[at*dt.Size():][:n*dt.Size()], func(i int) float64 { return element(r, t.rank, i) }); err != nil {
			return err
		}
		at += n
	}
	return guard()
}

func TestAllToAllDeliversEveryPart(t *testing.T) {
	shapes := []func(from, to int) int{
		func(from, to int) int { return 0 },
		func(from, to int) int { return 1000 },
		func(from, to int) int { return (from*5+to*3)%4*777 + from },
		func(from, to int) int { return max(0, 90001*(1-from)) }, // only rank 0 sends, many letters
		func(from, to int) int { return max(0, 90001*(1-to)) },   // only rank 0 receives
	}
	for _, size := range sizes {
		teamOf(t, size, func(t *Team) error {
			for i, shape := range shapes {
				for _, dt := range []dtype.DType{dtype.F32, dtype.U8} {
					if err := allToAll(t, dt, i, shape); err != nil {
						return fmt.Errorf("%d ranks, shape %d, %v: %w", t.ranks, i, dt, err)
					}
				}
			}
			return nil
		})
	}
}

// A ring of messages in both directions at once: each rank sends and receives on
// goroutines of their own, while it makes collectives.
func TestSendAndReceiveBesideCollectives(t *testing.T) {
	const rounds = 20
	teamOf(t, 4, func(team *Team) error {
		up, down := (team.rank+1)%team.ranks, (team.rank+3)%team.ranks
		lengths := []int{0, 1, 500, 200000}
		message := func(kind transport.Kind, round, n int) transport.Call {
			c := call(kind, transport.Sum, dtype.U8, 1000*team.rank+round) // sequence numbers of its own
			c.Count = uint64(n)
			return c
		}
		errs := make(chan error, 2)
		go func() {
			for i := range rounds {
				buf := make([]byte, lengths[i%len(lengths)])
				for k := range buf {
					buf[k] = byte(team.rank + i + k)
				}
				if err := team.Send(message(transport.Send, i, len(buf)), up, buf); err != nil {
					errs <- err
					return
				}
			}
			errs <- nil
		}()
		go func() {
			for i := range rounds {
				buf := make([]byte, lengths[i%len(lengths)])
				if err := team.Recv(message(transport.Recv, i, len(buf)), down, buf); err != nil {
					errs <- err
					return
				}
				for k, b := range buf {
					if b != byte(down+i+k) {
						errs <- fmt.Errorf("message %d: byte %d is %d, want %d", i, k, b, byte(down+i+k))
						return
					}
				}
			}
			errs <- nil
		}()
		buf := make([]byte, 40000)
		for i := range rounds {
			fillValues(dtype.F32, transport.Max, buf, team.rank)
			c := call(transport.AllReduce, transport.Max, dtype.F32, i)
			c.Count = 10000
			if err := team.AllReduce(c, buf); err != nil {
				return err
			}
			if err := expect("max", dtype.F32, buf, func(i int) float64 { return result(transport.Max, 4, i) }); err != nil {
				return err
			}
		}
		if err := <-errs; err != nil {
			return err
		}
		return <-errs
	})
}

func TestArgumentsAreChecked(t *testing.T) {
	teamOf(t, 2, func(team *Team) error {
		c := call(transport.AllReduce, transport.Sum, dtype.F32, 0)
		c.Count = 4
		wrong := c
		wrong.Op = transport.Prod + 1
		untyped := c
		untyped.DType = dtype.Invalid
		b := make([]byte, 16)
		for name, f := range map[string]func() error{
			"length":         func() error { return team.AllReduce(c, b[:12]) },
			"operation":      func() error { return team.AllReduce(wrong, b) },
			"type":           func() error { return team.AllReduce(untyped, b) },
			"source":         func() error { return team.ReduceScatter(c, b, b) },
			"destination":    func() error { return team.AllGather(c, b, b) },
			"root":           func() error { return team.Broadcast(c, b, 2) },
			"self":           func() error { return team.Send(c, team.rank, b) },
			"counts":         func() error { return team.AllToAllV(c, b, b, []int{4}, []int{4}) },
			"self counts":    func() error { return team.AllToAllV(c, b, b, []int{2, 2}, []int{3, 1}) },
			"negative alloc": func() error { _, err := team.Alloc(-1); return err },
		} {
			if err := f(); err == nil {
				return fmt.Errorf("%s: a wrong argument was accepted", name)
			}
		}
		return nil // and the barrier at the end shows that the team still works
	})
}
