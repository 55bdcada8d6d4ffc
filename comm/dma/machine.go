package dma

import (
	"fmt"

	"github.com/gorun-dev/gorun/runtime/cuda"
	"github.com/gorun-dev/gorun/runtime/cuda/nvrtc"
)

// machine is what a team's calls need of a GPU beside copies. Tests put a processor in
// its place, which runs the same kernels.
type machine interface {
	// module loads kernels.
	module(d *cuda.Device, name, text string) (*cuda.Module, error)
	// launch enqueues a kernel. args points to its arguments: one of exchangeArgs,
	// directArgs, pairsArgs and sumArgs.
	launch(s *cuda.Stream, f *cuda.Function, g cuda.Grid, args any)
	// wait makes s wait until the word at addr has reached v.
	wait(s *cuda.Stream, addr uintptr, v uint32)
}

// newMachine is what Join takes, a variable for tests.
var newMachine = func() machine { return gpu{} }

type gpu struct{}

func (gpu) module(d *cuda.Device, name, text string) (*cuda.Module, error) {
	return nvrtc.Module(d, name, text)
}

func (gpu) launch(s *cuda.Stream, f *cuda.Function, g cuda.Grid, args any) {
	switch a := args.(type) {
	case *exchangeArgs:
		cuda.Launch(s, f, g, a)
	case *directArgs:
		cuda.Launch(s, f, g, a)
	case *pairsArgs:
		cuda.Launch(s, f, g, a)
	case *sumArgs:
		cuda.Launch(s, f, g, a)
	default:
		s.Fail(fmt.Errorf("%s takes no %T", f.Name(), args))
	}
}

func (gpu) wait(s *cuda.Stream, addr uintptr, v uint32) { s.WaitValue32(addr, v) }
