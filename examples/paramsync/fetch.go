package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	pb "github.com/gorun-dev/gorun/examples/paramsync/paramsyncpb"
	"github.com/gorun-dev/gorun/runtime/param"
)

const (
	// silence is how long the server may say nothing before the connection is taken for
	// broken.
	silence = 10 * time.Second
	// attempts is how often in a row a connection may break without a byte received.
	attempts = 10
	pause    = 200 * time.Millisecond // between two attempts
)

// fetch copies the newest weights of the job at addr into vars, which must be the same
// variables, and returns the step that they are of. It goes on where it was when a
// connection breaks. vars are written when all bytes have come and their checksum is
// right, not before. It ends when ctx does.
func fetch(ctx context.Context, addr string, vars []param.Var) (step int, err error) {
	conn, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithNoProxy(),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: pause / 2, Multiplier: 1.6, MaxDelay: 2 * pause},
			MinConnectTimeout: silence,
		}))
	if err != nil {
		return 0, fmt.Errorf("weights from %s: %w", addr, err)
	}
	defer conn.Close()
	f := fetcher{client: pb.NewWeightsClient(conn), vars: vars}
	for failures := 0; ; {
		had := len(f.data)
		err := f.advance(ctx)
		if err == nil {
			return int(f.manifest.Step), nil
		}
		failures++
		if len(f.data) > had {
			failures = 0
		}
		if ctx.Err() != nil || !worthAnother(err) || failures == attempts {
			return 0, fmt.Errorf("weights from %s: %w", addr, err)
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
	}
}

// fetcher is one snapshot on its way.
type fetcher struct {
	client   pb.WeightsClient
	vars     []param.Var
	manifest *pb.Manifest // nil: which one is not known yet
	data     []byte       // what has come of it, checked chunk by chunk
}

var errOthers = errors.New("the job's variables are not this program's")

// worthAnother tells a broken connection, or bytes broken on their way, from what
// another attempt does not change.
func worthAnother(err error) bool {
	code := status.Code(err)
	return !errors.Is(err, errOthers) && code != codes.Unimplemented && code != codes.InvalidArgument && code != codes.PermissionDenied
}

// advance gets as much as one connection gives. nil: all of it, and vars are written.
func (f *fetcher) advance(ctx context.Context) error {
	if f.manifest == nil {
		if err := f.ask(ctx); err != nil {
			return err
		}
	}
	if err := f.receive(ctx); err != nil {
		if status.Code(err) == codes.NotFound {
			f.manifest, f.data = nil, nil // too late for these; the latest will do
		}
		return err
	}
	if sum := sha256.Sum256(f.data); !bytes.Equal(sum[:], f.manifest.Sha256) {
		err := fmt.Errorf("step %d: %d bytes have SHA-256 %x, the manifest says %x", f.manifest.Step, len(f.data), sum, f.manifest.Sha256)
		f.manifest, f.data = nil, nil
		return err
	}
	rest := f.data
	for _, v := range f.vars {
		rest = rest[copy(v.Weight.Buf.Bytes(), rest):]
	}
	return nil
}

// ask learns which snapshot is the newest.
func (f *fetcher) ask(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, silence)
	defer cancel()
	m, err := f.client.Latest(ctx, &pb.LatestRequest{})
	if err != nil {
		return fmt.Errorf("which weights are the latest: %w", err)
	}
	var mine []*pb.Variable
	size := 0
	for _, v := range f.vars {
		mine = append(mine, describe(v))
		size += v.Weight.Buf.Len()
	}
	if !slices.EqualFunc(m.Variables, mine, func(a, b *pb.Variable) bool { return proto.Equal(a, b) }) || m.Bytes != int64(size) {
		return fmt.Errorf("%w: %d bytes of %v, and here %d bytes of %v", errOthers, m.Bytes, m.Variables, size, mine)
	}
	f.manifest, f.data = m, make([]byte, 0, m.Bytes)
	return nil
}

// receive appends chunks to data until it is complete.
func (f *fetcher) receive(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	alarm := time.AfterFunc(silence, func() { cancel(fmt.Errorf("the server has sent nothing for %s", silence)) })
	defer alarm.Stop()
	in, err := f.client.Fetch(ctx, &pb.FetchRequest{Job: f.manifest.Job, Step: f.manifest.Step, Offset: int64(len(f.data))})
	if err != nil {
		return fmt.Errorf("step %d from byte %d: %w", f.manifest.Step, len(f.data), err)
	}
	for {
		c, err := in.Recv()
		switch {
		case err == io.EOF && len(f.data) == cap(f.data):
			return nil
		case err == io.EOF:
			return fmt.Errorf("step %d: the server ended after %d of %d bytes", f.manifest.Step, len(f.data), cap(f.data))
		case err != nil && context.Cause(ctx) != nil:
			return fmt.Errorf("step %d, after %d of %d bytes: %w", f.manifest.Step, len(f.data), cap(f.data), context.Cause(ctx))
		case err != nil:
			return fmt.Errorf("step %d, after %d of %d bytes: %w", f.manifest.Step, len(f.data), cap(f.data), err)
		case c.Offset != int64(len(f.data)) || len(c.Data) > cap(f.data)-len(f.data):
			return fmt.Errorf("step %d: the server sent bytes %d to %d, due are %d to %d", f.manifest.Step, c.Offset, c.Offset+int64(len(c.Data)), len(f.data), cap(f.data))
		case crc32.Checksum(c.Data, castagnoli) != c.Crc32C:
			return fmt.Errorf("step %d: %d bytes from %d on arrived with another checksum than they left with", f.manifest.Step, len(c.Data), c.Offset)
		}
		alarm.Reset(silence)
		f.data = append(f.data, c.Data...)
	}
}
