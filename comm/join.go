package comm

import (
	"context"
	"fmt"
	"os"
	"strconv"

	"github.com/gorun-dev/gorun/comm/store"
)

// Join makes this process a rank of its job's world, as gorun has set it in the
// environment. Of the options, which may be left out, Rank, Size and Store come
// from there; which GPU is this rank's, the caller says, by LOCAL_RANK as a rule. Close
// also ends the connection to the job's store.
func Join(ctx context.Context, options ...Options) (*Group, error) {
	if len(options) > 1 {
		return nil, fmt.Errorf("comm: Join takes options at most once, not %d times", len(options))
	}
	var o Options
	if len(options) == 1 {
		o = options[0]
	}
	e := environment{}
	rank, size := e.number("RANK"), e.number("WORLD_SIZE")
	localRank, localSize := e.number("LOCAL_RANK"), e.number("LOCAL_WORLD_SIZE")
	e.number("GROUP_RANK")
	addr, token, job := e.text("GORUN_STORE"), e.text("GORUN_TOKEN"), e.text("GORUN_JOB")
	attempt := e.number("GORUN_ATTEMPT")
	if e.err != nil {
		return nil, e.err
	}
	if rank >= size || localRank >= localSize || localSize > size {
		return nil, fmt.Errorf("comm: rank %d of %d and local rank %d of %d, as the environment says, cannot be: "+
			"RANK, WORLD_SIZE, LOCAL_RANK or LOCAL_WORLD_SIZE was changed after gorun set it", rank, size, localRank, localSize)
	}
	client, err := store.Dial(ctx, addr, store.Options{Token: token, Job: job, Attempt: attempt, Host: o.Host})
	if err != nil {
		return nil, fmt.Errorf("comm: rank %d of %d: %w", rank, size, err)
	}
	o.Rank, o.Size, o.Store, o.release = rank, size, client, client.Close
	g, err := New(ctx, o)
	if err != nil {
		client.Close()
		return nil, err
	}
	return g, nil
}

// environment reads variables until one is missing or wrong.
type environment struct{ err error }

func (e *environment) text(name string) string {
	v, ok := os.LookupEnv(name)
	if !ok && e.err == nil {
		e.err = fmt.Errorf("comm: %s is not in the environment: start the program with gorun --nproc N -- prog, or use comm.New or comm.Local", name)
	}
	return v
}

func (e *environment) number(name string) int {
	v := e.text(name)
	n, err := strconv.Atoi(v)
	if (err != nil || n < 0) && e.err == nil {
		e.err = fmt.Errorf("comm: %s=%q is no number of 0 or more: gorun sets it, leave it as it is", name, v)
	}
	return n
}
