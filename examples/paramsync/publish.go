package main

import (
	"context"
	"crypto/sha256"
	"fmt"
	"hash/crc32"
	"slices"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/gorun-dev/gorun/examples/paramsync/paramsyncpb"
	"github.com/gorun-dev/gorun/runtime/param"
)

//go:generate protoc --go_out=. --go_opt=paths=source_relative --go-grpc_out=. --go-grpc_opt=paths=source_relative paramsyncpb/paramsync.proto

const (
	// chunkBytes is the size of a message: small beside gRPC's limit of 4 MiB, large
	// beside what a message costs.
	chunkBytes = 256 << 10
	// retain is how many snapshots that somebody has asked for are kept, for those who
	// lose their connection.
	retain = 4
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// publisher serves copies of a job's weights. Its zero value, but for job, has none yet.
type publisher struct {
	pb.UnimplementedWeightsServer
	job string

	mu        sync.Mutex
	snapshots []*snapshot // oldest first; only the newest one may be unasked for
}

// snapshot does not change once it is published.
type snapshot struct {
	manifest *pb.Manifest
	data     []byte
	asked    bool // guarded by the publisher's mu
}

// publish copies the weights of host memory as they are behind a step. The caller, who
// trains, changes none of them meanwhile; who fetches an older snapshot is not disturbed.
func (p *publisher) publish(step int, vars []param.Var) {
	m := &pb.Manifest{Job: p.job, Step: int64(step)}
	var data []byte
	for _, v := range vars {
		m.Variables = append(m.Variables, describe(v))
		data = append(data, v.Weight.Buf.Bytes()...)
	}
	sum := sha256.Sum256(data)
	m.Bytes, m.Sha256 = int64(len(data)), sum[:]

	p.mu.Lock()
	defer p.mu.Unlock()
	if n := len(p.snapshots); n > 0 && !p.snapshots[n-1].asked {
		p.snapshots = p.snapshots[:n-1]
	}
	if len(p.snapshots) == retain {
		p.snapshots = slices.Delete(p.snapshots, 0, 1)
	}
	p.snapshots = append(p.snapshots, &snapshot{manifest: m, data: data})
}

func describe(v param.Var) *pb.Variable {
	d := &pb.Variable{Name: v.Name, Type: v.Weight.DType.String()}
	for _, n := range v.Weight.Shape {
		d.Shape = append(d.Shape, int64(n))
	}
	return d
}

func (p *publisher) Latest(context.Context, *pb.LatestRequest) (*pb.Manifest, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.snapshots) == 0 {
		return nil, status.Error(codes.Unavailable, "the job has published no weights yet")
	}
	newest := p.snapshots[len(p.snapshots)-1]
	newest.asked = true
	return newest.manifest, nil
}

func (p *publisher) Fetch(r *pb.FetchRequest, out pb.Weights_FetchServer) error {
	s := p.find(r.Job, r.Step)
	if s == nil {
		return status.Errorf(codes.NotFound, "the weights of step %d of job %q are not kept any more: ask for the latest", r.Step, r.Job)
	}
	if r.Offset < 0 || r.Offset > int64(len(s.data)) {
		return status.Errorf(codes.OutOfRange, "offset %d of %d bytes", r.Offset, len(s.data))
	}
	for at := int(r.Offset); at < len(s.data); {
		data := s.data[at:min(at+chunkBytes, len(s.data))]
		if err := out.Send(&pb.Chunk{Offset: int64(at), Data: data, Crc32C: crc32.Checksum(data, castagnoli)}); err != nil {
			return fmt.Errorf("sending the weights of step %d from byte %d: %w", r.Step, at, err)
		}
		at += len(data)
	}
	return nil
}

func (p *publisher) find(job string, step int64) *snapshot {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.snapshots {
		if s.manifest.Job == job && s.manifest.Step == step {
			return s
		}
	}
	return nil
}
