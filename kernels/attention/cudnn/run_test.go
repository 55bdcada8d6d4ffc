package cudnn

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/gorun-dev/gorun/runtime/device"
)

// executions reads the record: of each call of a plan of g the stream, the
// workspace, and the address of each tensor by name.
func executions(t *testing.T, record string, g *graph) []map[string]uintptr {
	t.Helper()
	var all []map[string]uintptr
	for line := range strings.Lines(record) {
		var stream, workspace uintptr
		if n, _ := fmt.Sscanf(line, "execute stream %d workspace %d:", &stream, &workspace); n != 2 {
			continue
		}
		e := map[string]uintptr{"(stream)": stream, "(workspace)": workspace}
		_, pairs, _ := strings.Cut(line, ": ")
		for _, pair := range strings.Fields(pairs) {
			var id int
			var addr uintptr
			if _, err := fmt.Sscanf(pair, "%d=%d", &id, &addr); err != nil {
				t.Fatalf("%q: %v", pair, err)
			}
			if id > len(g.tensors) {
				return nil // a plan of the other graph
			}
			e[g.tensors[id-1].name] = addr
		}
		all = append(all, e)
	}
	return all
}

// expect compares executions, operand by operand.
func expect(t *testing.T, got []map[string]uintptr, want ...map[string]uintptr) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%d executions, want %d: %v", len(got), len(want), got)
	}
	for i := range want {
		for name, addr := range want[i] {
			if got[i][name] != addr {
				t.Errorf("execution %d: %s at %d, want %d", i, name, got[i][name], addr)
			}
		}
		if len(got[i]) != len(want[i]) {
			t.Errorf("execution %d: %d operands %v, want %d", i, len(got[i]), got[i], len(want[i]))
		}
	}
}

func TestOperandsLieWhereTheyBelong(t *testing.T) {
	const B, T, H, K, D = 2, 128, 14, 2, 64
	f := openFake(t)
	a, c := testSDPA(t, f, "")
	s, x := &testStream{handle: 99}, tensors(B, T, H, K, D)
	a.attend(s, x.o, x.lse, x.qkv)
	if s.err != nil {
		t.Fatal(s.err)
	}
	scalars := a.scalars.Addr()
	forwardWants := map[string]uintptr{
		"(stream)": 99, "(workspace)": scratchAt,
		"q": qkvAt, "k": qkvAt + 2*H*D, "v": qkvAt + 2*(H+K)*D, "o": oAt, "stats": lseAt,
		"ninf": scalars, "scale": scalars + 8,
	}
	expect(t, executions(t, f.record(), forward(whole(B, T, H, K, D))), forwardWants)

	seen := len(f.record())
	a.differentiate(s, x.dqkv, x.do, x.o, x.lse, x.qkv)
	if s.err != nil {
		t.Fatal(s.err)
	}
	expect(t, executions(t, f.record()[seen:], backward(whole(B, T, H, K, D))), map[string]uintptr{
		"(stream)": 99, "(workspace)": scratchAt + 4*B*H*T,
		"q": qkvAt, "k": qkvAt + 2*H*D, "v": qkvAt + 2*(H+K)*D, "o": oAt, "stats": lseAt,
		"dq": dqkvAt, "dk": dqkvAt + 2*H*D, "dv": dqkvAt + 2*(H+K)*D, "do": doAt,
		"ninf": scalars, "one": scalars + 4, "scale": scalars + 8, "delta": scratchAt,
	})

	values := device.View[float32](a.scalars)
	if !math.IsInf(float64(values[0]), -1) || values[1] != 1 || values[2] != 0.125 || values[3] != float32(1/math.Sqrt(128)) {
		t.Errorf("the scalars are %v", values)
	}
	if n := c.scratch["cuDNN attention, stream 0"].Len(); int64(n) > a.Workspace(B, T, H, K, D) {
		t.Errorf("%d bytes of scratch memory, foreseen were %d", n, a.Workspace(B, T, H, K, D))
	}
	if err := a.Close(); err != nil {
		t.Error(err)
	}
	if n := f.live(); n != 0 {
		t.Errorf("%d handles and descriptors live after Close", n)
	}
}

func TestScaleBelongsToTheHeadSize(t *testing.T) {
	f := openFake(t)
	a, _ := testSDPA(t, f, "")
	s, x := &testStream{handle: 99}, tensors(1, 64, 2, 1, 128)
	a.attend(s, x.o, x.lse, x.qkv)
	got := executions(t, f.record(), forward(whole(1, 64, 2, 1, 128)))
	if s.err != nil || len(got) != 1 || got[0]["scale"] != a.scalars.Addr()+12 {
		t.Errorf("%v, error %v; the scale of 128 lies at %d", got, s.err, a.scalars.Addr()+12)
	}
}

func TestPlansAreMadeOnce(t *testing.T) {
	f := openFake(t)
	a, _ := testSDPA(t, f, "")
	s := &testStream{handle: 99}
	for range 3 {
		for _, T := range []int{64, 128} {
			a.both(s, tensors(2, T, 4, 2, 64))
		}
	}
	if s.err != nil {
		t.Fatal(s.err)
	}
	if graphs, runs := f.count("graph"), f.count("execute"); graphs != 4 || runs != 12 {
		t.Errorf("%d graphs and %d executions, want 4 and 12", graphs, runs)
	}
	if n := f.live(); n != 1+4 {
		t.Errorf("%d handles and descriptors live, want a handle and 4 plans", n)
	}
}

func TestStreamsShareNothing(t *testing.T) {
	f := openFake(t)
	a, c := testSDPA(t, f, "")
	one, two, x := &testStream{handle: 1}, &testStream{handle: 2}, tensors(1, 64, 2, 1, 64)
	for range 2 {
		a.attend(one, x.o, x.lse, x.qkv)
		a.attend(two, x.o, x.lse, x.qkv)
	}
	if err := errors.Join(one.err, two.err); err != nil {
		t.Fatal(err)
	}
	var order []uintptr
	for _, e := range executions(t, f.record(), forward(whole(1, 64, 2, 1, 64))) {
		order = append(order, e["(stream)"], e["(workspace)"])
	}
	if want := []uintptr{1, scratchAt, 2, 2 * scratchAt, 1, scratchAt, 2, 2 * scratchAt}; !slices.Equal(order, want) {
		t.Errorf("streams and scratch memory %v, want %v", order, want)
	}
	if len(c.scratch) != 2 || f.live() != 2+2 {
		t.Errorf("%d scratch memories, %d handles and plans", len(c.scratch), f.live())
	}
	if err := a.Close(); err != nil || f.live() != 0 {
		t.Errorf("Close: %v, %d handles and descriptors live", err, f.live())
	}
}

func TestWrongTensorsPanic(t *testing.T) {
	a, _ := testSDPA(t, openFake(t), "")
	good := tensors(2, 64, 4, 2, 64)
	for name, spoil := range map[string]func(*call){
		"lse":       func(c *call) { c.lse = c.lse.Reshape(2, 64, 4) },
		"o":         func(c *call) { c.o = at(oAt, c.o.DType, 2, 64, 3, 64) },
		"do":        func(c *call) { c.do = at(doAt, c.lse.DType, 2, 64, 4, 64) },
		"dqkv":      func(c *call) { c.dqkv = c.do },
		"alignment": func(c *call) { c.qkv = at(qkvAt+8, c.qkv.DType, 2, 64, 8, 64) },
	} {
		x := good
		spoil(&x)
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("a wrong %s is taken", name)
				}
			}()
			a.both(&testStream{}, x)
		}()
	}
}
