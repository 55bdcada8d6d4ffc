package shm

import (
	"bufio"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gorun-dev/gorun/comm/transport"
	"github.com/gorun-dev/gorun/runtime/dtype"
)

// A rank that is a process runs this test binary again; the environment says which
// role it plays. It prints lines on stdout: "key <hex>" to be passed to the other
// ranks, and what its role has to say. It reads keys from stdin.
const (
	roleVar = "SHM_TEST_ROLE"
	rankVar = "SHM_TEST_RANK"
	sizeVar = "SHM_TEST_SIZE"
)

func TestMain(m *testing.M) {
	if role := os.Getenv(roleVar); role != "" {
		os.Exit(actor(role))
	}
	os.Exit(m.Run())
}

// pipe is the Exchange of a rank in a process.
type pipe struct{}

func (pipe) Set(_ context.Context, key string, value []byte) error {
	_, err := fmt.Printf("key %x\n", value)
	return err
}

func (pipe) Wait(context.Context, string) ([]byte, error) {
	line, err := bufio.NewReader(os.Stdin).ReadString('\n')
	if err != nil {
		return nil, err
	}
	return hex.DecodeString(strings.TrimSpace(line))
}

var roles = map[string]func(t *Team) error{
	"matrix": func(t *Team) error {
		if err := allReduceMatrix(t, counts); err != nil {
			return err
		}
		if err := collectiveMatrix(t, []int{0, 1, 70003}); err != nil {
			return err
		}
		return allToAll(t, dtype.F32, 1, func(from, to int) int { return from*1000 + to })
	},
	// loop reduces until something happens.
	"loop": func(t *Team) error { return loop(t, nil) },
	// impatient does so too. Rank 0 then waits for rank 1 alone, and not for long: it
	// begins when the others have.
	"impatient": func(t *Team) error {
		return loop(t, func(c *transport.Call) error {
			if t.rank != 0 {
				return nil
			}
			if err := errors.Join(t.awaitEntry(2), t.awaitEntry(3)); err != nil {
				return err
			}
			c.Deadline = time.Now().Add(2 * time.Second)
			return nil
		})
	},
	// limited may not make files, not even without a name, beyond what it has.
	"limited": func(t *Team) error {
		limit := uint64(t.fileEnd + 1<<20)
		if t.rank == 0 {
			limit = 1 << 40
		}
		if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: limit, Max: limit}); err != nil {
			return err
		}
		if _, err := t.Alloc(2 << 20); !errors.Is(err, unix.EFBIG) || !strings.Contains(err.Error(), "rank 11") {
			return fmt.Errorf("beyond the limit: %v", err)
		}
		return t.Barrier(call(transport.Barrier, 0, dtype.U8, 1))
	},
	"bench": benchmarkRank,
}

// loop reduces for ever, and says so after a while. From then on change, if there is
// one, gets every call.
func loop(t *Team, change func(c *transport.Call) error) error {
	arena, err := t.Alloc(4 << 20)
	if err != nil {
		return err
	}
	own := make([]byte, 4<<20)
	for seq := 0; ; seq++ {
		for _, buf := range [][]byte{arena, own, own[:256]} {
			c := call(transport.AllReduce, transport.Sum, dtype.I32, seq)
			c.Count = uint64(len(buf) / 4)
			if change != nil && seq > 3 {
				if err := change(&c); err != nil {
					return err
				}
			}
			if err := t.AllReduce(c, buf); err != nil {
				return err
			}
		}
		if seq == 3 {
			fmt.Println("started")
		}
	}
}

