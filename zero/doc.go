// Package zero trains one model on several ranks that share its training state:
// the masters and moments of the optimizer (stage 1), the gradients too (stage 2),
// and the weights too (stage 3). It computes what plain data parallelism does.
//
// A program whose weights and gradients are slices of its own begins with Wrap, which
// shards the optimizer; docs/embedding.md shows one from an empty folder on. What
// follows is for models that take their weights from a Zero and write gradients where
// it says.
//
// Parameters lie one after another in buckets, and each bucket is cut into equal
// shards, one for each rank, whatever parameters the cuts go through. A Zero is the
// param.GradSink that a model's backward pass writes into: when the last gradient of
// a bucket is Ready, the bucket is reduced and scattered on the communication
// stream, beside the backward pass. It is the model's param.Weights as well: behind
// the optimizer the weights are gathered beside the next forward pass, and Use waits
// for what a block needs.
//
//	z, err := zero.New(ctx, group, compute, comm, model.Params(), zero.Options{PlanOptions: zero.PlanOptions{Stage: 2}})
//	defer z.Close()
//	for each parameter { z.SetWeight(ctx, p, 0, values) }
//	z.Gather()
//	for each optimizer step {
//		for i := range accumulate {
//			z.StepBegin(i == accumulate-1)
//			model.Forward(z, batch(i), loss, true)
//			model.Backward(z, z, scale)
//			z.Finish(ctx)
//		}
//		// on the compute stream: the sum of squares of z.Shards()' gradients
//		z.AllReduce(squares) // of the norm, over all ranks
//		// on the compute stream: the optimizer on z.Shards()
//		z.Gather() // unless the step is skipped
//	}
//
// With n ranks, a rank sends (n-1)/n of these bytes for each element and optimizer
// step of A micro-steps, where g is the size of the gradients' type on the wire and w
// that of the weights': g+w in stage 1, A*g+w in stage 2, A*(g+2w) in stage 3. It
// holds all weights in stages 1 and 2, all gradients in stage 1, an nth of them
// in f32 in stages 2 and 3, and an nth of everything else. Plan.Memory and Plan.Sent
// give the figures before anything is allocated.
//
// Nothing here divides unless Options.Op is comm.Avg. A loss whose gradient is
// scaled by 1/(all ranks' target tokens of the step) wants comm.Sum, the default.
//
// Gradients that are not finite reach the norm of every rank. A rank that skips
// such a step leaves Gather out, or calls it with unchanged masters: weights,
// masters and moments stay as they are. A loss scale is the caller's: it divides the
// norm by the scale, and gives the optimizer a coefficient that does the same to the
// gradients.
//
// plan.go decides where everything lies, sizes.go what that takes, alloc.go gets the
// memory, step.go takes a step from beginning to end, sink.go follows the backward
// pass, weights.go and blocks.go hand out weights, shards.go is the optimizer's and a
// checkpoint's view, wrap.go is for models with slices of their own, verify.go compares
// the ranks before the first step, hook.go is for gradients that are compressed
// (package comm/compress), memory.go is what differs between the CPU and a GPU.
package zero
