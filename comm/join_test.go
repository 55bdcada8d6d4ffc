package comm_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
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
	return processes(t, n, what, transport, "LOCAL_WORLD_SIZE="+strconv.Itoa(n),
		"GROUP_RANK=0", "GORUN_STORE="+l.Addr().String(), "GORUN_TOKEN=secret", "GORUN_JOB=test", "GORUN_ATTEMPT=0")
}

// processes starts n ranks with variables in their environment, and returns what they
// print.
func processes(t *testing.T, n int, what, transport string, variables ...string) []string {
	t.Helper()
	cmds, outs := make([]*exec.Cmd, n), make([]strings.Builder, n)
	for r := range n {
		cmds[r] = exec.Command(os.Args[0])
		cmds[r].Env = append(os.Environ(), "COMM_TEST_RANK="+what, "COMM_TEST_TRANSPORT="+transport,
			fmt.Sprint("RANK=", r), fmt.Sprint("WORLD_SIZE=", n), fmt.Sprint("LOCAL_RANK=", r))
		cmds[r].Env = append(cmds[r].Env, variables...)
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

// Variables of torch.distributed alone make a job too: rank 0 serves the store.
func TestJoinFromTheEnvironmentOfTorch(t *testing.T) {
	for name, variables := range map[string][]string{
		"a script":     {"MASTER_ADDR=127.0.0.1", "MASTER_PORT=%d"},
		"a secret":     {"MASTER_ADDR=localhost", "MASTER_PORT=%d", "GORUN_TOKEN=secret"},
		"its torchrun": {"MASTER_ADDR=localhost", "MASTER_PORT=1", "TORCHELASTIC_USE_AGENT_STORE=True", "TORCHELASTIC_RESTART_COUNT=2", "TORCHELASTIC_RUN_ID=none", "GORUN_STORE_PORT=%d"},
		"other hosts'": {"MASTER_ADDR=0.0.0.0", "MASTER_PORT=%d", "GORUN_TOKEN=secret"},
	} {
		t.Run(name, func(t *testing.T) {
			for try := 0; ; try++ {
				var env []string
				for _, v := range variables {
					env = append(env, strings.ReplaceAll(v, "%d", strconv.Itoa(freePort(t))))
				}
				printed := processes(t, 3, "work", "auto", env...)
				if try < 5 && strings.Contains(printed[0], "address already in use") {
					continue // somebody was faster
				}
				for r, out := range printed {
					if out != "max 3 shm\n[<nil>]" {
						t.Errorf("rank %d says %q", r, out)
					}
				}
				return
			}
		})
	}
}

// freePort is a port of 127.0.0.1 that was free just now.
func freePort(t *testing.T) int {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// What is missing or wrong in the environment is said in one sentence.
func TestJoinSaysWhatTheEnvironmentLacks(t *testing.T) {
	gorun := "RANK=1 WORLD_SIZE=2 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 GROUP_RANK=0 GORUN_STORE=x GORUN_TOKEN=x GORUN_JOB=x GORUN_ATTEMPT=0"
	torch := "RANK=0 WORLD_SIZE=2 MASTER_ADDR=localhost MASTER_PORT=1"
	for _, c := range []struct{ environment, change, want string }{
		{"", "", "no job to join: RANK is not in the environment: run the program with gorun --nproc 4 -- ./prog"},
		{"RANK=0", "", "WORLD_SIZE is not in the environment"},
		{"RANK=0 WORLD_SIZE=1", "", "MASTER_ADDR is not in the environment: run the program with gorun"},
		{gorun, "RANK=one", `RANK="one" is no number`},
		{gorun, "WORLD_SIZE=1", "rank 1 of 1"},
		{gorun, "LOCAL_WORLD_SIZE=3", "local rank 1 of 3"},
		{torch, "RANK=2", "rank 2 of 2"},
		{torch, "MASTER_PORT=0", "MASTER_PORT=0: want a port from 1 to 65535"},
		{torch, "GORUN_STORE_PORT=x", `GORUN_STORE_PORT="x"`},
		{torch, "MASTER_ADDR=node1", "MASTER_ADDR=node1 can be reached by others: set GORUN_TOKEN"},
		{torch, "TORCHELASTIC_USE_AGENT_STORE=True", "torchrun's own store has MASTER_PORT=1: set GORUN_STORE_PORT"},
		{torch, "MASTER_ADDR=127.0.0.1 MASTER_PORT=" + taken(t), "rank 0 of 2 cannot serve the job's store: listen tcp"},
	} {
		t.Run(c.environment+" "+c.change, func(t *testing.T) {
			for _, name := range strings.Fields(gorun + " " + torch + " TORCHELASTIC_USE_AGENT_STORE=x TORCHELASTIC_RESTART_COUNT=x GORUN_STORE_PORT=x") {
				name, _, _ = strings.Cut(name, "=")
				t.Setenv(name, "") // puts the old value back when the test ends
				os.Unsetenv(name)
			}
			for _, v := range strings.Fields(c.environment + " " + c.change) {
				name, value, _ := strings.Cut(v, "=")
				t.Setenv(name, value)
			}
			_, err := comm.Join(t.Context())
			if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("got %v, want one line with %q", err, c.want)
			}
		})
	}
}

// taken is a port at which somebody listens while the test runs.
func taken(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return strconv.Itoa(l.Addr().(*net.TCPAddr).Port)
}
