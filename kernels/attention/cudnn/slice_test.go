package cudnn

import (
	"fmt"
	"strings"
	"testing"
)

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
			a.limit = part.scratch()
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
		{8, 2048, 28, 4, 128, Limit, 4, 4}, // 1008 MiB, as measured
		{8, 2048, 14, 2, 64, Limit, 8, 2},
		{4, 4096, 28, 4, 128, Limit, 1, 4},
		{6, 4096, 28, 4, 128, 3 << 30, 3, 4}, // not 4, which does not divide 6
		{1, 8192, 28, 4, 128, Limit, 1, 1},
		{1, 8192, 28, 4, 128, 2 << 30, 1, 2},
		{1, 8192, 28, 4, 128, 3 << 30, 1, 2}, // not 3, which does not divide 4
		{7, 2048, 12, 12, 64, 200 << 20, 1, 12},
		{1, 16384, 28, 4, 128, Limit, 0, 0},
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

// What plans of cuDNN 9.14, 9.19 and 9.28 take, to the byte.
func TestWorkspaceOfPlans(t *testing.T) {
	for _, c := range []struct {
		sh    shape
		bytes int64
	}{
		{whole(1, 2, 14, 2, 64), 236800},
		{whole(2, 64, 14, 2, 64), 917760},
		{whole(1, 77, 14, 2, 64), 734976},
		{whole(3, 129, 12, 12, 64), 3539200},
		{whole(3, 513, 12, 12, 64), 26542336},
		{whole(2, 1000, 12, 2, 128), 62619904},
		{whole(8, 2048, 14, 2, 64), 998244608},
		{whole(2, 4096, 28, 4, 128), 1996488960},
		{whole(1, 8192, 7, 1, 128), 968884480},
	} {
		if got := c.sh.backwardWorkspace() - slack + 256; got != c.bytes {
			t.Errorf("%+v: %d bytes, taken were %d", c.sh, got, c.bytes)
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
	a.limit = got / 2
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
