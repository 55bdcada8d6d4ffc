// Command paramsync shows how a running job hands out its weights: rank 0 publishes
// them behind each step, and whoever comes later fetches the newest ones over gRPC, in
// chunks with checksums, going on where it was when the connection breaks.
//
//	go build -o paramsync ./examples/paramsync
//	gorun --nproc 4 -- ./paramsync                # trains and serves, until Ctrl-C
//	./paramsync --from 127.0.0.1:7070             # elsewhere, at any time
//
// It is for those who are no ranks: evaluation, inference, a program that starts from
// what another one has learnt. Ranks get their weights from ddp.Wrap. Nothing here keeps
// strangers out: serve on loopback or a private network.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"net"
	"os"
	"os/signal"
	"syscall"

	"google.golang.org/grpc"

	"github.com/gorun-dev/gorun/comm"
	pb "github.com/gorun-dev/gorun/examples/paramsync/paramsyncpb"
)

func main() {
	log.SetFlags(0)
	from := flag.String("from", "", "fetch the weights of the job that serves at this host:port, and end")
	listen := flag.String("listen", "127.0.0.1:7070", "where rank 0 serves the weights")
	steps := flag.Int("steps", 0, "how many steps to train, 0: until interrupted")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var err error
	if *from != "" {
		err = join(ctx, *from)
	} else {
		err = work(ctx, *listen, *steps)
	}
	if err != nil {
		log.Fatal(err)
	}
}

// join is the late joiner.
func join(ctx context.Context, addr string) error {
	r := newRegression()
	step, err := fetch(ctx, addr, r.vars())
	if err != nil {
		return err
	}
	fmt.Printf("weights of step %d: loss %.6f\n", step, r.loss())
	return nil
}

// work is a rank of the job.
func work(ctx context.Context, addr string, steps int) error {
	// An interrupt reaches every rank; train makes them stop behind the same step.
	group, err := comm.Join(context.WithoutCancel(ctx))
	if err != nil {
		return err
	}
	defer group.Close()
	p := &publisher{job: fmt.Sprintf("%s-%d", group.Host(0), os.Getpid())}
	if group.Rank() == 0 {
		l, err := net.Listen("tcp", addr)
		if err != nil {
			return fmt.Errorf("serving the weights: %w", err)
		}
		fmt.Printf("weights at %s\n", l.Addr())
		server := grpc.NewServer()
		pb.RegisterWeightsServer(server, p)
		served := make(chan error, 1)
		go func() { served <- server.Serve(l) }() // ends with Stop
		defer func() {
			server.Stop()
			if err := <-served; err != nil {
				log.Print(err)
			}
		}()
	}
	r := newRegression()
	done, err := train(ctx, group, r, steps, p)
	if err == nil && group.Rank() == 0 {
		fmt.Printf("stopped behind step %d: loss %.6f\n", done, r.loss())
	}
	return err
}
