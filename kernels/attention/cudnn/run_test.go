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

// last is the record's part after the first n bytes, as executions of g.
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

// A pass over slices touches each sequence and head once, where the whole would.
func TestSlicesCoverTheWhole(t *testing.T) {
	const B, T, H, K, D = 4, 128, 6, 2, 64
	const E, group = (H + 2*K) * D, H / K
	sh := whole(B, T, H, K, D)
	for _, c := range []struct{ sequences, keys int64 }{{4, 2}, {2, 2}, {1, 2}, {1, 1}} {
		t.Run(fmt.Sprint(c), func(t *testing.T) {
			f := openFake(t)
			a, _ := testSDPA(t, f, "")
			part := sh
			part.B, part.K, part.H = c.sequences, c.keys, c.keys*group
			a.SetLimit(part.scratch())
			s, x := &testStream{handle: 99}, tensors(B, T, H, K, D)
			a.differentiate(s, x.dqkv, x.do, x.o, x.lse, x.qkv)
			if s.err != nil {
				t.Fatal(s.err)
			}
			var want []map[string]uintptr
			scalars := a.scalars.Addr()
			for b := uintptr(0); b < B; b += uintptr(c.sequences) {
				for k := uintptr(0); k < K; k += uintptr(c.keys) {
					row, h := b*T, k*group
					want = append(want, map[string]uintptr{
						"(stream)": 99, "(workspace)": scratchAt + uintptr(part.delta()), "delta": scratchAt,
						"q": qkvAt + 2*(row*E+h*D), "k": qkvAt + 2*(row*E+(H+k)*D), "v": qkvAt + 2*(row*E+(H+K+k)*D),
						"dq": dqkvAt + 2*(row*E+h*D), "dk": dqkvAt + 2*(row*E+(H+k)*D), "dv": dqkvAt + 2*(row*E+(H+K+k)*D),
						"o": oAt + 2*(row*H*D+h*D), "do": doAt + 2*(row*H*D+h*D), "stats": lseAt + 4*(b*H+h)*T,
						"ninf": scalars, "one": scalars + 4, "scale": scalars + 8,
					})
				}
			}
			expect(t, executions(t, f.record(), backward(part)), want...)
			if n := f.count("graph"); n != 1 {
				t.Errorf("%d graphs for slices of one size", n)
			}
		})
	}
}

func TestPart(t *testing.T) {
	cases := []struct {
		B, T, H, K, D int
		limit         int64
		b, k          int64 // 0: refused
	}{
		{8, 2048, 28, 4, 128, 4 << 30, 8, 4},
		{8, 2048, 28, 4, 128, DefaultLimit, 4, 4}, // 1008 MiB, as measured
		{8, 2048, 14, 2, 64, DefaultLimit, 8, 2},
		{4, 4096, 28, 4, 128, DefaultLimit, 1, 4},
		{6, 4096, 28, 4, 128, 3 << 30, 3, 4}, // not 4, which does not divide 6
		{1, 8192, 28, 4, 128, DefaultLimit, 1, 1},
		{1, 8192, 28, 4, 128, 2 << 30, 1, 2},
		{7, 2048, 12, 12, 64, 200 << 20, 1, 12},
		{1, 16384, 28, 4, 128, DefaultLimit, 0, 0},
		{1, 2, 1, 1, 64, 1, 0, 0},
	}
	for _, c := range cases {
		sh := whole(c.B, c.T, c.H, c.K, c.D)
		part, ok := sh.part(c.limit)
		if ok != (c.b != 0) || ok && (part.B != c.b || part.K != c.k || part.H != c.k*int64(c.H/c.K)) {
			t.Errorf("%+v: slices of %d sequences and %d heads of keys with %d of queries, %v", c, part.B, part.K, part.H, ok)
		}
		if part.E != sh.E || part.R != sh.R || part.T != sh.T || part.D != sh.D {
			t.Errorf("%+v: a slice of rows %+v", c, part)
		}
	}
}

func TestWorkspaceFollowsTheLimit(t *testing.T) {
	a, _ := testSDPA(t, openFake(t), "")
	// What plans took where this was measured, and the scratch memory of delta.
	const measured, delta = 998244608, 4 * 8 * 14 * 2048
	got := a.Workspace(8, 2048, 14, 2, 64)
	if got < measured+delta || got > measured+delta+slack {
		t.Errorf("%d bytes, measured were %d", got, measured+delta)
	}
	a.SetLimit(got / 2)
	if half := a.Workspace(8, 2048, 14, 2, 64); half > got/2 || half < got/8 {
		t.Errorf("%d bytes with a limit of %d", half, got/2)
	}
}