func actor(role string) int {
	rank, _ := strconv.Atoi(os.Getenv(rankVar))
	size, _ := strconv.Atoi(os.Getenv(sizeVar))
	t, err := Join(context.Background(), Options{Rank: rank, Size: size, Ranks: groupRanks(size), Key: "k", Exchange: pipe{}, Timeout: time.Minute})
	if err == nil {
		err = roles[role](t)
	}
	if err != nil {
		var m *transport.TimeoutError
		var p *transport.PeerError
		switch {
		case errors.As(err, &p):
			fmt.Printf("peer %d: %v\n", p.Peer, err)
		case errors.As(err, &m):
			fmt.Printf("timeout %d: %v\n", m.Peer, err)
		default:
			fmt.Printf("error: %v\n", err)
		}
		return 1
	}
	if err := t.Close(); err != nil {
		fmt.Printf("error: %v\n", err)
		return 1
	}
	fmt.Println("fine")
	return 0
}

// company is a team of processes.
type company struct {
	cmds  []*exec.Cmd
	lines []chan string // what each rank says, without keys; closed at its end
}

// processes starts size ranks in a role. They end with the test.
func processes(t testing.TB, size int, role string) *company {
	t.Helper()
	c := &company{}
	var inputs []io.WriteCloser
	var outputs []io.Reader
	for r := range size {
		cmd := exec.Command("/proc/self/exe")
		cmd.Env = append(os.Environ(), roleVar+"="+role, rankVar+"="+strconv.Itoa(r), sizeVar+"="+strconv.Itoa(size))
		cmd.Stderr = os.Stderr
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			cmd.Process.Kill()
			cmd.Wait()
		})
		c.cmds = append(c.cmds, cmd)
		c.lines = append(c.lines, make(chan string, 10000))
		inputs, outputs = append(inputs, in), append(outputs, out)
	}
	for r := range size {
		go c.listen(r, outputs[r], inputs[1:])
	}
	return c
}

// listen passes on what rank says, keys to the others and the rest to the test. It
// ends with the rank's output.
func (c *company) listen(rank int, out io.Reader, others []io.WriteCloser) {
	defer close(c.lines[rank])
	for s := bufio.NewScanner(out); s.Scan(); {
		if key, ok := strings.CutPrefix(s.Text(), "key "); ok {
			for _, in := range others {
				io.WriteString(in, key+"\n")
			}
			continue
		}
		c.lines[rank] <- s.Text()
	}
}

// next is rank's next line.
func (c *company) next(t testing.TB, rank int) string {
	t.Helper()
	select {
	case line, ok := <-c.lines[rank]:
		if !ok {
			return "ended"
		}
		return line
	case <-time.After(60 * time.Second):
		t.Fatalf("rank %d says nothing", rank)
		return ""
	}
}

func (c *company) expect(t testing.TB, rank int, prefix string) {
	t.Helper()
	if got := c.next(t, rank); !strings.HasPrefix(got, prefix) {
		t.Fatalf("rank %d says %q, want %q", rank, got, prefix)
	}
}

func TestProcesses(t *testing.T) {
	for _, size := range []int{2, 4} {
		c := processes(t, size, "matrix")
		for r := range size {
			c.expect(t, r, "fine")
		}
	}
}

// It is noticed as a death, before a call is late.
func TestKilledProcessIsNamed(t *testing.T) {
	c := processes(t, 4, "loop")
	for r := range 4 {
		c.expect(t, r, "started")
	}
	if err := c.cmds[2].Process.Kill(); err != nil {
		t.Fatal(err)
	}
	for _, r := range []int{0, 1, 3} {
		c.expect(t, r, "peer 12: ")
	}
}

func TestStoppedProcessIsNamedAtTheDeadline(t *testing.T) {
	c := processes(t, 4, "impatient")
	for r := range 4 {
		c.expect(t, r, "started")
	}
	if err := c.cmds[1].Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	for _, r := range []int{0, 2, 3} {
		c.expect(t, r, "timeout 11: ")
	}
	// The stopped one learns why when it wakes.
	if err := c.cmds[1].Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	c.expect(t, 1, "timeout 11: ")
}

func TestLimitOfFilesIsAnError(t *testing.T) {
	c := processes(t, 2, "limited")
	for r := range 2 {
		c.expect(t, r, "fine")
	}
}
