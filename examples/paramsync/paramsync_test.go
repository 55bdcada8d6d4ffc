package main

import (
	"bytes"
	"context"
	"errors"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/gorun-dev/gorun/comm"
	pb "github.com/gorun-dev/gorun/examples/paramsync/paramsyncpb"
	"github.com/gorun-dev/gorun/runtime/param"
)

// serving is a publisher with a network that a test can break.
type serving struct {
	publisher
	addr    string
	limit   atomic.Int64                                  // bytes that a connection may still send; below 0: any number
	garble  func(offset int64, data []byte)               // what happens to a chunk after its checksum was made
	instead func(context.Context, *pb.FetchRequest) error // an answer of its own

	mu    sync.Mutex
	asked []*pb.FetchRequest
}

func serve(t *testing.T) *serving {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &serving{publisher: publisher{job: "test"}, addr: l.Addr().String()}
	s.limit.Store(-1)
	server := grpc.NewServer()
	pb.RegisterWeightsServer(server, s)
	served := make(chan error, 1)
	go func() { served <- server.Serve(breakable{l, s}) }() // ends with Stop
	t.Cleanup(func() {
		server.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return s
}

func (s *serving) Fetch(r *pb.FetchRequest, out pb.Weights_FetchServer) error {
	s.mu.Lock()
	s.asked = append(s.asked, r)
	s.mu.Unlock()
	if s.instead != nil {
		if err := s.instead(out.Context(), r); err != nil {
			return err
		}
	}
	return s.publisher.Fetch(r, garbling{out, s})
}

type garbling struct {
	pb.Weights_FetchServer
	s *serving
}

func (g garbling) Send(c *pb.Chunk) error {
	if g.s.garble != nil {
		c.Data = bytes.Clone(c.Data)
		g.s.garble(c.Offset, c.Data)
	}
	return g.Weights_FetchServer.Send(c)
}

// breakable cuts a connection when it has sent what serving.limit allows.
type breakable struct {
	net.Listener
	s *serving
}

func (b breakable) Accept() (net.Conn, error) {
	c, err := b.Listener.Accept()
	return &limited{c, b.s}, err
}

type limited struct {
	net.Conn
	s *serving
}

func (c *limited) Write(p []byte) (int, error) {
	if c.s.limit.Load() >= 0 && c.s.limit.Add(-int64(len(p))) < 0 {
		c.s.limit.Store(-1) // the next connection holds
		c.Conn.Close()
		return 0, errors.New("cut by the test")
	}
	return c.Conn.Write(p)
}

// large is 3 MB of weights, all of them value.
func large(value float32) []param.Var {
	a, b := make([]float32, 500_000), make([]float32, 250_001)
	for _, s := range [][]float32{a, b} {
		for i := range s {
			s[i] = value
		}
	}
	return []param.Var{param.Slice("a", a, nil), param.Slice("b", b, nil)}
}

func holds(t *testing.T, vars []param.Var, want float32) {
	t.Helper()
	for _, v := range vars {
		if i := slices.IndexFunc(v.Weight.F32(), func(x float32) bool { return x != want }); i >= 0 {
			t.Errorf("%s[%d] is %v, want %v", v.Name, i, v.Weight.F32()[i], want)
		}
	}
}

// A connection that breaks in the middle costs what was on its way: the next one goes
// on behind the last byte that has come.
func TestABrokenConnectionIsTakenUpWhereItBroke(t *testing.T) {
	s := serve(t)
	s.publish(7, large(7))
	s.limit.Store(2 << 20)
	vars := large(0)
	step, err := fetch(t.Context(), s.addr, vars)
	if err != nil || step != 7 {
		t.Fatalf("step %d, %v", step, err)
	}
	holds(t, vars, 7)
	if len(s.asked) < 2 || s.asked[0].Offset != 0 {
		t.Fatalf("the requests were %v, want one from the beginning, and another one", s.asked)
	}
	if at := s.asked[1].Offset; at <= 0 || at > 2<<20 || at%chunkBytes != 0 {
		t.Errorf("the second request is from byte %d on, want a whole number of chunks, of those that were sent", at)
	}
}

// Weights that were replaced while the connection was down are not mixed with newer
// ones: the newest come, from the beginning.
func TestWhoComesBackTooLateGetsTheNewest(t *testing.T) {
	s := serve(t)
	s.publish(1, large(1))
	s.limit.Store(2 << 20)
	s.instead = func(_ context.Context, r *pb.FetchRequest) error {
		if r.Offset == 0 {
			return nil
		}
		for step := 2; step <= 1+retain; step++ { // each asked for by somebody
			s.publish(step, large(float32(step)))
			s.Latest(context.Background(), nil)
		}
		return nil
	}
	vars := large(0)
	step, err := fetch(t.Context(), s.addr, vars)
	if err != nil || step != 1+retain {
		t.Fatalf("step %d, %v", step, err)
	}
	holds(t, vars, 1+retain)
	if last := s.asked[len(s.asked)-1]; last.Offset != 0 {
		t.Errorf("the last request was %v", last)
	}
}

// A chunk that was changed on its way is fetched again, and nothing else is.
func TestAGarbledChunkIsFetchedAgain(t *testing.T) {
	s := serve(t)
	s.publish(1, large(1))
	var once sync.Once
	s.garble = func(offset int64, data []byte) {
		if offset == 4*chunkBytes {
			once.Do(func() { data[1000] ^= 4 })
		}
	}
	vars := large(0)
	if _, err := fetch(t.Context(), s.addr, vars); err != nil {
		t.Fatal(err)
	}
	holds(t, vars, 1)
	if len(s.asked) != 2 || s.asked[1].Offset != 4*chunkBytes {
		t.Errorf("the requests were %v, want a second one from the garbled chunk on", s.asked)
	}
}

// What is wrong and stays so ends the fetch with an error that says it, and leaves the
// program's weights alone.
func TestFetchFailsByName(t *testing.T) {
	for name, c := range map[string]struct {
		vars  []param.Var
		spoil func(s *serving)
		want  string
	}{
		"other variables":   {[]param.Var{param.Slice("a", make([]float32, 750_001), nil)}, nil, "the job's variables are not this program's"},
		"other type":        {[]param.Var{param.Slice("a", make([]float64, 250_000), nil), param.Slice("b", make([]float32, 250_001), nil)}, nil, "are not this program's"},
		"garbled each time": {large(3), func(s *serving) { s.garble = func(_ int64, data []byte) { data[0]++ } }, "arrived with another checksum"},
		"a wrong whole":     {large(3), func(s *serving) { s.snapshots[0].manifest.Sha256[0]++ }, "have SHA-256"},
		"refused": {large(3), func(s *serving) {
			s.instead = func(context.Context, *pb.FetchRequest) error { return status.Error(codes.PermissionDenied, "not you") }
		}, "not you"},
		"cut short": {large(3), func(s *serving) {
			s.snapshots[0].data = s.snapshots[0].data[:chunkBytes]
		}, "the server ended after 262144 of 3000004 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // several attempts, with pauses between them
			s := serve(t)
			s.publish(1, large(1))
			if c.spoil != nil {
				c.spoil(s)
			}
			before := snapshotOf(c.vars)
			_, err := fetch(t.Context(), s.addr, c.vars)
			if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), s.addr) {
				t.Errorf("got %v, want %q and the address", err, c.want)
			}
			if !bytes.Equal(snapshotOf(c.vars), before) {
				t.Error("weights were changed by a fetch that failed")
			}
		})
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := fetch(ctx, "127.0.0.1:1", large(0)); err == nil {
		t.Error("a fetch whose context has ended succeeded")
	}
}

