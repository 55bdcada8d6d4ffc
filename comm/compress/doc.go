// Package compress makes gradients smaller on their way between ranks. A Compressor is
// what Options.Compress of packages ddp and zero takes:
//
//	c, err := compress.New(compress.Options{Scheme: compress.Int8})
//	sink, err := ddp.New(ctx, group, compute, comm, params, ddp.Options{Compress: c})
//	for each optimizer step {
//		... // StepBegin, passes, Finish
//		if the step is skipped {
//			c.Discard() // on every rank
//		}
//	}
//	c.Stats() // bytes sent and saved, and the error made
//
// FP16 and BF16 send 16 bits an element: each rank's gradients are rounded once, added
// up in f32 by the rank that owns the part, and the sum is rounded once. Int8 does the
// same with a byte an element and a scale for each 256 of them. TopK sends the largest
// elements of each parameter with their places. PowerSGD sends two thin matrices in the
// place of each large one.
//
// The last three leave much behind. It is kept, and added to the gradients of the next
// step (error feedback): over many steps all of it arrives. For this a rank holds two
// f32 for each element of every gradient, of which it needs the second to take a
// skipped step back; no stage of ZeRO shards them, for what is left behind is the
// rank's own.
//
// All ranks get the same bits, and the same again for the same input. A gradient that
// is not finite on one rank is not finite behind the reduction; what is kept never
// becomes so.
//
// FP16 and BF16 work on any memory that the group moves, the others on the host's.
//
// hook.go is the contract with ddp and zero, compressor.go the one implementation of
// it, kept.go what stays from step to step, debts.go what is left behind of a bucket,
// stats.go what is measured; half.go, int8.go, topk.go and powersgd.go are the schemes.
package compress
