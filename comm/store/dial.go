package store

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/gorun-dev/gorun/comm/store/storepb"
)

const (
	// connectTimeout bounds one attempt to connect and be greeted.
	connectTimeout = 3 * time.Second
	// retryPause lies between two attempts.
	retryPause = 50 * time.Millisecond
)

// Options configure Dial. Every client has its own connection.
type Options struct {
	// Token must equal the server's.
	Token string
	// Job and Attempt are the scope under which all of the client's keys stand.
	// Job must not be empty, Attempt not negative.
	Job     string
	Attempt int
	// Host names the caller's host in errors. Optional.
	Host string
	// Timeout bounds calls whose context has no deadline. 0 means 5 minutes.
	Timeout time.Duration
	// Silence is how long the server may leave a ping unanswered before the client
	// takes it for lost. 0 means 8 s. Below 1 s a busy host may look dead.
	Silence time.Duration

	anew time.Duration // bounds answersAnew: an eighth of Silence, but for tests
}

// Client is one caller's view of the store. Its methods may be used concurrently.
type Client struct {
	o     Options
	addr  string
	scope *storepb.Scope
	conn  *grpc.ClientConn
	rpc   storepb.StoreClient

	// life ends, with its reason as the cause, when the server is lost or the
	// client is closed. Every call ends with it.
	life context.Context
	end  context.CancelCauseFunc

	mu       sync.Mutex     // orders the start of a watch against Close
	routines sync.WaitGroup // heartbeat and the watches' receivers
}

// Dial joins the store at addr (host:port). A server that is not there yet is tried
// again until ctx's deadline (or Options.Timeout); a refused token, a retired
// attempt or another protocol version ends it at once.
func Dial(ctx context.Context, addr string, o Options) (*Client, error) {
	if o.Timeout <= 0 {
		o.Timeout = 5 * time.Minute
	}
	if o.Silence <= 0 {
		o.Silence = 8 * time.Second
	}
	if o.anew <= 0 {
		o.anew = o.Silence / 8
	}
	c := &Client{
		o:     o,
		addr:  addr,
		scope: &storepb.Scope{Job: o.Job, Attempt: int64(o.Attempt)},
	}
	start := time.Now()
	if o.Job == "" || o.Attempt < 0 {
		return nil, c.fail("dial", "", start, fmt.Errorf("no job name, or attempt %d below 0", o.Attempt))
	}
	if err := checkName("job name", o.Job); err != nil {
		return nil, c.fail("dial", "", start, err)
	}
	conn, err := c.connect()
	if err != nil {
		return nil, c.fail("dial", "", start, err)
	}
	c.conn, c.rpc = conn, storepb.NewStoreClient(conn)
	if err := c.join(ctx); err != nil {
		conn.Close()
		return nil, c.fail("dial", "", start, err)
	}
	c.life, c.end = context.WithCancelCause(context.Background())
	c.routines.Add(1)
	go c.routineHeartbeat()
	return c, nil
}

// connect makes a connection, which is opened by the first call on it.
func (c *Client) connect() (*grpc.ClientConn, error) {
	dialer := &net.Dialer{Timeout: connectTimeout}
	return grpc.NewClient("passthrough:///"+c.addr, // the dialer resolves, anew each time
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithNoProxy(), // peers are reached directly, whatever the environment says
		grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
			return dialer.DialContext(ctx, "tcp", addr)
		}),
		grpc.WithUnaryInterceptor(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, next grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			return next(withToken(ctx, c.o.Token), method, req, reply, cc, opts...)
		}),
		grpc.WithStreamInterceptor(func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, next grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
			return next(withToken(ctx, c.o.Token), desc, cc, method, opts...)
		}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage), grpc.MaxCallSendMsgSize(maxMessage)),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: retryPause / 2, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 5 * retryPause},
			MinConnectTimeout: connectTimeout,
		}),
		grpc.WithIdleTimeout(0), // the heartbeat keeps the connection in use
	)
}

func withToken(ctx context.Context, token string) context.Context {
	return metadata.AppendToOutgoingContext(ctx, tokenKey, token)
}

