package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"golang.org/x/sys/unix"

	"github.com/gorun-dev/gorun/launcher/agent"
	"github.com/gorun-dev/gorun/launcher/config"
	"github.com/gorun-dev/gorun/launcher/status"
)

// patience bounds every wait of a script, and every command of a test. It is no
// measure of speed.
const patience = 3 * time.Minute

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){
		agent.GuardName: func() { agent.Guard(os.Stdin) },

		"gorun": func() {
			os.Exit(run(trainer{run: testTraining, plan: fakePlan, wantsGPUs: func(*config.Config) bool { return false }}))
		},
		"status": func() { os.Exit(exitsWith(os.Args[1:])) },
		"probe":  func() { os.Exit(probe(os.Args[1:])) },
	})
}

// TestScripts runs testdata/*.txt, each a story with real processes. Beside
// testscript's own commands they have:
//
//	fifo NAME...          make named pipes, by which processes tell what they reached
//	await NAME VAR...     read a line from one, and set variables to its words
//	signal SIG PID...     send a signal; STOP: and wait until they have stopped
//	gone PID...           wait until these processes have ended
//	port VAR...           find free TCP ports
//	exec status N CMD...  run CMD, and succeed where its exit status is N
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata",
		RequireExplicitExec: true,
		Setup: func(e *testscript.Env) error {
			e.Setenv("GORACE", "atexit_sleep_ms=0") // the race detector lets every process linger for 1 s
			return nil
		},
		Cmds: scriptCommands,
	})
}

var scriptCommands = map[string]func(*testscript.TestScript, bool, []string){
	"fifo": fifo, "await": await, "signal": send, "gone": gone, "port": port,
}

func fifo(ts *testscript.TestScript, _ bool, args []string) {
	for _, name := range args {
		ts.Check(unix.Mkfifo(ts.MkAbs(name), 0o600))
	}
}

func await(ts *testscript.TestScript, _ bool, args []string) {
	// Opened for writing too, it neither waits for a writer nor ends with one.
	f, err := os.OpenFile(ts.MkAbs(args[0]), os.O_RDWR|unix.O_NONBLOCK, 0)
	ts.Check(err)
	defer f.Close()
	ts.Check(f.SetReadDeadline(time.Now().Add(patience)))
	var line []byte
	for b := make([]byte, 1); len(line) == 0 || line[len(line)-1] != '\n'; line = append(line, b[0]) {
		if _, err := f.Read(b); err != nil {
			ts.Fatalf("await %s: %v", args[0], err)
		}
	}
	words := strings.Fields(string(line))
	if len(words) < len(args)-1 {
		ts.Fatalf("await %s: %q, want %d words", args[0], line, len(args)-1)
	}
	for i, name := range args[1:] {
		ts.Setenv(name, words[i])
	}
}

func send(ts *testscript.TestScript, _ bool, args []string) {
	for _, pid := range pids(ts, args[1:]) {
		ts.Check(unix.Kill(pid, unix.SignalNum("SIG"+args[0])))
		for end := time.Now().Add(patience); args[0] == "STOP" && !stopped(ts, pid); runtime.Gosched() {
			if time.Now().After(end) {
				ts.Fatalf("process %d does not stop", pid)
			}
		}
	}
}

// stopped says whether a process has come to a stop; a busy machine lets it go on for
// a while.
func stopped(ts *testscript.TestScript, pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	ts.Check(err)
	return strings.Contains(string(b), ") T ")
}

func gone(ts *testscript.TestScript, _ bool, args []string) {
	for _, pid := range pids(ts, args) {
		fd, err := unix.PidfdOpen(pid, 0)
		if errors.Is(err, unix.ESRCH) {
			continue
		}
		ts.Check(err)
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(patience.Milliseconds()))
		for errors.Is(err, unix.EINTR) {
			n, err = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(patience.Milliseconds()))
		}
		unix.Close(fd)
		ts.Check(err)
		if n == 0 {
			ts.Fatalf("process %d still runs after %s", pid, patience)
		}
	}
}

