package store

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"math"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/gorun-dev/gorun/comm/store/storepb"
)

const (
	// closeGrace is how long Close lets running calls finish before it cuts them.
	closeGrace = time.Second
	// handshakeTimeout ends connections that never speak the protocol.
	handshakeTimeout = 5 * time.Second
	// clientSilence bounds how long the watches of a vanished host are kept: it is
	// probed after this long, and dropped when it stays silent as long again.
	clientSilence = 10 * time.Second
)

// ServerOptions configure Serve.
type ServerOptions struct {
	// Token is what every caller must present; any bytes, compared in constant time.
	Token string

	grace, handshake time.Duration // closeGrace and handshakeTimeout, but for tests
}

// Server is a running store. Its state lives in memory and ends with it.
type Server struct {
	id      []byte // tells this server from another one at the same address
	grpc    *grpc.Server
	conns   *trackedListener
	table   *table
	grace   time.Duration
	closing chan struct{} // closed by Close: blocked calls return at once
	once    sync.Once
	done    chan struct{} // closed by routineServe
	err     error         // why serving ended; read after done
}

// Serve answers on l until Close, and takes l over.
func Serve(l net.Listener, o ServerOptions) *Server {
	o.grace, o.handshake = cmp.Or(o.grace, closeGrace), cmp.Or(o.handshake, handshakeTimeout)
	s := &Server{
		id:      []byte(rand.Text()),
		conns:   &trackedListener{Listener: l, open: map[*trackedConn]struct{}{}},
		table:   &table{jobs: map[string]*job{}},
		grace:   o.grace,
		closing: make(chan struct{}),
		done:    make(chan struct{}),
	}
	gate := tokenGate(sha256.Sum256([]byte(o.Token)))
	s.grpc = grpc.NewServer(
		grpc.UnaryInterceptor(gate.unary),
		grpc.StreamInterceptor(gate.stream),
		grpc.MaxRecvMsgSize(maxMessage),
		grpc.MaxSendMsgSize(maxMessage),
		grpc.ConnectionTimeout(o.handshake),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: clientSilence, Timeout: clientSilence}),
		grpc.WaitForHandlers(true),
	)
	storepb.RegisterStoreServer(s.grpc, &service{server: s})
	go s.routineServe()
	return s
}

// routineServe accepts connections. One, started by Serve; ends when Close, or an
// error of the listener, ends it.
func (s *Server) routineServe() {
	defer close(s.done)
	s.err = s.grpc.Serve(s.conns)
}

// Addr is the address that the listener is bound to.
func (s *Server) Addr() net.Addr { return s.conns.Addr() }

// Done is closed when the server has stopped serving, by Close or by an error that
// Close then returns.
func (s *Server) Done() <-chan struct{} { return s.done }

// Retire ends the given attempt of a job and every earlier one: their keys are
// dropped, and calls that wait or come later from them get ErrStaleAttempt.
func (s *Server) Retire(job string, attempt int) { s.table.retire(job, int64(attempt)) }

// Close ends the server within about two seconds. Blocked waits and watches end
// first, with ErrServerLost at the client; short calls may finish; then connections
// are cut, those that never completed a handshake included. It returns the error
// that ended serving before Close did, if any.
func (s *Server) Close() error {
	s.once.Do(func() {
		close(s.closing)
		cut := time.AfterFunc(s.grace, func() {
			s.conns.closeAll() // Stop alone waits for half-open connections
			s.grpc.Stop()
		})
		s.grpc.GracefulStop()
		cut.Stop()
	})
	<-s.done
	return s.err
}

// tokenGate is the hash of the token that every call must present.
type tokenGate [sha256.Size]byte

func (g tokenGate) check(ctx context.Context) error {
	md, _ := metadata.FromIncomingContext(ctx)
	given := md.Get(tokenKey)
	if len(given) == 1 {
		sum := sha256.Sum256([]byte(given[0]))
		if subtle.ConstantTimeCompare(sum[:], g[:]) == 1 {
			return nil
		}
	}
	return status.Error(codes.Unauthenticated, "wrong job token")
}

func (g tokenGate) unary(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	if err := g.check(ctx); err != nil {
		return nil, err
	}
	return next(ctx, req)
}

func (g tokenGate) stream(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) error {
	if err := g.check(ss.Context()); err != nil {
		return err
	}
	return next(srv, ss)
}

// service is what gRPC calls. It checks requests; the table answers them.
type service struct {
	storepb.UnimplementedStoreServer
	server *Server
}

// joined refuses callers that joined another server at this address.
func (s *service) joined(sc *storepb.Scope) error {
	if !bytes.Equal(sc.GetServer(), s.server.id) {
		return status.Error(codes.Unavailable, "another store now answers at this address; the one joined has ended")
	}
	return nil
}