// join greets the server until it answers, refuses, or time is up.
func (c *Client) join(ctx context.Context) error {
	ctx, cancel := c.bound(ctx)
	defer cancel()
	var last error
	for {
		try, cancelTry := context.WithTimeout(ctx, connectTimeout)
		r, err := c.rpc.Hello(try, &storepb.HelloRequest{Scope: c.scope, Version: protocol})
		cancelTry()
		if err == nil {
			c.scope.Server = r.Server
			return nil
		}
		switch code := status.Code(err); {
		case code == codes.Unavailable || code == codes.Internal: // Internal: the peer broke the protocol
			last = errors.New(status.Convert(err).Message())
		case code == codes.DeadlineExceeded || code == codes.Canceled:
			if ctx.Err() == nil {
				last = fmt.Errorf("connected or connecting, but no answer within %s", connectTimeout)
			}
		case code == codes.Unimplemented || code == codes.Unknown:
			return fmt.Errorf("what answers there is not the job's store (%s): check host and port", status.Convert(err).Message())
		default:
			return fromStatus(err)
		}
		select {
		case <-time.After(retryPause):
		case <-ctx.Done():
		}
		if ctx.Err() != nil {
			if last == nil {
				last = errors.New("no answer")
			}
			return fmt.Errorf("%w; last error: %v; check that the first node's agent runs, that host and port are its own, and that no firewall lies between", ctx.Err(), last)
		}
	}
}

// routineHeartbeat pings the server, so that one which froze or was cut off is
// noticed: TCP alone would wait for many minutes. A single late ping is forgiven:
// this process may have been the one that was stopped. One per client, started by
// Dial; ends when the client's life does.
func (c *Client) routineHeartbeat() {
	defer c.routines.Done()
	tick := time.NewTicker(c.o.Silence / 4)
	defer tick.Stop()
	for late := false; ; {
		err := c.ping(c.o.Silence / 2)
		switch {
		case err == nil:
			late = false
		case errors.Is(err, context.DeadlineExceeded) && !late:
			late = true
			continue
		case errors.Is(err, context.DeadlineExceeded):
			err := fmt.Errorf("%w: no answer to a ping within %s", ErrServerLost, c.o.Silence)
			if c.answersAnew() {
				c.end(fmt.Errorf("%w: %w", err, ErrSwallowed))
			} else {
				c.end(fmt.Errorf("%w (its host is down, frozen or cut off)", err))
			}
			return
		default:
			c.end(err) // no effect where the life has ended already
			return
		}
		select {
		case <-tick.C:
		case <-c.life.Done():
			return
		}
	}
}

// answersAnew reports whether the server greets a new connection: what is said there
// is small.
func (c *Client) answersAnew() bool {
	conn, err := c.connect()
	if err != nil {
		return false
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(c.life, c.o.anew)
	defer cancel()
	_, err = storepb.NewStoreClient(conn).Hello(ctx, &storepb.HelloRequest{Scope: &storepb.Scope{Job: c.o.Job, Attempt: int64(c.o.Attempt)}, Version: protocol})
	return err == nil
}

func (c *Client) ping(within time.Duration) error {
	ctx, cancel := context.WithTimeout(c.life, within)
	defer cancel()
	if _, err := c.rpc.Ping(ctx, &storepb.PingRequest{Scope: c.scope}); err != nil {
		return fromStatus(err)
	}
	return nil
}

// Done is closed when the client can no longer be used; Err then says why.
func (c *Client) Done() <-chan struct{} { return c.life.Done() }

// Err is nil while the client can be used, then wraps ErrServerLost or ErrClosed.
func (c *Client) Err() error { return context.Cause(c.life) }

// Close ends the client. Its pending calls and watches return ErrClosed.
func (c *Client) Close() error {
	c.mu.Lock()
	c.end(ErrClosed)
	c.mu.Unlock()
	err := c.conn.Close()
	c.routines.Wait()
	if status.Code(err) == codes.Canceled { // closed before
		return nil
	}
	return err
}