func pids(ts *testscript.TestScript, args []string) []int {
	var out []int
	for _, a := range args {
		pid, err := strconv.Atoi(a)
		ts.Check(err)
		out = append(out, pid)
	}
	return out
}

func port(ts *testscript.TestScript, _ bool, args []string) {
	for _, name := range args {
		l, err := listenBelow()
		ts.Check(err)
		defer l.Close()
		_, p, err := net.SplitHostPort(l.Addr().String())
		ts.Check(err)
		ts.Setenv(name, p)
	}
}

// listenBelow listens on a port below those that the kernel gives to connections:
// such a one might be taken again before the script uses it.
func listenBelow() (l net.Listener, err error) {
	for range 100 {
		if l, err = net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", 15000+rand.IntN(15000))); err == nil {
			return l, nil
		}
	}
	return nil, err
}

// exitsWith runs a command and compares its exit status.
func exitsWith(args []string) int {
	cmd := exec.Command(args[1], args[2:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	runtime.LockOSThread() // a script that fails kills us, and this then CMD
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL}
	err := cmd.Run()
	if cmd.ProcessState == nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	got := cmd.ProcessState.ExitCode() // -1 where a signal ended it
	if want, _ := strconv.Atoi(args[0]); got != want {
		fmt.Fprintf(os.Stderr, "exit status %d, want %d\n", got, want)
		return 1
	}
	return 0
}

// probe is a worker that does what a shell cannot.
func probe(args []string) int {
	switch args[0] {
	case "panic":
		panic("the sky falls")
	case "flood": // lines bytes: as fast as it can, numbered
		lines, _ := strconv.Atoi(args[1])
		width, _ := strconv.Atoi(args[2])
		var b strings.Builder
		for i := range lines {
			fmt.Fprintf(&b, "%d %s\n", i, strings.Repeat("x", width))
		}
		os.Stdout.WriteString(b.String())
	case "garbage": // every byte value, no newline at the end
		b := make([]byte, 1024)
		for i := range b {
			b[i] = byte(i)
		}
		os.Stdout.Write(b)
	case "limits": // prints whether stdin is empty
		n, err := os.Stdin.Read(make([]byte, 1))
		fmt.Println("stdin:", n, err)
	default:
		fmt.Fprintln(os.Stderr, "probe: unknown", args)
		return 2
	}
	return 0
}

// fakeTraining stands for the built-in training: rank 0 reports max_steps steps.
func fakeTraining(ctx context.Context, cfg *config.Config) error {
	w, err := status.FromEnv()
	if err != nil {
		return err
	}
	defer w.Close()
	if os.Getenv("RANK") != "0" {
		return w.Message("lr %g here too", cfg.Train.LR)
	}
	if name := os.Getenv("TEST_HOLD"); name != "" {
		f, err := os.OpenFile(name, os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		fmt.Fprintln(f, os.Getpid(), os.Getppid())
		f.Close()
		<-ctx.Done()
		return w.Message("saved before the end: %v", context.Cause(ctx))
	}
	for step := 1; step <= cfg.Train.MaxSteps; step++ {
		p := status.Progress{Step: step, Total: cfg.Train.MaxSteps, Loss: status.Float(1 / float64(step)), LR: status.Float(cfg.Train.LR)}
		if step%10 == 0 {
			val := status.Float(2 / float64(step))
			p.ValLoss = &val
		}
		if err := w.Progress(p); err != nil {
			return err
		}
	}
	if err := w.Sample(status.Sample{Step: cfg.Train.MaxSteps, Text: "once upon\na time"}); err != nil {
		return err
	}
	return w.Summary("done", "resume "+cfg.Checkpoint.Resume, "output "+filepath.Base(cfg.Output))
}

func fakePlan(cfg *config.Config, world, local int) (string, error) {
	return fmt.Sprintf("the plan for %d ranks\n", world), nil
}
