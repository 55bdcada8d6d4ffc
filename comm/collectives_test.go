package comm

import (
	"testing"

	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
)

func TestBasics(t *testing.T) {
	for _, n := range []int{1, 2, 3, 4, 7} {
		for _, tr := range []string{"local", "tcp"} {
			for _, algo := range []Algorithm{OneShot, Direct, Ring, Doubling, Auto} {
				for _, count := range []int{0, 1, 5, 64, 1001, 100003} {
					gs, err := Local(n, Options{Algo: algo, Chunk: 4096, Transport: tr})
					if err != nil {
						t.Fatal(err)
					}
					done := make(chan error, n)
					for _, g := range gs {
						go func() {
							s := device.NewCPUStream("comm", nil)
							defer s.Close()
							x := make([]float32, count)
							for i := range x {
								x[i] = float32(i%100 + g.Rank())
							}
							w := g.AllReduce(s, device.Of(x), dtype.F32, Sum)
							all := make([]float32, n*count)
							g.AllGather(s, device.Of(all), device.Of(x), dtype.F32)
							g.ReduceScatter(s, device.Of(x), device.Of(all), dtype.F32, Sum)
							g.Broadcast(s, device.Of(x), dtype.F32, n-1)
							g.Barrier(s)
							err := w.Wait(t.Context())
							if err == nil {
								err = s.Synchronize(t.Context())
							}
							for i := range x {
								if want := float32(n * (n*(i%100) + n*(n-1)/2)); err == nil && x[i] != want {
									t.Errorf("%s n %d count %d rank %d: [%d] = %v, want %v", algo, n, count, g.Rank(), i, x[i], want)
									break
								}
							}
							done <- err
						}()
					}
					for range n {
						if err := <-done; err != nil {
							t.Fatal(n, algo, count, err)
						}
					}
					for _, g := range gs {
						if err := g.Close(); err != nil {
							t.Fatal(err)
						}
					}
				}
			}
		}
	}
}
