package comm_test

import (
	"context"
	"fmt"
	"sync"

	"github.com/gorun-dev/gorun/comm"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
)

// Three ranks add up their arrays. In a program that gorun starts, each process
// would call comm.Join instead.
func ExampleLocal() {
	groups, err := comm.Local(3)
	if err != nil {
		panic(err)
	}
	sums := make([][]float32, 3)
	var ranks sync.WaitGroup
	for _, g := range groups {
		ranks.Go(func() {
			stream := device.NewCPUStream("comm", nil)
			x := []float32{1, float32(g.Rank())}
			g.AllReduce(stream, device.Of(x), dtype.F32, comm.Sum)
			if err := stream.Synchronize(context.Background()); err != nil {
				panic(err)
			}
			sums[g.Rank()] = x
			stream.Close()
			g.Close()
		})
	}
	ranks.Wait()
	fmt.Println(sums)
	// Output: [[3 3] [3 3] [3 3]]
}
