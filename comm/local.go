package comm

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// Local makes n ranks that are goroutines of this process, for tests, examples and
// programs without processes: groups[r] is rank r's, to be used by a goroutine of its
// own, and closed by it, for a collective waits until all ranks have called it. The
// options are left out, the same for all ranks, or given for each rank, as those with a
// GPU each need them. Of the options, Rank, Size and Store are set here; Transport may
// be local (the default), tcp over loopback, or shm. Timeout is a minute where it is 0.
// Where a rank cannot be made none is, and the error is that of all which failed.
func Local(n int, options ...Options) ([]*Group, error) {
	if n < 1 || len(options) > 1 && len(options) != n {
		return nil, fmt.Errorf("comm: Local(%d) with %d options: want at least one rank, and options once or for each rank", n, len(options))
	}
	h := newHub()
	return join(n, func(rank int) Options {
		var o Options
		switch len(options) {
		case 0:
		case 1:
			o = options[0]
		default:
			o = options[rank]
		}
		if o.Transport == "" {
			o.Transport = "local"
		}
		o.Rank, o.Size, o.hub = rank, n, h
		if o.Store == nil {
			o.Store = h
		}
		if o.Timeout == 0 {
			o.Timeout = time.Minute
		}
		return o
	})
}

// join makes all ranks of a group at once.
func join(n int, options func(rank int) Options) ([]*Group, error) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	groups, errs := make([]*Group, n), make([]error, n)
	var ranks sync.WaitGroup
	for r := range n {
		ranks.Go(func() {
			groups[r], errs[r] = New(ctx, options(r))
			if errs[r] != nil {
				cancel()
			}
		})
	}
	ranks.Wait()
	err := errors.Join(errs...)
	if err == nil {
		return groups, nil
	}
	for _, g := range groups {
		if g != nil {
			g.Close()
		}
	}
	return nil, err
}
