package comm_test

import (
	"fmt"
	"testing"

	"github.com/gorun-dev/gorun/comm"
	"github.com/gorun-dev/gorun/comm/commtest"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
)

// BenchmarkAllReduce is two ranks in one process; compare with BenchmarkCopy,
// which moves the same number of bytes within memory.
func BenchmarkAllReduce(b *testing.B) {
	for _, tr := range []string{"local", "tcp", "shm", "arena"} {
		for _, size := range []int{1 << 10, 64 << 10, 1 << 20, 25 << 20} {
			b.Run(fmt.Sprintf("%s/%d", tr, size), func(b *testing.B) {
				kind := tr
				if tr == "arena" { // shm, with buffers from Alloc
					kind = "shm"
				}
				groups := commtest.Groups(b, 2, comm.Options{Transport: kind})
				b.SetBytes(int64(size))
				commtest.Run(b, groups, func(g *comm.Group, s *device.CPUStream) error {
					buf := device.Of(make([]float32, size/4))
					if tr == "arena" {
						var err error
						if buf, err = g.Alloc(size); err != nil {
							return err
						}
					}
					if err := g.AllReduce(s, buf, dtype.F32, comm.Sum).Wait(ctx); err != nil {
						return err
					}
					if g.Rank() == 0 {
						b.ResetTimer()
					}
					for range b.N {
						g.AllReduce(s, buf, dtype.F32, comm.Sum)
					}
					return s.Synchronize(ctx)
				})
			})
		}
	}
}

func BenchmarkCopy(b *testing.B) {
	for _, size := range []int{64 << 10, 1 << 20, 25 << 20} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			src, dst := make([]byte, size), make([]byte, size)
			b.SetBytes(int64(size))
			for b.Loop() {
				copy(dst, src)
			}
		})
	}
}
