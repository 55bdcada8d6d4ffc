package modeltest

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/gorun-dev/gorun/models"
	"github.com/gorun-dev/gorun/runtime/param"
)

// protocol checks the order of what a model calls: the blocks forward and back,
// every trainable parameter ready once and in the reverse of its first use, and
// nothing at all for frozen ones.
func protocol(t *testing.T, vocab int, tied bool, build Build) {
	r := New(t, 2, 5, build)
	params := r.Model.Params()
	b := RandomBatch(9, 2, 5, vocab)
	blocks := []int{}
	for i := range params[len(params)-1].Block + 1 {
		blocks = append(blocks, i)
	}

	events := func() (forward, backward []string) {
		r.Sink.BeginStep()
		r.Sink.Events = nil
		r.Forward(b, true)
		n := len(r.Sink.Events)
		r.Model.Backward(r.Weights, r.Sink, 1)
		r.Wait()
		r.Weights.Closed()
		r.Sink.AllReady()
		return r.Sink.Events[:n], r.Sink.Events[n:]
	}
	forward, backward := events()
	equal(t, "blocks in forward", forward, brackets(blocks))
	if tied { // the head is computed in the backward pass
		blocks = append(blocks, 0)
	}
	slices.Reverse(blocks)
	equal(t, "blocks in backward", only(backward, "use", "done"), brackets(blocks))

	var want []string
	for _, p := range slices.Backward(params) {
		want = append(want, "ready "+p.Name)
	}
	equal(t, "ready", only(backward, "ready"), want)
	first := slices.IndexFunc(backward, func(e string) bool { return strings.HasPrefix(e, "ready ") })
	if 8*first > len(backward) {
		t.Errorf("the first parameter is ready after %d of %d calls", first, len(backward))
	}

	frozen(t, r, b, func() []string { _, backward := events(); return backward })
}

// frozen checks that where parameters are frozen the others' gradients are what
// they were, and that backward goes no deeper than it must.
func frozen(t *testing.T, r *Rig, b models.Batch, backward func() []string) {
	params := r.Model.Params()
	all := r.Gradients(1, b)
	deepest := params[len(params)-1].Block
	for _, c := range []struct {
		how    string
		frozen func(i int, p *param.Param) bool
	}{
		{"the embedding frozen", func(_ int, p *param.Param) bool { return p.Block == 0 }},
		{"all but the last block frozen", func(_ int, p *param.Param) bool { return p.Block < deepest }},
		{"matrices frozen", func(_ int, p *param.Param) bool { return len(p.Shape) > 1 }},
		{"norms and biases frozen", func(_ int, p *param.Param) bool { return len(p.Shape) == 1 }},
		{"odd ones frozen", func(i int, _ *param.Param) bool { return i%2 == 1 }},
		{"even ones frozen", func(i int, _ *param.Param) bool { return i%2 == 0 }},
		{"biases frozen", func(_ int, p *param.Param) bool { return strings.HasSuffix(p.Name, ".bias") }},
		{"all frozen", func(int, *param.Param) bool { return true }},
	} {
		for i, p := range params {
			p.Frozen = c.frozen(i, p)
		}
		lowest := deepest + 1
		for _, p := range params {
			if !p.Frozen {
				lowest = min(lowest, p.Block)
			}
		}
		for i, e := range backward() {
			var block int
			if n, _ := fmt.Sscanf(e, "use %d", &block); n == 1 && block < lowest && i > 0 {
				t.Errorf("%s: backward uses block %d, where nothing is to be trained", c.how, block)
			}
		}
		for name, g := range r.Gradients(1, b) {
			if !slices.Equal(g, all[name]) {
				t.Errorf("%s: the gradient of %s changed", c.how, name)
			}
		}
	}
}

func brackets(blocks []int) (events []string) {
	for _, b := range blocks {
		events = append(events, fmt.Sprintf("use %d", b), fmt.Sprintf("done %d", b))
	}
	return events
}

// only is the events of the given verbs.
func only(events []string, verbs ...string) (out []string) {
	for _, e := range events {
		verb, _, _ := strings.Cut(e, " ")
		if slices.Contains(verbs, verb) {
			out = append(out, e)
		}
	}
	return out
}

func equal(t *testing.T, what string, got, want []string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s:\n got %q\nwant %q", what, got, want)
	}
}

// kept checks that Backward panics without activations of its own Forward.
func kept(t *testing.T, vocab int, build Build) {
	r := New(t, 1, 4, build)
	b := RandomBatch(13, 1, 4, vocab)
	backward := func() (panicked bool) {
		defer func() { panicked = recover() != nil }()
		r.Sink.BeginStep()
		r.Model.Backward(r.Weights, r.Sink, 1)
		r.Wait()
		return false
	}
	r.Forward(b, true)
	if backward() {
		t.Error("Backward panicked after Forward")
	}
	for what, before := range map[string]func(){
		"a second time":      func() {},
		"after evaluation":   func() { r.Forward(b, true); r.Forward(b, false) },
		"after reading text": func() { r.Forward(b, true); r.Reset(2); r.Logits([]int32{1}) },
	} {
		before()
		if !backward() {
			t.Errorf("Backward ran %s", what)
		}
	}
}
