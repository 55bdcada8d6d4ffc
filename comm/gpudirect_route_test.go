package comm

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/gorun-dev/gorun/comm/transport"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
)

// travelled is the memory of ranks that carry out a route place by place, each message
// from slot to slot, in so many slots a rank.
type travelled struct {
	routes    []*route
	in, out   [][]device.Buffer
	slots     int
	delivered int
}

func travelOn(t *testing.T, slot, slots int, calls []*call) *travelled {
	t.Helper()
	n := len(calls)
	x := &travelled{slots: slots}
	for r, c := range calls {
		x.routes = append(x.routes, newRoute(c, n, r, slot, slots))
		var in, out []device.Buffer
		for range slots {
			in, out = append(in, device.Host(make([]byte, slot))), append(out, device.Host(make([]byte, slot)))
		}
		x.in, x.out = append(x.in, in), append(x.out, out)
	}
	do := func(r int, list []move) {
		for _, m := range list {
			switch {
			case m.dst.Len() == 0:
			case m.b.Len() == 0:
				copy(m.dst.Bytes(), m.a.Bytes())
			default:
				calls[r].reduce(m.dst.Bytes(), m.a.Bytes(), m.b.Bytes())
				if m.divide {
					calls[r].finish(m.dst.Bytes(), n)
				}
			}
		}
	}
	for r, route := range x.routes {
		if route.messages != x.routes[0].messages || route.window != x.routes[0].window {
			t.Fatalf("rank %d has %d messages, %d at once; rank 0 %d and %d", r, route.messages, route.window, x.routes[0].messages, x.routes[0].window)
		}
		do(r, route.inside())
	}
	for i := range x.routes[0].places() {
		for r, route := range x.routes {
			do(r, route.moves(i, x.in[r][mod(i-route.window, slots)], x.out[r][i%slots]))
		}
		for r, route := range x.routes { // all that was made at place i travels
			to, size := route.send(i)
			if to == none {
				continue
			}
			from, there := x.routes[to].recv(i)
			if from != r || there != size || size > slot {
				t.Fatalf("message %d goes from rank %d to %d with %d bytes, who expects %d of rank %d", i, r, to, size, there, from)
			}
			copy(x.in[to][i%slots].Bytes(), x.out[r][i%slots].Bytes()[:size])
			x.delivered += size
		}
	}
	return x
}

// Every collective over rings of up to 7 ranks, for arrays that fit a message, or take the
// ring many times round; in place or not.
func TestRoutes(t *testing.T) {
	const slot = 64
	for n := 2; n <= 7; n++ {
		for _, most := range []int{1, 2, 8} {
			for _, count := range []int{0, 1, 5, 16, 17, 331} {
				for _, inPlace := range []bool{false, true} {
					t.Run(fmt.Sprintf("%d ranks, %d slots, %d elements, in place %t", n, most, count, inPlace), func(t *testing.T) {
						for _, k := range []transport.Kind{transport.AllReduce, transport.ReduceScatter, transport.AllGather, transport.Broadcast, transport.AllToAll} {
							if k == transport.AllToAll && inPlace {
								continue
							}
							tryRoute(t, k, n, slot, most, count, inPlace)
						}
					})
				}
			}
		}
	}
}

// value is element i of what rank r has.
func value(r, i int) int32 { return int32(i*13 + r*r*1000 + 7) }

func tryRoute(t *testing.T, k transport.Kind, n, slot, most, count int, inPlace bool) {
	t.Helper()
	before := leastMessage
	leastMessage = 16
	defer func() { leastMessage = before }()
	root := (n + 1) / 2
	to, from := partsOf(&call{Call: transport.Call{Header: transport.Header{Kind: k, Root: -1}}}, n, 0)
	if k == transport.Broadcast {
		to, from = 1, 1
	}
	calls := make([]*call, n)
	for r := range calls {
		c := &call{}
		c.Kind, c.DType, c.Op, c.Count, c.Root = k, dtype.I32, Sum, uint64(count), -1
		if k == transport.Broadcast {
			c.Root = int32(root)
		}
		src := make([]int32, from*count)
		for i := range src {
			src[i] = value(r, i)
		}
		c.from, c.to = device.Of(src), device.Of(make([]int32, to*count))
		part := func(b device.Buffer) device.Buffer { return b.Slice(4*r*count, 4*(r+1)*count) }
		switch {
		case k == transport.Broadcast:
			c.to = c.from
		case !inPlace:
		case k == transport.AllReduce:
			c.to = c.from
		case k == transport.ReduceScatter:
			c.to = part(c.from)
		case k == transport.AllGather:
			copy(part(c.to).Bytes(), c.from.Bytes())
			c.from = part(c.to)
		}
		calls[r] = c
	}
	x := travelOn(t, slot, most, calls)
	sum := func(i int) (s int32) {
		for r := range n {
			s += value(r, i)
		}
		return s
	}
	for r, c := range calls {
		got := device.View[int32](c.to)
		for i, v := range got {
			var want int32
			switch k {
			case transport.AllReduce:
				want = sum(i)
			case transport.ReduceScatter:
				want = sum(r*count + i)
			case transport.AllGather:
				want = value(i/count, i%count)
			case transport.Broadcast:
				want = value(root, i)
			case transport.AllToAll:
				want = value(i/count, r*count+i%count)
			}
			if v != want {
				t.Fatalf("%s: rank %d, element %d is %d, want %d", k, r, i, v, want)
			}
		}
	}
	// Each rank sends no more than a ring has to.
	all := 0
	for r, c := range calls {
		sent, _ := ringBytes(c, n, r)
		all += int(sent)
	}
	if k == transport.AllReduce { // ringBytes rounds
		all = 2 * (n - 1) * 4 * count
	}
	if x.delivered != all {
		t.Errorf("%s: %d bytes travelled, want %d", k, x.delivered, all)
	}
}

// One rank makes the sum of each element, so that all have the same bits, also of floats
// whose sum depends on the order.
func TestRoutesSumOnce(t *testing.T) {
	const n, count = 5, 1000
	calls := make([]*call, n)
	for r := range calls {
		c := &call{}
		c.Kind, c.DType, c.Op, c.Count, c.Root = transport.AllReduce, dtype.F32, Avg, count, -1
		x := make([]float32, count)
		for i := range x {
			x[i] = float32(1+i*r) / float32(3+r*r)
		}
		c.from = device.Of(x)
		c.to = c.from
		calls[r] = c
	}
	travelOn(t, 256, 4, calls)
	for r, c := range calls {
		if !bytes.Equal(c.to.Bytes(), calls[0].to.Bytes()) {
			t.Errorf("rank %d has other bits than rank 0", r)
		}
	}
}

// The smallest array takes one message a step, a large one many at once.
func TestRoutesPipeline(t *testing.T) {
	for count, want := range map[int][2]int{1: {1, 2}, 1 << 10: {1, 2}, 1 << 18: {8, 16}, 1 << 24: {8, 64}} {
		c := &call{}
		c.Kind, c.DType, c.Count, c.Root = transport.AllReduce, dtype.F32, uint64(count), -1
		r := newRoute(c, 2, 0, 1<<20, directSlots)
		if r.window != want[0] || r.messages != want[1] {
			t.Errorf("%d elements: %d messages, %d at once, want %d and %d", count, r.messages, r.window, want[1], want[0])
		}
	}
}
