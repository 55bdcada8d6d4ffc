package cudnn

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"strings"
	"time"

	"github.com/gorun-dev/gorun/kernels/internal/check"
	"github.com/gorun-dev/gorun/kernels/internal/nv"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

// Forward writes o[B,T,H,D] = softmax(q·kᵀ/sqrt(D))·v, query t seeing the keys 0..t,
// and lse[B,H,T] f32, the natural logarithm of the sum of the exponentials of the
// scaled scores. A row of qkv[B,T,H+2K,D] is H query heads, K key heads and K value
// heads; query head h reads key head h/(H/K). o and qkv are bf16 and begin at
// multiples of 16 bytes. No argument may overlap another.
//
// It enqueues on s and returns; at the first sight of a shape it makes or restores
// a plan, for up to two seconds. An error fails s.
func (a *SDPA) Forward(s device.Stream, o, lse, qkv tensor.Tensor) {
	a.attend(nv.Stream(s), o, lse, qkv)
}

func (a *SDPA) attend(s stream, o, lse, qkv tensor.Tensor) {
	const op = "cuDNN attention"
	sh := dims(op, o, lse, qkv)
	p := operands{shape: sh, qkv: qkv.Buf.Addr(), o: o.Buf.Addr(), stats: lse.Buf.Addr()}
	a.run(s, op, sh, func(l *lane) error { return a.forward(l, p) })
}

// Backward overwrites dqkv, shaped as qkv, from do, shaped as o, and what Forward
// wrote. Reruns give the same bits. Otherwise as Forward.
//
// The calls must not be captured into a CUDA graph: replayed from one, the backward
// pass of cuDNN up to 9.15.0 may read out of bounds where T is no multiple of 128.
func (a *SDPA) Backward(s device.Stream, dqkv, do, o, lse, qkv tensor.Tensor) {
	a.differentiate(nv.Stream(s), dqkv, do, o, lse, qkv)
}

func (a *SDPA) differentiate(s stream, dqkv, do, o, lse, qkv tensor.Tensor) {
	const op = "cuDNN attention backward"
	sh := dims(op, o, lse, qkv)
	check.Like(op, "dqkv", dqkv, "qkv", qkv)
	check.Like(op, "do", do, "o", o)
	aligned(op, dqkv, do)
	p := operands{shape: sh, qkv: qkv.Buf.Addr(), o: o.Buf.Addr(), stats: lse.Buf.Addr(), do: do.Buf.Addr(), dqkv: dqkv.Buf.Addr()}
	a.run(s, op, sh, func(l *lane) error { return a.backward(l, p) })
}

// dims reads the sizes off o and qkv and checks the arguments of both passes.
func dims(op string, o, lse, qkv tensor.Tensor) shape {
	x, y := check.Rank(op, "qkv", qkv, 4), check.Rank(op, "o", o, 4)
	B, T, D, H, K := x[0], x[1], x[3], y[2], (x[2]-y[2])/2
	check.Is(op, "qkv", qkv, dtype.BF16, B, T, H+2*K, D)
	check.Is(op, "o", o, dtype.BF16, B, T, H, D)
	check.Is(op, "lse", lse, dtype.F32, B, H, T)
	aligned(op, o, lse, qkv)
	return whole(B, T, H, K, D)
}

func aligned(op string, ts ...tensor.Tensor) {
	for _, t := range ts {
		if !nv.Aligned(alignment, t) {
			check.Fail(op, "%v begins at %#x, which is no multiple of %d", t, t.Buf.Addr(), alignment)
		}
	}
}

