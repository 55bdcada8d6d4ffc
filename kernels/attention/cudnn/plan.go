package cudnn

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// plan is a graph compiled for a device.
type plan struct {
	desc      desc
	workspace int64 // bytes of device memory that it runs in
	args      []argument
	from      string   // its engine, or the cache
	refused   []string // what was passed over before, and why
}

// argument is a tensor that must be given when the plan runs.
type argument struct {
	id   int64
	name string
}

// args is the tensors of g that are not virtual.
func (g *graph) args() []argument {
	var args []argument
	for i, t := range g.tensors {
		if t.role != virtual {
			args = append(args, argument{int64(i + 1), t.name})
		}
	}
	return args
}

// build compiles g, taking the first configuration of the library's heuristics that
// works in at most most bytes: where all were timed it was the fastest. It takes up
// to two seconds, for cuDNN compiles kernels.
func (s *session) build(g *graph, most int64) (p *plan, err error) {
	b := &builder{s: s}
	defer func() {
		if free := b.free(); free != nil {
			if p != nil {
				free = errors.Join(free, s.destroy(p.desc))
			}
			p, err = nil, errors.Join(err, free)
		}
	}()
	described, err := b.graph(g)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", g.name, err)
	}
	var refused []string
	for _, mode := range []int64{heuristicsA, heuristicsFallback} {
		configs, err := b.configs(described, mode)
		if err != nil {
			refused = append(refused, err.Error())
		}
		for _, c := range configs {
			engine, err := b.engine(c)
			if err == nil {
				p, err = s.compile(most, func(d desc) error { return s.set(d, attrPlanConfig, int64(c.addr)) })
			}
			if err != nil {
				refused = append(refused, fmt.Sprintf("engine %d: %v", engine, err))
				continue
			}
			p.from, p.args, p.refused = fmt.Sprintf("engine %d", engine), g.args(), refused
			return p, nil
		}
	}
	if refused == nil {
		refused = []string{"the library offers no engine"}
	}
	return nil, fmt.Errorf("%s: no plan: %s", g.name, strings.Join(refused, "; "))
}

// engine is the number of a configuration's engine. One that says that its results
// differ from run to run is refused. That one says nothing proves nothing: what
// makes the backward pass deterministic is its graph.
func (b *builder) engine(config desc) (int64, error) {
	e, err := b.create(kindEngine)
	if err != nil {
		return -1, err
	}
	if _, err := b.s.get(config, attrConfigEngine, []int64{int64(e.addr)}); err != nil {
		return -1, err
	}
	index := []int64{-1}
	if _, err := b.s.get(e, attrEngineIndex, index); err != nil {
		return -1, err
	}
	notes := make([]int64, 16)
	n, err := b.s.get(e, attrEngineNotes, notes)
	if err != nil {
		return index[0], err
	}
	if slices.Contains(notes[:min(n, len(notes))], noteNondeterministic) {
		return index[0], errors.New("is not deterministic")
	}
	return index[0], nil
}

// restore makes a plan of g from what text returned in this or another process.
func (s *session) restore(g *graph, text []byte, most int64) (*plan, error) {
	p, err := s.compile(most, func(d desc) error {
		s.in = append(s.in[:0], text...)
		return s.write(d, attrPlanJSON, len(text))
	})
	if err != nil {
		return nil, err
	}
	p.from, p.args = "the cache", g.args()
	return p, nil
}

// compile makes a plan from what fill sets.
func (s *session) compile(most int64, fill func(desc) error) (*plan, error) {
	d, err := s.create(kindPlan)
	if err != nil {
		return nil, err
	}
	p := &plan{desc: d}
	err = s.aim(d)
	if err == nil {
		err = fill(d)
	}
	if err == nil {
		err = s.finalize(d)
	}
	if err == nil {
		size := []int64{0}
		_, err = s.get(d, attrPlanWorkspace, size)
		p.workspace = size[0]
	}
	if err == nil && p.workspace > most {
		err = fmt.Errorf("wants a workspace of %d bytes, more than the %d that were foreseen", p.workspace, most)
	}
	if err != nil {
		return nil, errors.Join(err, s.destroy(d))
	}
	return p, nil
}

// text is the plan, compiled kernels and all, in the library's own format.
func (s *session) text(p *plan) ([]byte, error) {
	n, err := s.read(p.desc, attrPlanJSON, 0)
	if err != nil {
		return nil, err
	}
	s.in = make([]byte, n)
	got, err := s.read(p.desc, attrPlanJSON, n)
	return bytes.Clone(bytes.TrimRight(s.in[:min(got, n)], "\x00")), err
}

// execute enqueues the plan on the session's stream. address tells where each
// argument lies: in device memory, or for a scalar in host memory that must stay
// there. The library keeps nothing of the pack, and a finished pack cannot be
// changed, so there is a new one for each call, at about 10 µs.
func (s *session) execute(p *plan, address func(name string) uintptr, workspace uintptr) (err error) {
	pack, err := s.create(kindPack)
	if err != nil {
		return err
	}
	defer func() {
		if free := s.destroy(pack); free != nil {
			err = errors.Join(err, free)
		}
	}()
	ids, addrs := make([]int64, len(p.args)), make([]int64, len(p.args))
	for i, a := range p.args {
		ids[i], addrs[i] = a.id, int64(address(a.name))
	}
	if err := s.set(pack, attrPackIDs, ids...); err != nil {
		return err
	}
	if err := s.set(pack, attrPackPointers, addrs...); err != nil {
		return err
	}
	if err := s.set(pack, attrPackWorkspace, int64(workspace)); err != nil {
		return err
	}
	if err := s.finalize(pack); err != nil {
		return err
	}
	return s.failed(s.lib.execute.Call(s.handle, p.desc.addr, pack.addr), "cudnnBackendExecute")
}
