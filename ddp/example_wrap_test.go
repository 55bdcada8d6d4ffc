package ddp_test

import (
	"context"
	"fmt"
	"log"
	"sync"

	"github.com/gorun-dev/gorun/comm"
	"github.com/gorun-dev/gorun/comm/compress"
	"github.com/gorun-dev/gorun/ddp"
	"github.com/gorun-dev/gorun/runtime/param"
)

// each runs do on n ranks that are goroutines, and prints what they return. A program
// that gorun starts has one rank a process: it calls comm.Join, and then do.
func each(n int, do func(ctx context.Context, g *comm.Group) (string, error)) {
	groups, err := comm.Local(n)
	if err != nil {
		log.Fatal(err)
	}
	lines := make([]string, n)
	var ranks sync.WaitGroup
	for r, g := range groups {
		ranks.Go(func() {
			defer g.Close()
			var err error
			if lines[r], err = do(context.Background(), g); err != nil {
				log.Fatal(err)
			}
		})
	}
	ranks.Wait()
	for r, line := range lines {
		fmt.Printf("rank %d: %s\n", r, line)
	}
}

// Four ranks fit y = 3x + 1, each to a point of its own.
func ExampleWrap() {
	each(4, func(ctx context.Context, g *comm.Group) (string, error) {
		w, dw := []float64{0, 0}, []float64{0, 0}
		model, err := ddp.Wrap(ctx, g, []param.Var{param.Slice("w", w, dw)}, ddp.Options{Op: comm.Avg})
		if err != nil {
			return "", err
		}
		defer model.Close()
		x := float64(g.Rank())
		for range 200 {
			if err := model.StepBegin(true); err != nil {
				return "", err
			}
			off := w[0]*x + w[1] - (3*x + 1)
			dw[0], dw[1] = off*x, off
			model.Ready(0)
			if err := model.Finish(ctx); err != nil {
				return "", err
			}
			w[0] -= 0.2 * dw[0]
			w[1] -= 0.2 * dw[1]
		}
		return fmt.Sprintf("y = %.3fx + %.3f", w[0], w[1]), nil
	})
	// Output:
	// rank 0: y = 3.000x + 1.000
	// rank 1: y = 3.000x + 1.000
	// rank 2: y = 3.000x + 1.000
	// rank 3: y = 3.000x + 1.000
}

// Gradients of three micro-steps are added up on each rank, and reduced once: PyTorch's
// no_sync. Each backward pass overwrites its gradient.
func ExampleModel_StepBegin() {
	each(2, func(ctx context.Context, g *comm.Group) (string, error) {
		w, dw := []float32{0}, []float32{0}
		model, err := ddp.Wrap(ctx, g, []param.Var{param.Slice("w", w, dw)}, ddp.Options{})
		if err != nil {
			return "", err
		}
		defer model.Close()
		const accumulate = 3
		for i := range accumulate {
			if err := model.StepBegin(i == accumulate-1); err != nil {
				return "", err
			}
			dw[0] = float32(1 + i + 10*g.Rank())
			model.Ready(0)
			if err := model.Finish(ctx); err != nil {
				return "", err
			}
		}
		return fmt.Sprint(dw[0], " = 1+2+3 + 11+12+13"), nil
	})
	// Output:
	// rank 0: 42 = 1+2+3 + 11+12+13
	// rank 1: 42 = 1+2+3 + 11+12+13
}

// Rank 0 has one batch and rank 1 has three. Both make three steps, and leave together.
func ExampleModel_Join() {
	each(2, func(ctx context.Context, g *comm.Group) (string, error) {
		w, dw := []float32{0}, []float32{0}
		model, err := ddp.Wrap(ctx, g, []param.Var{param.Slice("w", w, dw)}, ddp.Options{})
		if err != nil {
			return "", err
		}
		defer model.Close()
		batches := 1 + 2*g.Rank()
		line := "gradients"
		for {
			more := batches > 0
			present, err := model.Join(ctx, more)
			if err != nil {
				return "", err
			}
			if present == 0 {
				return line, nil
			}
			if err := model.StepBegin(true); err != nil {
				return "", err
			}
			if more {
				batches--
				dw[0] = float32(1 + 9*g.Rank())
				model.Ready(0)
			}
			if err := model.Finish(ctx); err != nil {
				return "", err
			}
			line += fmt.Sprint(" ", dw[0])
		}
	})
	// Output:
	// rank 0: gradients 11 10 10
	// rank 1: gradients 11 10 10
}

// Gradients travel as 8-bit numbers. What rounding has cut off of one step is added to
// the next one.
func ExampleWrap_compress() {
	each(2, func(ctx context.Context, g *comm.Group) (string, error) {
		hook, err := compress.New(compress.Options{Scheme: compress.Int8})
		if err != nil {
			return "", err
		}
		w, dw := make([]float32, 1000), make([]float32, 1000)
		model, err := ddp.Wrap(ctx, g, []param.Var{param.Slice("w", w, dw)}, ddp.Options{Compress: hook})
		if err != nil {
			return "", err
		}
		defer model.Close()
		if err := model.StepBegin(true); err != nil {
			return "", err
		}
		for i := range dw {
			dw[i] = float32(1 + 9*g.Rank())
		}
		model.Ready(0)
		if err := model.Finish(ctx); err != nil {
			return "", err
		}
		s := hook.Stats()
		return fmt.Sprintf("%.3f, for %.1f times fewer bytes", dw[999], float64(s.Plain)/float64(s.Sent)), nil
	})
	// Output:
	// rank 0: 11.000, for 3.9 times fewer bytes
	// rank 1: 11.000, for 3.9 times fewer bytes
}
