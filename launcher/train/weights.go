package train

import (
	"context"
	"fmt"
	"io"

	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

// Tensors of a device travel through pinned host memory, a piece at a time: a
// copy from memory that is not pinned is a quarter as fast, and pinning all of it
// would take the host's memory for each tensor.
const stagingBytes = 64 << 20

// upload copies host bytes to t and waits for it.
func (j *job) upload(ctx context.Context, t tensor.Tensor, from []byte) error {
	if t.Buf.OnHost() {
		copy(t.Buf.Bytes(), from)
		return nil
	}
	return j.pieces(t, func(piece, staging device.Buffer) error {
		copy(staging.Bytes(), from)
		from = from[piece.Len():]
		j.compute.Copy(piece, staging)
		return j.compute.Synchronize(ctx)
	})
}

// download writes t's bytes to w, behind the work enqueued on the compute stream.
func (j *job) download(ctx context.Context, w io.Writer, t tensor.Tensor) error {
	if t.Buf.OnHost() {
		_, err := w.Write(t.Buf.Bytes())
		return err
	}
	return j.pieces(t, func(piece, staging device.Buffer) error {
		j.compute.Copy(staging, piece)
		if err := j.compute.Synchronize(ctx); err != nil {
			return err
		}
		_, err := w.Write(staging.Bytes())
		return err
	})
}

func (j *job) pieces(t tensor.Tensor, f func(piece, staging device.Buffer) error) (err error) {
	if j.staging.Len() == 0 {
		if j.staging, err = j.device.AllocHost(stagingBytes); err != nil {
			return fmt.Errorf("pinned memory for weights on their way: %w", err)
		}
	}
	for at := 0; at < t.Buf.Len(); at += stagingBytes {
		end := min(at+stagingBytes, t.Buf.Len())
		if err := f(t.Buf.Slice(at, end), j.staging.Slice(0, end-at)); err != nil {
			return err
		}
	}
	return nil
}

// inMemory is a tensor that this rank holds.
type inMemory struct {
	j *job
	tensor.Tensor
}

func (x inMemory) upload(ctx context.Context, b []byte) error { return x.j.upload(ctx, x.Tensor, b) }

func (x inMemory) download(ctx context.Context, w io.Writer) error {
	return x.j.download(ctx, w, x.Tensor)
}
