package comm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"

	"github.com/gorun-dev/gorun/comm/store"
)

// Join makes this process a rank of its job's world, as the environment says. Of the
// options, which may be left out, Rank, Size and Store come from there; which GPU is
// this rank's, the caller says, by LOCAL_RANK as a rule. It returns when all ranks have
// joined, or when ctx ends (without a deadline: Options.Timeout).
//
// gorun sets all that Join reads. Without gorun it takes what torch.distributed does,
// where another launcher or a script sets it: RANK, WORLD_SIZE, MASTER_ADDR and
// MASTER_PORT, and of torchrun the number of restarts. Rank 0 then serves at that
// address what the ranks find each other by, and its Close waits until the others have
// closed too, at most Options.Timeout. An address that other hosts can reach needs a
// secret of the job's in GORUN_TOKEN, the same on all ranks. Where torchrun itself has
// taken MASTER_PORT, GORUN_STORE_PORT names another port. What such a launcher does not
// do is gorun's: to end the other ranks at once where one has died.
//
// Close ends the connection to the job's store too. The error says what is missing in
// the environment, which rank has not come, or whose options differ.
func Join(ctx context.Context, options ...Options) (*Group, error) {
	if len(options) > 1 {
		return nil, fmt.Errorf("comm: Join takes options at most once, not %d times", len(options))
	}
	var o Options
	if len(options) == 1 {
		o = options[0]
	}
	world, err := readWorld()
	if err != nil {
		return nil, err
	}
	o.Rank, o.Size = world.rank, world.size
	serving, err := world.serve()
	if err != nil {
		return nil, err
	}
	client, err := store.Dial(ctx, world.store, store.Options{Token: world.token, Job: world.job, Attempt: world.attempt, Host: o.Host})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("comm: rank %d of %d: %w", world.rank, world.size, err), serving.stop())
	}
	var g *Group
	o.Store, o.release = client, func() error {
		client.Close()
		return serving.end(g)
	}
	if g, err = New(ctx, o); err != nil {
		client.Close()
		serving.end(nil) // its error would be that the others, too, are late
		return nil, err
	}
	return g, nil
}

// world is what the environment says about a job.
type world struct {
	rank, size int
	store      string // host:port
	listen     string // where rank 0 serves the store; empty where gorun does
	token, job string
	attempt    int
}

// readWorld reads gorun's variables, or torch.distributed's where there are none of
// gorun's.
func readWorld() (world, error) {
	e := environment{}
	w := world{rank: e.number("RANK"), size: e.number("WORLD_SIZE")}
	local, localSize := 0, 1
	if _, gorun := os.LookupEnv("GORUN_STORE"); gorun {
		w.store, w.token, w.job = e.text("GORUN_STORE"), e.text("GORUN_TOKEN"), e.text("GORUN_JOB")
		w.attempt = e.number("GORUN_ATTEMPT")
		e.number("GROUP_RANK")
		local, localSize = e.number("LOCAL_RANK"), e.number("LOCAL_WORLD_SIZE")
	} else {
		e.torch(&w)
	}
	if e.err != nil {
		return world{}, e.err
	}
	if w.rank >= w.size || local >= localSize || localSize > w.size {
		return world{}, fmt.Errorf("comm: rank %d of %d and local rank %d of %d, as the environment says, cannot be: "+
			"RANK, WORLD_SIZE, LOCAL_RANK or LOCAL_WORLD_SIZE was changed after the launcher set it", w.rank, w.size, local, localSize)
	}
	return w, nil
}

// environment reads variables until one is missing or wrong.
type environment struct{ err error }

func (e *environment) text(name string) string {
	v, ok := os.LookupEnv(name)
	if !ok && e.err == nil {
		e.err = fmt.Errorf("comm: no job to join: %s is not in the environment: run the program with gorun --nproc 4 -- ./prog (goroutines as ranks: comm.Local)", name)
	}
	return v
}

func (e *environment) number(name string) int {
	v := e.text(name)
	n, err := strconv.Atoi(v)
	if (err != nil || n < 0) && e.err == nil {
		e.err = fmt.Errorf("comm: %s=%q is no number of 0 or more: the launcher sets it, leave it as it is", name, v)
	}
	return n
}
