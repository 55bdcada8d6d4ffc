package dma

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/gorun-dev/gorun/comm/transport"
)

// directTries is those of tries that Direct makes.
func directTries(ranks int, counts ...int) []try {
	var all []try
	for _, c := range tries(ranks, counts...) {
		c.offset = 16 * (c.offset % 3)
		c.dt = gradients[int(c.dt)%len(gradients)]
		switch {
		case c.kind == transport.AllReduce:
		case c.kind == transport.ReduceScatter && c.count*c.dt.Size()%16 == 0:
		default:
			continue
		}
		all = append(all, c)
	}
	return all
}

// Sums of arrays where they are, one call behind the other.
func TestDirectEmulated(t *testing.T) {
	for _, n := range []int{2, 3, 4} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			teams := emulated(t, n)
			ranks(t, n, func(rank int) error {
				team := teams[rank]
				const most = 1000
				host, err := team.d.AllocHost(4 * n * 8 * most)
				if err != nil {
					return err
				}
				memory, err := team.Alloc(t.Context(), host.Len())
				if err != nil {
					return err
				}
				s, err := newStream(team.d, "comm")
				if err != nil {
					return err
				}
				for _, c := range directTries(n, 0, 1, 13, 16, 304, most) {
					if err := c.run(team, s, memory, host, team.Direct); err != nil {
						return errors.Join(err, team.Abort(err, time.Minute))
					}
				}
				return errors.Join(s.Close(), team.d.Free(host))
			})
		})
	}
}
