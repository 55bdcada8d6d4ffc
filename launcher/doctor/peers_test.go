package doctor

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/gorun-dev/gorun/runtime/cuda/cudatest"
)

// spawnedVariable makes this test's binary a process that copies between GPUs, in the
// way that its value says.
const spawnedVariable = "GORUN_DOCTOR_TEST_COPIES"

func TestMain(m *testing.M) {
	switch os.Getenv(spawnedVariable) {
	case "":
		os.Exit(m.Run())
	case "hang":
		json.NewEncoder(os.Stdout).Encode(PeerCopy{From: 0, To: 1})
		select {}
	case "fail":
		os.Stderr.WriteString("no luck\n")
		os.Exit(3)
	default:
		if err := copyBetween(context.Background(), []peerGPU{&liar{}, &liar{}}, os.Stdout); err != nil {
			os.Exit(1)
		}
	}
}

// liar is a GPU of two words, of which copies to others lose one where lies is set.
type liar struct {
	words   [2]uint32
	lies    bool
	refuses error
	fails   error
}

func (g *liar) fill(_ context.Context, seed uint32) error {
	g.words = [2]uint32{word(seed, 0), word(seed, 1)}
	return nil
}
func (g *liar) reach(peerGPU) error { return g.refuses }
func (g *liar) push(_ context.Context, to peerGPU) error {
	to.(*liar).words[0] = g.words[0]
	if !g.lies {
		to.(*liar).words[1] = g.words[1]
	}
	return g.fails
}
func (g *liar) pull(_ context.Context, from peerGPU) error {
	g.words = from.(*liar).words
	return nil
}
func (g *liar) wrong(_ context.Context, seed uint32) (n int, err error) {
	for i, w := range g.words {
		if w != word(seed, i) {
			n++
		}
	}
	return n, nil
}

func TestCopiesAreVerified(t *testing.T) {
	for name, c := range map[string]struct {
		second liar
		want   PeerCopy // of the second GPU to the first
	}{
		"well":    {liar{}, PeerCopy{From: 1, To: 0, Done: true}},
		"lies":    {liar{lies: true}, PeerCopy{From: 1, To: 0, Done: true, Wrong: 1}},
		"refuses": {liar{refuses: errors.New("no")}, PeerCopy{From: 1, To: 0, Done: true, Refused: "no"}},
		"fails":   {liar{fails: errors.New("broken")}, PeerCopy{From: 1, To: 0, Done: true, Error: "broken"}},
	} {
		var out bytes.Buffer
		if err := copyBetween(t.Context(), []peerGPU{&liar{}, &c.second}, &out); err != nil {
			t.Fatal(err)
		}
		var lines []PeerCopy
		for in := json.NewDecoder(&out); in.More(); {
			var p PeerCopy
			if err := in.Decode(&p); err != nil {
				t.Fatal(err)
			}
			lines = append(lines, p)
		}
		want := []PeerCopy{{From: 0, To: 1}, {From: 0, To: 1, Done: true}, {From: 1, To: 0}, c.want}
		if len(lines) != 4 || lines[0] != want[0] || lines[1] != want[1] || lines[2] != want[2] || lines[3] != want[3] {
			t.Errorf("%s: %+v", name, lines)
		}
	}
}

// The same through package cuda; its fake driver's copies are right.
func TestCopiesThroughCUDA(t *testing.T) {
	d := cudatest.FakeOf(t, cudatest.Machine{GPUs: 2})
	var out bytes.Buffer
	if err := CopyBetweenGPUs(t.Context(), &out); err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(out.String(), `"done":true}`); n != 2 {
		t.Errorf("%d pairs are well:\n%s", n, out.String())
	}
	const peerAccessUnsupported = 217
	d.Fail("cuCtxEnablePeerAccess", peerAccessUnsupported)
	out.Reset()
	if err := CopyBetweenGPUs(t.Context(), &out); err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(out.String(), `"refused":"cuda:`); n != 2 {
		t.Errorf("%d pairs are refused:\n%s", n, out.String())
	}
}

// What a process has written counts, whether it ends or not.
func TestSpawn(t *testing.T) {
	run := func(way string) (copies []PeerCopy, err error) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		cmd := exec.Command("/proc/self/exe")
		cmd.Env = append(os.Environ(), spawnedVariable+"="+way)
		return spawn(ctx, cmd, func(PeerCopy) {
			if way == "hang" {
				cancel() // the time is up
			}
		})
	}
	copies, err := run("well")
	if err != nil || len(copies) != 2 || !copies[0].Done || !copies[1].Done {
		t.Errorf("%+v, %v", copies, err)
	}
	copies, err = run("fail")
	if err == nil || !strings.Contains(err.Error(), "exit status 3: no luck") || copies != nil {
		t.Errorf("%+v, %v", copies, err)
	}
	copies, err = run("hang")
	if err != nil || len(copies) != 1 || copies[0].Done {
		t.Errorf("%+v, %v", copies, err)
	}
}
