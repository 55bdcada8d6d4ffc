package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/gorun-dev/gorun/launcher/agent"
	"github.com/gorun-dev/gorun/launcher/cluster"
)

// interruptible returns a context that ends with the user's signal; its cause is then
// the *agent.ExitError with which a job ends that the user has ended.
func interruptible() (ctx context.Context, stop func()) {
	ctx, end := context.WithCancelCause(context.Background())
	signals := make(chan os.Signal, 1)
	handled := []os.Signal{unix.SIGINT, unix.SIGTERM}
	if !signal.Ignored(unix.SIGHUP) { // nohup
		handled = append(handled, unix.SIGHUP)
	}
	signal.Notify(signals, handled...)
	go routineInterrupt(ctx, signals, end)
	return ctx, func() {
		signal.Stop(signals)
		end(nil)
	}
}

// routineInterrupt waits for the first signal. One, started by interruptible, whose
// stop ends it.
func routineInterrupt(ctx context.Context, signals <-chan os.Signal, end context.CancelCauseFunc) {
	select {
	case s := <-signals:
		number := s.(syscall.Signal)
		end(&agent.ExitError{
			Code:    128 + int(number),
			Failure: cluster.Failure{Kind: cluster.UserSignal, Rank: -1, Code: 128 + int(number), Cause: "ended by " + unix.SignalName(number)},
		})
	case <-ctx.Done():
	}
}
