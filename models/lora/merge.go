package lora

import (
	"fmt"
	"runtime"
	"slices"
	"sync"

	"github.com/gorun-dev/gorun/runtime/param"
)

// Merge adds scale · B·A to w[O,I], with a[R,I] and b[O,R]: each sum is made in f64 and
// rounded once. It uses all cores.
func Merge(w, a, b []float32, r int, scale float64) {
	in, out := len(a)/r, len(b)/r
	if in*r != len(a) || out*r != len(b) || in*out != len(w) {
		panic(fmt.Sprintf("lora: merging factors of %d and %d elements and rank %d into a weight of %d", len(a), len(b), r, len(w)))
	}
	var workers sync.WaitGroup
	parts := max(1, min(runtime.NumCPU(), out))
	for part := range parts {
		workers.Go(func() { // ends with its rows
			sum := make([]float64, in)
			for o := out * part / parts; o < out*(part+1)/parts; o++ {
				clear(sum)
				for k, x := range b[o*r : (o+1)*r] {
					for i, y := range a[k*in : (k+1)*in] {
						sum[i] += float64(x) * float64(y)
					}
				}
				for i, d := range sum {
					w[o*in+i] = float32(float64(w[o*in+i]) + scale*d)
				}
			}
		})
	}
	workers.Wait()
}

// Merged is set for the weights of the model that the adapters are for, as a Load of
// the model's folder hands them out: it adds to each what its adapters make of it. The
// model must be one that Fits; dropout is not of it.
func (f *Folder) Merged(set func(p *param.Param, values []float32) error) func(p *param.Param, values []float32) error {
	var a, b []float32
	return func(p *param.Param, values []float32) error {
		var err error
		p.EachPart(func(part param.Part, from, to int) {
			m := module(part.Name)
			if _, has := slices.BinarySearch(f.Config.Targets, m); !has || m == part.Name || err != nil {
				return
			}
			r, in := f.Config.R, p.Shape[1]
			a, b = slices.Grow(a[:0], r*in)[:r*in], slices.Grow(b[:0], part.Rows*r)[:part.Rows*r]
			if err = f.read(m+endA, []int{r, in}, a); err != nil {
				return
			}
			if err = f.read(m+endB, []int{part.Rows, r}, b); err != nil {
				return
			}
			Merge(values[from:to], a, b, r, f.Config.scale())
		})
		if err != nil {
			return fmt.Errorf("lora: %s: %s: %w", f.Dir, p.Name, err)
		}
		return set(p, values)
	}
}
