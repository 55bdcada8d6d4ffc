// Package ddp trains one model on several ranks, each with a whole copy of it:
// gradients are summed over the ranks while the backward pass still runs.
//
// A program whose weights and gradients are slices of its own, or memory of another
// library, begins with Wrap; docs/embedding.md shows one from an empty folder on. What
// follows is for models that write gradients where they are told to, without a copy.
//
// A DDP is the param.GradSink that a model's backward pass writes into. The
// gradients are views of a few large buckets. When the last gradient of a bucket
// is Ready, its reduction is enqueued on the communication stream behind an
// event of the compute stream, and the backward pass goes on beside it. Buckets
// always go out in the plan's order, so every rank makes the same collective
// calls even where gradients become ready in different orders.
//
//	sink, err := ddp.New(ctx, group, compute, comm, model.Params(), ddp.Options{})
//	defer sink.Close()
//	for each optimizer step {
//		for i := range accumulate {
//			sink.StepBegin(i == accumulate-1) // only the last one communicates
//			model.Forward(weights, batch(i), loss, true)
//			model.Backward(weights, sink, scale)
//			sink.Finish(ctx)
//		}
//		// work enqueued on compute from here on sees the reduced gradients
//		optimize(sink.Buckets())
//	}
//
// Nothing here divides unless Options.Op is comm.Avg. A loss whose gradient is
// scaled by 1/(all ranks' target tokens of the step) wants comm.Sum, the default.
//
// Ranks with different amounts of data bring Join into the loop. State that is no
// parameter, such as running means, goes into Options.Buffers.
//
// Streams of a GPU make it a DDP of that GPU: gradients and weights lie in its
// memory, and package arith converts and compares them there. What ranks tell each
// other besides, such as the order of the buckets, stays in host memory and goes out
// on a stream of the host's, so that the host is never held up by the GPU: it waits,
// where it does, for the other hosts.
//
// plan.go decides where each gradient lies, arena.go gets the memory for it, ddp.go
// takes a step from beginning to end, sink.go follows the backward pass, wrap.go is for
// models with memory of their own, verify.go compares the ranks before the first step,
// weights.go compares and copies their weights, buffers.go copies other state, join.go
// is for uneven data, hook.go for gradients that are compressed (package
// comm/compress), memory.go is what differs between the CPU and a GPU.
package ddp