func TestSupported(t *testing.T) {
	a, _ := testSDPA(t, openFake(t), "")
	for _, c := range []struct {
		B, T, H, K, D int
		says          string // "" where it is supported
	}{
		{1, 2, 1, 1, 64, ""},
		{8, 2048, 14, 2, 64, ""},
		{3, 77, 12, 12, 128, ""},
		{1, 8192, 28, 4, 128, ""},
		{1, 1, 14, 2, 64, "from 2 on"},
		{0, 64, 14, 2, 64, "0 sequences"},
		{1, 64, 14, 0, 64, "of keys"},
		{1, 64, 14, 4, 64, "14 heads"},
		{1, 64, 14, 2, 96, "size 96"},
		{466034, 2, 36, 0, 128, "of keys"},
		{1 << 19, 64, 2, 1, 64, "2^31"},
		{1, 1 << 20, 1, 1, 64, "the limit is 1073741824"},
	} {
		err := a.Supported(c.B, c.T, c.H, c.K, c.D)
		if (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%+v: %v", c, err)
		}
	}
	s, x := &testStream{}, tensors(1, 1, 2, 1, 64)
	a.attend(s, x.o, x.lse, x.qkv)
	if s.err == nil || !strings.Contains(s.err.Error(), "from 2 on") {
		t.Errorf("one position: %v", s.err)
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

func TestNothingIsEnqueuedAfterAnError(t *testing.T) {
	f := openFake(t)
	a, c := testSDPA(t, f, "")
	x := tensors(1, 64, 2, 1, 64)

	failed := &testStream{err: errors.New("a peer is gone")}
	a.both(failed, x)
	if f.record() != "" || failed.err.Error() != "a peer is gone" {
		t.Errorf("on a failed stream: %q, error %v", f.record(), failed.err)
	}

	poor := &testStream{}
	c.fails = true
	a.both(poor, x)
	if poor.err == nil || !strings.Contains(poor.err.Error(), "no memory is left") || f.count("execute") != 0 {
		t.Errorf("without scratch memory: error %v, %d executions", poor.err, f.count("execute"))
	}

	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	late := &testStream{}
	a.both(late, x)
	if late.err == nil || !strings.Contains(late.err.Error(), "closed") {
		t.Errorf("after Close: %v", late.err)
	}
	if err := a.Close(); err != nil || f.live() != 0 {
		t.Errorf("a second Close: %v, %d live", err, f.live())
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

// Whatever call fails, the stream fails with the call's name and the library's
// text, and nothing is left behind.
func TestEveryCallMayFail(t *testing.T) {
	f := openFake(t)
	for _, function := range []string{
		"cudnnSetStream", "cudnnBackendCreateDescriptor", "cudnnBackendSetAttribute", "cudnnBackendGetAttribute",
		"cudnnBackendFinalize", "cudnnBackendExecute", "cudnnBackendDestroyDescriptor",
	} {
		t.Run(function, func(t *testing.T) {
			for n := 1; ; n++ {
				f.controls["fakeReset"].Call()
				a, _ := testSDPA(t, f, "")
				s := &testStream{handle: 99}
				f.fail(function, n)
				a.both(s, tensors(1, 64, 2, 1, 64))
				if f.pending() {
					t.Logf("%d calls", n-1)
					if n == 1 || s.err != nil || f.count("execute") != 2 {
						t.Errorf("without a failure: error %v, %d executions", s.err, f.count("execute"))
					}
					return
				}
				if s.err == nil && f.count("execute") != 2 {
					t.Errorf("call %d: the failure is not told", n)
				}
				if s.err != nil {
					for _, want := range []string{"cuda:7: cuDNN attention", "(version 9.14.0) of 1×64 positions, 2/1 heads of 64", "injected into " + function, "CUDNN_STATUS_BAD_PARAM (2000)"} {
						if !strings.Contains(s.err.Error(), want) {
							t.Errorf("call %d: %v: says nothing of %q", n, s.err, want)
						}
					}
				}
				if err := a.Close(); err != nil {
					t.Errorf("call %d: Close: %v", n, err)
				}
				if live := f.live(); live != 0 {
					t.Errorf("call %d: %d handles and descriptors live after Close; the error was %v", n, live, s.err)
				}
			}
		})
	}
}

func TestOpenAndCloseMayFail(t *testing.T) {
	f := openFake(t)
	f.fail("cudnnCreate", 1)
	c := &testCard{scratch: map[string]device.Buffer{}}
	if _, err := open(f.library, c, cache{}); err == nil || !strings.Contains(err.Error(), "cudnnCreate: CUDNN_STATUS_BAD_PARAM (2000): injected") {
		t.Errorf("Open: %v", err)
	}
	if c.bound != 0 || f.live() != 0 {
		t.Errorf("bound %d times, %d live", c.bound, f.live())
	}
	a, _ := testSDPA(t, f, "")
	f.fail("cudnnDestroy", 1)
	if err := a.Close(); err == nil || !strings.Contains(err.Error(), "cudnnDestroy") {
		t.Errorf("Close: %v", err)
	}
}
