package attention

import (
	"errors"
	"strings"
	"testing"

	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

// fake is a library that computes nothing.
type fake struct {
	unsupported error
	closed      int
}

func (f *fake) Supported(B, T, H, K, D int) error                     { return f.unsupported }
func (f *fake) Workspace(B, T, H, K, D int) int64                     { return 1000 }
func (f *fake) Forward(_ device.Stream, _, _, _ tensor.Tensor)        {}
func (f *fake) Backward(_ device.Stream, _, _, _, _, _ tensor.Tensor) {}
func (f *fake) Version() string                                       { return "9.99.9" }
func (f *fake) Close() error                                          { f.closed++; return nil }

func TestChoice(t *testing.T) {
	long, short := shape{B: 1, T: 4096, H: 12, K: 2, D: 128}, shape{B: 8, T: 2048, H: 12, K: 2, D: 128}
	small, odd := shape{B: 1, T: 4096, H: 14, K: 2, D: 64}, shape{B: 1, T: 64, H: 2, K: 2, D: 12}
	many := shape{B: 4, T: 4096, H: 12, K: 2, D: 128} // 1.5 GiB of scratch memory
	missing, bad, refused := errors.New("no library"), errors.New("o differs"), errors.New("too many heads")
	for _, x := range []struct {
		by                    string
		major                 int
		s                     shape
		docs                  bool
		find, test, supported error
		forward, backward     bool   // by cuDNN
		why                   string // of a plan, or of its error
		fails                 bool
		opened, tested        int
	}{
		{by: "native", major: 9, s: long, why: "asked for"},
		{by: "native", major: 9, s: odd, why: "multiple of 8", fails: true},
		{by: "auto", major: 9, s: odd, why: "multiple of 8", fails: true},
		{by: "auto", major: 9, s: short, why: "at most 2 %"},
		{by: "auto", major: 9, s: small, why: "heads of 64"},
		{by: "auto", major: 8, s: long, why: "capability 8.0"},
		{by: "auto", major: 9, s: many, why: "1536 MiB"},
		{by: "auto", major: 9, s: long, backward: true, why: "7 to 14 %", opened: 1, tested: 1},
		{by: "auto", major: 9, s: long, docs: true, why: "documents"},
		{by: "auto", major: 9, s: long, find: missing, why: "no library", opened: 1},
		{by: "auto", major: 9, s: long, test: bad, why: "9.99.9 fails the self-test: o differs", opened: 1, tested: 1},
		{by: "auto", major: 9, s: long, supported: refused, why: "too many heads", opened: 1},
		{by: "cudnn", major: 9, s: short, forward: true, backward: true, why: "asked for", opened: 1, tested: 1},
		{by: "cudnn", major: 9, s: short, docs: true, why: "documents", fails: true},
		{by: "cudnn", major: 9, s: short, find: missing, why: "no library", fails: true, opened: 1},
		{by: "cudnn", major: 9, s: short, test: bad, why: "self-test", fails: true, opened: 1, tested: 1},
		{by: "cudnn", major: 9, s: short, supported: refused, why: "too many heads", fails: true, opened: 1},
	} {
		opened, tested := 0, 0
		lib := &fake{unsupported: x.supported}
		c := &choice{by: x.by, major: x.major,
			find: func() (fused, error) {
				opened++
				if x.find != nil {
					return nil, x.find
				}
				return lib, nil
			},
			test: func(f fused, headDim int) error {
				tested++
				if headDim != x.s.D {
					t.Errorf("self-test for heads of %d", headDim)
				}
				return x.test
			},
		}
		for range 2 { // the second plan opens and tests nothing
			p, err := c.plan(x.s, x.docs)
			why := p.why
			if err != nil {
				why = err.Error()
			}
			if (err != nil) != x.fails || !strings.Contains(why, x.why) {
				t.Errorf("%+v: plan %+v, error %v", x, p, err)
			}
			if (p.forward != nil) != x.forward || (p.backward != nil) != x.backward {
				t.Errorf("%+v: plan %+v", x, p)
			}
		}
		if opened != x.opened || tested != x.tested {
			t.Errorf("%+v: opened %d times, tested %d times", x, opened, tested)
		}
		want := 0
		if x.opened > 0 && x.find == nil {
			want = 1
		}
		if err := errors.Join(c.close(), c.close()); err != nil || lib.closed != want {
			t.Errorf("%+v: closed %d times, want %d: %v", x, lib.closed, want, err)
		}
	}
}

func TestWorkspaceAndExplain(t *testing.T) {
	lib := &fake{}
	for _, x := range []struct {
		by              string
		forward, both   int64
		explained, with string
	}{
		{"native", 0, 4 * 1 * 12 * 4096, "attention: native (mma.sync): asked for", ""},
		{"auto", 1000, 1000, "attention: forward native (mma.sync), backward cuDNN 9.99.9: ", "faster"},
		{"cudnn", 1000, 1000, "attention: cuDNN 9.99.9: asked for", ""},
	} {
		c := CUDA{native: &native{}, choice: &choice{by: x.by, major: 9,
			find: func() (fused, error) { return lib, nil }, test: func(fused, int) error { return nil }}}
		text := c.Explain(1, 4096, 12, 2, 128)
		if !strings.HasPrefix(text, x.explained) || !strings.Contains(text, x.with) {
			t.Errorf("%s: %q", x.by, text)
		}
		name, err := c.Implementation(1, 4096, 12, 2, 128)
		if want := strings.TrimPrefix(x.explained, "attention: "); err != nil || !strings.HasPrefix(want, name+": ") {
			t.Errorf("%s: %q (%v), explained as %q", x.by, name, err, want)
		}
		if _, err := c.Implementation(1, 4096, 12, 2, 12); x.by != "cudnn" && err == nil {
			t.Errorf("%s: heads of 12 have an implementation", x.by)
		}
		if x.by == "auto" {
			x.forward = 0 // the forward pass is native, without scratch memory
		}
		for _, backward := range []bool{false, true} {
			want := x.forward
			if backward {
				want = x.both
			}
			if n, err := c.Workspace(1, 4096, 12, 2, 128, false, backward); err != nil || n != want {
				t.Errorf("%s, backward %v: %d bytes of scratch memory, want %d: %v", x.by, backward, n, want, err)
			}
		}
	}
}

// What a wrong library would return is found out, each part of it.
func TestSelfTestSeesWhatIsWrong(t *testing.T) {
	for _, headDim := range []int{64, 128} {
		for _, x := range probes(headDim) {
			in := x.random()
			copyOf := func(a []uint16) []uint16 { return append([]uint16(nil), a...) }
			truth := func() hostOutputs {
				return hostOutputs{copyOf(in[1]), make([]float32, x.B*x.H*x.T), copyOf(in[0])}
			}
			if err := x.compare(truth(), truth()); err != nil {
				t.Errorf("%+v: equal outputs: %v", x, err)
			}
			nan := dtype.BF16From(float32(nanValue()))
			row := x.heads() * x.D
			for what, spoil := range map[string]func(o *hostOutputs){
				"o ":     func(o *hostOutputs) { o.o[len(o.o)-1] = nan },
				"lse[7]": func(o *hostOutputs) { o.lse[7] = 0.01 },
				"dq":     func(o *hostOutputs) { o.dqkv[0] = nan },
				"dk":     func(o *hostOutputs) { o.dqkv[row+x.H*x.D] = nan },
				"dv": func(o *hostOutputs) { // one position of one sequence is not written
					for h := x.H + x.K; h < x.heads(); h++ {
						clear(o.dqkv[len(o.dqkv)-row+h*x.D:][:x.D])
					}
				},
			} {
				got := truth()
				spoil(&got)
				if err := x.compare(truth(), got); err == nil || !strings.HasPrefix(err.Error(), what) {
					t.Errorf("%+v: %s is wrong, and the verdict is %v", x, what, err)
				}
			}
		}
	}
}
