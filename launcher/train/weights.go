package train

import (
	"context"
	"fmt"
	"io"

	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

// Tensors of a device travel through pinned host memory, a piece at a time: a
// copy from memory that is not pinned is a quarter as fast, and pinning all of it
// would take the host's memory for each tensor.
const stagingBytes = 64 << 20

// stagingFor is host memory for the next n bytes on their way, or for fewer.
func (j *job) stagingFor(n int) (device.Buffer, error) {
	n = min(n, stagingBytes)
	if j.staging.Len() < n {
		b, err := j.device.AllocHost(n)
		if err != nil {
			return b, fmt.Errorf("%d bytes of pinned memory for weights on their way: %w", n, err)
		}
		old := j.staging
		if j.staging = b; old.Len() > 0 {
			if err := j.device.Free(old); err != nil {
				return b, err
			}
		}
	}
	return j.staging.Slice(0, n), nil
}

// upload copies host bytes to t and waits for it.
func (j *job) upload(ctx context.Context, t tensor.Tensor, from []byte) error {
	if t.Buf.OnHost() {
		copy(t.Buf.Bytes(), from)
		return nil
	}
	for at := 0; at < t.Buf.Len(); {
		staging, err := j.stagingFor(t.Buf.Len() - at)
		if err != nil {
			return err
		}
		end := at + copy(staging.Bytes(), from[at:t.Buf.Len()])
		j.compute.Copy(t.Buf.Slice(at, end), staging)
		if err := j.compute.Synchronize(ctx); err != nil {
			return err
		}
		at = end
	}
	return nil
}

// download writes the values that r writes to w, a piece at a time.
func (j *job) download(ctx context.Context, w io.Writer, r piece) error {
	for at := r.writes.from; at < r.writes.to; {
		staging, err := j.stagingFor((r.writes.to - at) * dtype.F32.Size())
		if err != nil {
			return err
		}
		if err := r.read(ctx, at-r.has.from, staging); err != nil {
			return err
		}
		if err := j.compute.Synchronize(ctx); err != nil {
			return err
		}
		if _, err := w.Write(staging.Bytes()); err != nil {
			return err
		}
		at += staging.Len() / dtype.F32.Size()
	}
	return nil
}

// copies says that what is saved is copied, so that it is written beside steps.
func (j *job) copies() bool { return j.cfg.Checkpoint.Async && j.cfg.Checkpoint.Every > 0 }

// reserve allocates what snapshot copies to, so that no save has to.
func (j *job) reserve() (err error) {
	n := 0
	for _, f := range j.contents() {
		n += f.bytes()
	}
	if j.shot, err = j.device.AllocHost(n); err != nil {
		return fmt.Errorf("%d bytes of host memory for a copy of what this rank saves: %w; set checkpoint.async to false to do without", n, err)
	}
	if j.device.Kind() == device.CPU {
		clear(j.shot.Bytes()) // the kernel finds the pages now, and not when steps wait for the first copy
	}
	return nil
}

// snapshot copies what this rank writes to host memory of its own. When it returns,
// steps may go on.
func (j *job) snapshot(ctx context.Context, files []file) error {
	at := 0
	for _, f := range files {
		for i := range f.pieces {
			r := &f.pieces[i]
			if r.writes.numel() == 0 {
				continue
			}
			to := j.shot.Slice(at, at+r.size())
			if err := r.read(ctx, r.writes.from-r.has.from, to); err != nil {
				return fmt.Errorf("%s: %w", r.name, err)
			}
			r.copied = to.Bytes()
			at += r.size()
		}
	}
	return j.compute.Synchronize(ctx)
}

// inMemory is f32 [n] that this rank holds in its device's memory.
type inMemory struct {
	j *job
	tensor.Tensor
}

func (x inMemory) read(_ context.Context, from int, dst device.Buffer) error {
	x.j.compute.Copy(dst, x.Rows(from, from+dst.Len()/x.DType.Size()).Buf)
	return nil
}

func (x inMemory) write(ctx context.Context, from int, b []byte) error {
	return x.j.upload(ctx, x.Rows(from, from+len(b)/x.DType.Size()), b)
}
