package comm_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/gorun-dev/gorun/comm"
	"github.com/gorun-dev/gorun/comm/store"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
)

// TestMain lets the test binary be a rank of a job: see rankProcess.
func TestMain(m *testing.M) {
	if what := os.Getenv("COMM_TEST_RANK"); what != "" {
		os.Exit(rankProcess(what))
	}
	os.Exit(m.Run())
}

// rankProcess joins the world and does what the test asks for.
func rankProcess(what string) int {
	if what == "store" { // on 10.83.0.1, until its input ends: see network
		l, err := net.Listen("tcp", "10.83.0.1:0")
		if err != nil {
			fmt.Println(err)
			return 1
		}
		srv := store.Serve(l, store.ServerOptions{Token: "secret"})
		fmt.Println(l.Addr())
		io.Copy(io.Discard, os.Stdin)
		srv.Close()
		return 0
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	if strings.HasPrefix(what, "gpu") {
		return gpuProcess(ctx, what)
	}
	g, err := comm.Join(ctx, comm.Options{Transport: os.Getenv("COMM_TEST_TRANSPORT"), Timeout: time.Minute})
	if err != nil {
		fmt.Println(err)
		return 1
	}
	s := device.NewCPUStream("rank", nil)
	x := []int32{int32(g.Rank() + 1)}
	rounds := 1000
	if what == "long" {
		rounds = 1 << 30
	}
	for i := range rounds {
		w := g.AllReduce(s, device.Of(x), dtype.I32, comm.Max)
		if what == "long" && i%100 == 0 && w.Wait(ctx) != nil {
			break
		}
		if what == "die" && g.Rank() == 1 && i == 10 {
			if err := w.Wait(ctx); err != nil {
				fmt.Println(err)
			}
			os.Exit(3)
		}
	}
	if err := s.Synchronize(ctx); err != nil {
		fmt.Println(err)
		return 2
	}
	fmt.Print("max ", x[0])
	for _, w := range g.Stats().Wires {
		fmt.Print(" ", w.Transport)
	}
	fmt.Println()
	if err := g.Close(); err != nil {
		fmt.Println(err)
		return 4
	}
	return 0
}

// world starts n processes as gorun would, and returns what they print.
func world(t *testing.T, n int, what, transport string) []string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := store.Serve(l, store.ServerOptions{Token: "secret"})
	t.Cleanup(func() { srv.Close() })
	cmds, outs := make([]*exec.Cmd, n), make([]strings.Builder, n)
	for r := range n {
		cmds[r] = exec.Command(os.Args[0])
		cmds[r].Env = append(os.Environ(), "COMM_TEST_RANK="+what, "COMM_TEST_TRANSPORT="+transport,
			fmt.Sprint("RANK=", r), fmt.Sprint("WORLD_SIZE=", n), fmt.Sprint("LOCAL_RANK=", r), fmt.Sprint("LOCAL_WORLD_SIZE=", n),
			"GROUP_RANK=0", "GORUN_STORE="+l.Addr().String(), "GORUN_TOKEN=secret", "GORUN_JOB=test", "GORUN_ATTEMPT=0")
		cmds[r].Stdout, cmds[r].Stderr = &outs[r], &outs[r]
		if err := cmds[r].Start(); err != nil {
			t.Fatal(err)
		}
	}
	var printed []string
	for r, c := range cmds {
		err := c.Wait()
		printed = append(printed, fmt.Sprintf("%s[%v]", outs[r].String(), err))
	}
	return printed
}

func TestJoinFromTheEnvironment(t *testing.T) {
	for tr, wires := range map[string]string{"auto": "shm", "tcp": "tcp"} {
		for r, out := range world(t, 3, "work", tr) {
			if out != "max 3 "+wires+"\n[<nil>]" {
				t.Errorf("%s: rank %d says %q", tr, r, out)
			}
		}
	}
}

// A process that ends in the midst of the job is named by all others.
func TestTheOthersNameAProcessThatDied(t *testing.T) {
	for _, tr := range []string{"auto", "tcp"} {
		for r, out := range world(t, 4, "die", tr) {
			switch {
			case r == 1 && out != "[exit status 3]":
				t.Errorf("%s: rank 1 says %q", tr, out)
			case r != 1 && (!strings.Contains(out, "rank 1 on ") || !strings.Contains(out, "[exit status 2]")):
				t.Errorf("%s: rank %d says %q", tr, r, out)
			}
		}
	}
}

func TestJoinWithoutTheLauncherSaysWhatToDo(t *testing.T) {
	t.Setenv("RANK", "0")
	_, err := comm.Join(context.Background())
	if err == nil || !strings.Contains(err.Error(), "WORLD_SIZE is not in the environment: start the program with gorun --nproc N -- prog") {
		t.Errorf("got %v", err)
	}
	for _, name := range []string{"WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GORUN_ATTEMPT"} {
		t.Setenv(name, "1")
	}
	for _, name := range []string{"GORUN_STORE", "GORUN_TOKEN", "GORUN_JOB"} {
		t.Setenv(name, "x")
	}
	t.Setenv("RANK", "one")
	if _, err := comm.Join(context.Background()); err == nil || !strings.Contains(err.Error(), `RANK="one"`) {
		t.Errorf("got %v", err)
	}
	t.Setenv("RANK", "1")
	if _, err := comm.Join(context.Background()); err == nil || !strings.Contains(err.Error(), "rank 1 of 1") {
		t.Errorf("got %v", err)
	}
}