// admit checks a request that names a key and may carry a value.
func (s *service) admit(sc *storepb.Scope, key string, value []byte) error {
	if err := s.joined(sc); err != nil {
		return err
	}
	if err := checkKey(key); err != nil {
		return status.Error(codes.InvalidArgument, err.Error())
	}
	if len(value) > MaxValue {
		return status.Errorf(codes.InvalidArgument, "value of %d bytes, the largest allowed has %d", len(value), MaxValue)
	}
	return nil
}

func (s *service) Hello(_ context.Context, r *storepb.HelloRequest) (*storepb.HelloReply, error) {
	if r.Version != protocol {
		return nil, status.Errorf(codes.InvalidArgument,
			"the caller speaks version %d of the store's protocol, the server version %d: run the same gorun on every host", r.Version, protocol)
	}
	s.server.table.mu.Lock()
	defer s.server.table.mu.Unlock()
	if _, err := s.server.table.enter(r.GetScope()); err != nil {
		return nil, err
	}
	return &storepb.HelloReply{Server: s.server.id}, nil
}

func (s *service) Ping(_ context.Context, r *storepb.PingRequest) (*storepb.PingReply, error) {
	return &storepb.PingReply{}, s.joined(r.GetScope())
}

func (s *service) Set(_ context.Context, r *storepb.SetRequest) (*storepb.SetReply, error) {
	if err := s.admit(r.GetScope(), r.Key, r.Value); err != nil {
		return nil, err
	}
	return &storepb.SetReply{}, s.server.table.set(r.Scope, r.Key, r.Value)
}

func (s *service) Get(ctx context.Context, r *storepb.GetRequest) (*storepb.GetReply, error) {
	if err := s.admit(r.GetScope(), r.Key, nil); err != nil {
		return nil, err
	}
	for {
		value, created, err := s.server.table.get(r.Scope, r.Key, r.Wait)
		switch {
		case err != nil:
			return nil, err
		case created == nil:
			return &storepb.GetReply{Value: value}, nil
		}
		select {
		case <-created:
		case <-ctx.Done():
			return nil, status.FromContextError(ctx.Err()).Err()
		case <-s.server.closing:
			return nil, errClosing
		}
	}
}

var errClosing = status.Error(codes.Unavailable, "it was closed")

func (s *service) Add(_ context.Context, r *storepb.AddRequest) (*storepb.AddReply, error) {
	if err := s.admit(r.GetScope(), r.Key, nil); err != nil {
		return nil, err
	}
	sum, err := s.server.table.add(r.Scope, r.Key, r.Delta)
	return &storepb.AddReply{Sum: sum}, err
}

func (s *service) CompareAndSet(_ context.Context, r *storepb.CompareAndSetRequest) (*storepb.CompareAndSetReply, error) {
	if err := s.admit(r.GetScope(), r.Key, r.New); err != nil {
		return nil, err
	}
	return s.server.table.compareAndSet(r.Scope, r)
}

func (s *service) Delete(_ context.Context, r *storepb.DeleteRequest) (*storepb.DeleteReply, error) {
	if err := s.admit(r.GetScope(), r.Key, nil); err != nil {
		return nil, err
	}
	return &storepb.DeleteReply{}, s.server.table.remove(r.Scope, r.Key)
}

func (s *service) Watch(r *storepb.WatchRequest, out grpc.ServerStreamingServer[storepb.Change]) error {
	if err := s.joined(r.GetScope()); err != nil {
		return err
	}
	if err := checkName("prefix", r.Prefix); err != nil {
		return status.Error(codes.InvalidArgument, err.Error())
	}
	w, err := s.server.table.subscribe(r.Scope, r.Prefix)
	if err != nil {
		return err
	}
	defer s.server.table.unsubscribe(r.Scope, w)
	for {
		select {
		case <-w.wake:
		case <-out.Context().Done():
			return status.FromContextError(out.Context().Err()).Err()
		case <-s.server.closing:
			return errClosing
		}
		changes, ended := s.server.table.take(w)
		for _, c := range changes {
			if err := out.Send(c); err != nil {
				return err
			}
		}
		if ended != nil {
			return ended
		}
	}
}

func (s *service) Retire(_ context.Context, r *storepb.RetireRequest) (*storepb.RetireReply, error) {
	if err := s.joined(r.GetScope()); err != nil {
		return nil, err
	}
	a := r.Scope.GetAttempt()
	if r.Scope.GetJob() == "" || a < 0 || a == math.MaxInt64 {
		return nil, status.Errorf(codes.InvalidArgument, "cannot retire attempt %d of job %q", a, r.Scope.GetJob())
	}
	s.server.table.retire(r.Scope.Job, a)
	return &storepb.RetireReply{}, nil
}
