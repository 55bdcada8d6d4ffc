// Package cubridge lends the GPU of programs that use gorgonia.org/cu to gorun, and
// gorun's to them: contexts, streams, events, modules and device memory go both ways
// by their handles, without a copy.
//
// It exists under the build tag cu alone, and nothing without that tag may import it.
// gorgonia.org/cu needs cgo and CUDA 11.8's cuda.h, and ends the process when it is
// imported where there is no GPU. docs/cu.md says how to build with it.
//
//	gpu, err := cu.GetDevice(local)
//	theirs, err := gpu.RetainPrimaryCtx()
//	dev, err := cubridge.BorrowContext(theirs) // a *cuda.Device
//	compute, err := cubridge.BorrowStream(dev, "compute", stream)
//	group, err := comm.Join(ctx, comm.Options{Device: dev})
//
// Gradients in memory of cu's go into ddp in either of two ways. ddp.WrapOn leaves each
// gradient where cu has allocated it, and copies it on the GPU into the buckets that
// travel and back:
//
//	buf, err := cubridge.BorrowMemory(dev, p, 4*n) // p is a cu.DevicePtr
//	v := param.Var{Name: "w", Weight: ..., Grad: tensor.New(buf, dtype.F32, n)}
//	model, err := ddp.WrapOn(ctx, group, compute, []param.Var{v}, ddp.Options{})
//
// With ddp.New nothing is copied: the backward pass writes into the buckets, at
//
//	grad, add := sink.Get(p)
//	cubridge.LendMemory(grad.Buf) // a cu.DevicePtr
//
// The buckets are memory of the group's, or of cu's by an Arena.
//
// What is borrowed from cu stays the program's: it destroys it with cu, after what was
// made of it here, or its Device, is closed. What is lent to cu stays gorun's: cu must
// not destroy it, and must not use it after gorun has. Nothing is destroyed twice, and
// nothing by the garbage collector.
//
// cu's functions work in the context that is current on the thread which calls them,
// while goroutines wander between threads. A goroutine that calls cu keeps the
// context current by
//
//	defer dev.Bind()()
//
// Calls of gorun's need none; they leave their own context current on the thread.
// cu's types Ctx, BatchedContext and Graph are not served. A program that has a Ctx
// lends its CUDAContext.
package cubridge
