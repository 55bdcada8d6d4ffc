package train

import (
	"context"
	"encoding/json"
	"fmt"
	"os"

	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/trace"
)

// writeTrace gathers the spans of all ranks on rank 0 and writes trace.json.
func (j *job) writeTrace(ctx context.Context) error {
	if j.cfg.Log.Trace == 0 {
		return nil
	}
	if j.gpuTrace != nil {
		j.tracer.Enable(true)
		if err := j.gpuTrace.flush(); err != nil {
			return err
		}
	}
	j.tracer.Enable(false)
	spans, dropped := j.tracer.Spans()
	if dropped > 0 {
		j.say("the trace lacks %d spans of rank 0: give a smaller log.trace", dropped)
	}
	mine, err := json.Marshal(spans)
	if err != nil {
		return err
	}
	sizes := make([]int64, j.size())
	j.group.AllGather(j.host, device.Of(sizes), device.Of([]int64{int64(len(mine))}), dtype.I64)
	if err := j.host.Synchronize(ctx); err != nil {
		return err
	}
	var room int64
	for _, n := range sizes {
		room = max(room, n)
	}
	all := make([]byte, room*int64(j.size()))
	padded := append(mine, make([]byte, room-int64(len(mine)))...)
	j.group.Gather(j.host, device.Host(all), device.Host(padded), dtype.U8, 0)
	if err := j.host.Synchronize(ctx); err != nil {
		return err
	}
	if j.rank() != 0 {
		return nil
	}
	var merged []trace.Span
	for r, n := range sizes {
		var part []trace.Span
		if err := json.Unmarshal(all[int64(r)*room:][:n], &part); err != nil {
			return fmt.Errorf("the trace of rank %d: %w", r, err)
		}
		merged = append(merged, part...)
	}
	f, err := os.Create(j.path("trace.json"))
	if err != nil {
		return err
	}
	if err := trace.Write(f, merged); err != nil {
		f.Close()
		return fmt.Errorf("%s: %w", f.Name(), err)
	}
	return f.Close()
}