// run calls f with what st needs, and fails st with its error.
func (a *SDPA) run(st stream, op string, sh shape, f func(*lane) error) {
	if st.Err() != nil {
		return // nothing is enqueued on a failed stream
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	err := supported(int(sh.B), int(sh.T), int(sh.H), int(sh.K), int(sh.D), a.limit)
	if err == nil {
		defer a.card.Bind()()
		var l *lane
		if l, err = a.lane(st); err == nil {
			err = f(l)
		}
	}
	if err != nil {
		st.Fail(fmt.Errorf("%s: %s (version %s) of %d×%d positions, %d/%d heads of %d: %w",
			a.card, op, a.Version(), sh.B, sh.T, sh.H, sh.K, sh.D, err))
	}
}

// lane is st's, made at its first call and kept until Close.
func (a *SDPA) lane(st stream) (*lane, error) {
	if a.closed {
		return nil, errors.New("is closed")
	}
	if l, ok := a.lanes[st]; ok {
		return l, nil
	}
	s := a.spare
	if s == nil {
		var err error
		if s, err = newSession(a.lib); err != nil {
			return nil, err
		}
	}
	a.spare = nil
	if err := s.setStream(st.Handle()); err != nil {
		return nil, errors.Join(err, s.close())
	}
	l := &lane{session: s, user: fmt.Sprintf("cuDNN attention, stream %d", len(a.lanes)), plans: map[planKey]*plan{}}
	a.lanes[st] = l
	return l, nil
}

func (a *SDPA) forward(l *lane, p operands) error {
	plan, err := a.plan(l, planKey{false, p.shape})
	if err != nil {
		return err
	}
	workspace, err := a.card.Scratch(l.user, int(plan.workspace))
	if err != nil {
		return err
	}
	a.setScalars(&p)
	return l.execute(plan, p.address, workspace.Addr())
}

// backward runs the slices one after the other, in the same scratch memory.
func (a *SDPA) backward(l *lane, p operands) error {
	part, _ := p.part(a.limit) // run has found it supported
	plan, err := a.plan(l, planKey{true, part})
	if err != nil {
		return err
	}
	scratch, err := a.card.Scratch(l.user, int(part.delta()+plan.workspace))
	if err != nil {
		return err
	}
	a.setScalars(&p)
	p.delta = scratch.Addr()
	for p.sequence = 0; p.sequence < p.B; p.sequence += part.B {
		for p.keysHead = 0; p.keysHead < p.K; p.keysHead += part.K {
			p.queryHead = p.H / p.K * p.keysHead
			if err := l.execute(plan, p.address, scratch.Addr()+uintptr(part.delta())); err != nil {
				return err
			}
		}
	}
	return nil
}

// plan is the lane's plan for key: made before, restored from disk, or made now.
func (a *SDPA) plan(l *lane, key planKey) (*plan, error) {
	if p, ok := l.plans[key]; ok {
		return p, nil
	}
	g, most := forward(key.shape), forwardWorkspace()
	if key.backward {
		g, most = backward(key.shape), key.shape.backwardWorkspace()
	}
	start := time.Now()
	p := a.restored(l, g, most)
	if p == nil {
		var err error
		if p, err = l.build(g, most); err != nil {
			return nil, err
		}
		if p.refused != nil {
			slog.Warn("cudnn: not the engine that is thought fastest", "device", a.card.String(), "graph", g.name, "taken", p.from,
				"refused", strings.Join(p.refused, "; "))
		}
		a.keep(l, g, p)
	}
	l.plans[key] = p
	slog.Debug("cudnn: a plan is ready", "device", a.card.String(), "graph", g.name, "shape", key.shape,
		"from", p.from, "workspace", p.workspace, "took", time.Since(start))
	return p, nil
}

// restored is the plan that the cache holds for g, nil where there is none or it
// does not serve.
func (a *SDPA) restored(l *lane, g *graph, most int64) *plan {
	text, ok := a.cache.find(g)
	if !ok {
		return nil
	}
	p, err := l.restore(g, text, most)
	if err != nil {
		slog.Warn("cudnn: a plan on disk does not serve and is made anew", "device", a.card.String(), "graph", g.name, "error", err)
		return nil
	}
	return p
}

// keep puts a plan into the cache. That it cannot be kept is no error: the next
// process makes it again.
func (a *SDPA) keep(l *lane, g *graph, p *plan) {
	if a.cache.folder == "" {
		return
	}
	text, err := l.text(p)
	if err == nil {
		err = a.cache.keep(g, text)
	}
	if err != nil {
		slog.Warn("cudnn: a plan is not kept on disk", "device", a.card.String(), "graph", g.name, "error", err)
	}
}

// Scalars are read from host memory while a plan is enqueued, by addresses that the
// garbage collector does not see. So they lie in pinned memory, which lives as long
// as the environment: -Inf, 1, and the scale of each head size.
var headSizes = []int64{64, 128}

func (a *SDPA) allocScalars() (err error) {
	if a.scalars, err = a.card.AllocHost(4 * (2 + len(headSizes))); err != nil {
		return err
	}
	f := device.View[float32](a.scalars)
	f[0], f[1] = float32(math.Inf(-1)), 1
	for i, d := range headSizes {
		f[2+i] = float32(1 / math.Sqrt(float64(d)))
	}
	return nil
}

func (a *SDPA) setScalars(p *operands) {
	at := a.scalars.Addr()
	p.ninf, p.one = at, at+4
	for i, d := range headSizes {
		if d == p.D {
			p.scale = at + uintptr(4*(2+i))
		}
	}
}
