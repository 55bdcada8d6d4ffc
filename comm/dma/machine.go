package dma

import (
	"github.com/gorun-dev/gorun/runtime/cuda"
	"github.com/gorun-dev/gorun/runtime/cuda/nvrtc"
)

// machine is what a team's calls need of a GPU beside copies. Tests put a processor in
// its place, which runs the same kernels.
type machine interface {
	// module loads kernels.
	module(d *cuda.Device, name, text string) (*cuda.Module, error)
	// exchange and sum launch a kernel of exchange.cu and of sum.cu.
	exchange(s *cuda.Stream, f *cuda.Function, g cuda.Grid, a *exchangeArgs)
	sum(s *cuda.Stream, f *cuda.Function, g cuda.Grid, a *sumArgs)
	// wait makes s wait until the word at addr has reached v.
	wait(s *cuda.Stream, addr uintptr, v uint32)
}

type gpu struct{}

func (gpu) module(d *cuda.Device, name, text string) (*cuda.Module, error) {
	return nvrtc.Module(d, name, text)
}

func (gpu) exchange(s *cuda.Stream, f *cuda.Function, g cuda.Grid, a *exchangeArgs) {
	cuda.Launch(s, f, g, a)
}

func (gpu) sum(s *cuda.Stream, f *cuda.Function, g cuda.Grid, a *sumArgs) { cuda.Launch(s, f, g, a) }

func (gpu) wait(s *cuda.Stream, addr uintptr, v uint32) { s.WaitValue32(addr, v) }