func snapshotOf(vars []param.Var) (all []byte) {
	for _, v := range vars {
		all = append(all, v.Weight.Buf.Bytes()...)
	}
	return all
}

// Who joins a group in the midst of its training gets the weights of one of its steps,
// bit by bit.
func TestALateJoinerGetsTheWeightsOfOneStep(t *testing.T) {
	s := serve(t)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var ranks sync.WaitGroup
	ranks.Go(func() { run(t, ctx, 3, 0, &s.publisher) })
	var steps []int
	var fetched [][]float64
	for range 3 {
		r := newRegression()
		step, err := fetch(t.Context(), s.addr, r.vars())
		if err != nil {
			t.Error(err)
			break
		}
		steps, fetched = append(steps, step), append(fetched, r.w)
	}
	stop()
	ranks.Wait()
	if !slices.IsSorted(steps) {
		t.Errorf("the weights came from steps %v", steps)
	}
	for i, step := range steps {
		if step == 0 {
			if slices.ContainsFunc(fetched[i], func(w float64) bool { return w != 0 }) {
				t.Errorf("before the first step the weights are %v", fetched[i])
			}
			continue
		}
		want := run(t, t.Context(), 3, step, &publisher{})
		if !slices.Equal(fetched[i], want) {
			t.Errorf("behind step %d the joiner has %v, the job had %v", step, fetched[i], want)
		}
	}
}

func TestTrainingLearns(t *testing.T) {
	r := newRegression()
	before := r.loss()
	r.w = run(t, t.Context(), 2, 500, &publisher{})
	if after := r.loss(); !(after < before/1000) {
		t.Errorf("the loss is %v after 500 steps, and was %v", after, before)
	}
}

// run trains on n ranks, and returns rank 0's weights.
func run(t *testing.T, ctx context.Context, n, steps int, p *publisher) []float64 {
	groups, err := comm.Local(n)
	if err != nil {
		t.Error(err)
		return nil
	}
	weights := make([][]float64, n)
	var ranks sync.WaitGroup
	for rank, g := range groups {
		ranks.Go(func() {
			defer g.Close()
			r := newRegression()
			if _, err := train(ctx, g, r, steps, p); err != nil {
				t.Error(err)
			}
			weights[rank] = r.w
		})
	}
	ranks.Wait()
	return weights[0]
}

// Snapshots that nobody has asked for give way to newer ones; others are kept for a while.
func TestSnapshotsAreKeptForWhoAskedForThem(t *testing.T) {
	p := &publisher{job: "test"}
	if _, err := p.Latest(t.Context(), nil); status.Code(err) != codes.Unavailable {
		t.Errorf("without a snapshot the answer is %v", err)
	}
	for step := range 100 {
		p.publish(step, newRegression().vars())
		if step%10 == 0 {
			if m, err := p.Latest(t.Context(), nil); err != nil || m.Step != int64(step) {
				t.Fatalf("%v, %v", m, err)
			}
		}
	}
	var kept []int64
	for _, s := range p.snapshots {
		kept = append(kept, s.manifest.Step)
	}
	if want := []int64{70, 80, 90, 99}; !slices.Equal(kept, want) {
		t.Errorf("the snapshots of steps %v are kept, want %v", kept, want)
	}
	if p.find("another", 90) != nil {
		t.Error("another job's snapshot was found")
	}
}
