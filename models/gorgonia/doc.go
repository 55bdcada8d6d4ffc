// Package gorgonia trains Gorgonia's graphs on several ranks: gradients are reduced
// over the ranks while Gorgonia's tape still runs.
//
// Any graph of float32 or float64 takes part. A few lines of a program change:
//
//	var taps gorgonia.Taps
//	h := G.Must(G.Mul(x, G.Must(taps.On(w))))                 // in place of w, for each parameter
//	...
//	grads, err := taps.Grad(cost)                             // in place of G.Grad(cost, w, ...)
//	vars, err := taps.Vars()
//	model, err := ddp.Wrap(ctx, group, vars, ddp.Options{Op: comm.Avg})
//	defer model.Close()
//	for each step {
//		err = taps.Run(ctx, machine, model)                   // in place of machine.RunAll()
//		err = solver.Step(G.NodesToValueGrads(taps.Nodes()))  // as before
//		machine.Reset()
//	}
//
// A mean over the rank's batch wants comm.Avg, as above, and batches of one size on
// all ranks. A sum wants comm.Sum. Nothing else divides.
//
// # How it works
//
// On puts an operation between a parameter and its uses that hands out a copy of it.
// Its derivative is a second operation, a hook on the parameter's gradient. Gorgonia
// orders a program by when its nodes were made, and differentiation makes the hook as
// soon as the gradient is known: so the tape comes to it in the middle of the backward
// pass. The hook copies the gradient and says that it is ready, which brings it to its
// bucket and starts the reduction of a bucket that is full. When the tape has ended,
// Run waits for the last bucket. The reduced gradients are then where Grad, and with it
// Gorgonia's solvers, find them.
//
// Both operations copy, into memory that they keep. The tape lets an operation write
// over an input that nothing reads later, and takes what an operation returns for
// such memory: one that handed on the parameter's own would lose the parameter. The
// copy is read once more at the end of the program, so that the tape leaves it alone
// as it does a parameter.
//
// The hook's memory is not the bucket's. A machine may read what an operation has
// returned (BindDualValues, WithNaNWatch, TraceExec), while the reduction changes the
// bucket.
//
// # Machines
//
// TapeMachine runs the graph, with or without the program of CompileFunction, which
// leaves out gradients that nobody asked for. LispMachine is refused by an error at
// its first derivative: its Reset makes the second RunAll do nothing.
//
// Ranks that are goroutines of one process, as in tests, run their graphs at once, but
// build them one after another: Rectify and others of Gorgonia's functions count
// without a lock.
package gorgonia
