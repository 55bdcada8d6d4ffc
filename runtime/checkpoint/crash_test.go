package checkpoint

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gorun-dev/gorun/runtime/testenv"
)

// TestMain plays the process that saves and is killed, or runs out of space, where
// a test starts it for that.
func TestMain(m *testing.M) {
	root := os.Getenv("CHECKPOINT_TEST_ROOT")
	switch os.Getenv("CHECKPOINT_TEST_ROLE") {
	case "":
		os.Exit(m.Run())
	case "crash":
		reached = func(stage string) {
			fmt.Println(stage)
			if stage == os.Getenv("CHECKPOINT_TEST_STAGE") {
				syscall.Kill(os.Getpid(), syscall.SIGKILL)
				select {} // the signal comes
			}
		}
		var step int64
		fmt.Sscan(os.Getenv("CHECKPOINT_TEST_STEP"), &step)
		exitOn(saveAll(root, step))
	case "limit":
		signal.Ignore(syscall.SIGXFSZ)
		exitOn(syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: 1 << 16, Max: 1 << 16}))
		fmt.Println(saveLarge(root))
	}
}

func exitOn(err error) {
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

// saveAll does what a job of two ranks does at a save, with a stage in the middle of a
// file.
func saveAll(root string, step int64) error {
	d, err := Begin(root, step)
	if err != nil {
		return err
	}
	err = d.WriteFile("a.bin", func(w io.Writer) error {
		w.Write(make([]byte, 3<<20)) // beyond the buffer: on its way to the disk
		reached("in the middle of a.bin")
		_, err := w.Write(make([]byte, 3<<20))
		return err
	})
	if err != nil {
		return err
	}
	other, err := Join(d.Path())
	if err != nil {
		return err
	}
	if err := other.WriteFile("b.bin", content("new")); err != nil {
		return err
	}
	if err := d.WriteFile(IndexName, content(`{"version": 1}`)); err != nil {
		return err
	}
	if _, err := d.Publish(nil, other.Entries()); err != nil {
		return err
	}
	_, err = Prune(root, 1, nil)
	return err
}

var stages = []string{
	"begun",
	"created a.bin", "in the middle of a.bin", "written a.bin", "synced a.bin",
	"created b.bin", "written b.bin", "synced b.bin",
	"created index.json", "written index.json", "synced index.json",
	"created manifest.json", "written manifest.json", "synced manifest.json",
	"folder synced", "renamed", "root synced",
	"pruning",
}

func crash(t *testing.T, root string, step int64, stage string) (passed []string, killed bool) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "CHECKPOINT_TEST_ROLE=crash", "CHECKPOINT_TEST_ROOT="+root,
		fmt.Sprint("CHECKPOINT_TEST_STEP=", step), "CHECKPOINT_TEST_STAGE="+stage)
	out, err := cmd.Output()
	var exit *exec.ExitError
	if err != nil && (!errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL) {
		t.Fatalf("the process that saves: %v\n%s", err, out)
	}
	return strings.Split(strings.TrimSpace(string(out)), "\n"), err != nil
}

// The stages are passed in this order: all is synced before the name is given.
func TestOrderOfStages(t *testing.T) {
	root := t.TempDir()
	publishStep(t, root, 100)
	if passed, killed := crash(t, root, 200, "none"); killed || !slices.Equal(passed, stages) {
		t.Errorf("stages %q, killed %v; want %q", passed, killed, stages)
	}
}

// Wherever a save is killed, the newest checkpoint is whole: the one before or,
// from the renaming on, the new one. And the next save works and clears up.
func TestKilledAtEachStage(t *testing.T) {
	for _, step := range []int64{200, 100} { // a new step, and one that replaces the old
		for i, stage := range stages {
			if step == 100 && stage == "pruning" {
				continue // only one is there: nothing is pruned
			}
			t.Run(fmt.Sprintf("%s of %d", stage, step), func(t *testing.T) {
				root := t.TempDir()
				publishStep(t, root, 100)
				if _, killed := crash(t, root, step, stage); !killed {
					t.Fatal("the process was not killed")
				}
				c, broken, err := Newest(root, nil)
				must(t, err)
				if len(broken) != 0 {
					t.Errorf("broken: %v", broken)
				}
				isNew := c.Files[0].Size == 6<<20
				if wantNew := i >= slices.Index(stages, "renamed"); isNew != wantNew {
					t.Errorf("the newest is of step %d, its first file of %d bytes", c.Step, c.Files[0].Size)
				}
				publishStep(t, root, 300)
				_, err = Prune(root, 1, nil)
				must(t, err)
				wantNames(t, root, lockName, "step-00000300")
			})
		}
	}
}

func saveLarge(root string) error {
	d, err := Begin(root, 200)
	if err != nil {
		return err
	}
	if err := d.WriteFile("small", content("x")); err != nil {
		return errors.Join(err, d.Discard())
	}
	err = d.WriteFile("large", func(w io.Writer) error {
		for range 64 {
			if _, err := w.Write(make([]byte, 1<<20)); err != nil {
				return err
			}
		}
		return nil
	})
	return errors.Join(err, d.Discard())
}

func TestFileSizeLimit(t *testing.T) {
	root := t.TempDir()
	publishStep(t, root, 100)
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "CHECKPOINT_TEST_ROLE=limit", "CHECKPOINT_TEST_ROOT="+root)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	wantErr(t, errors.New(string(out)), "large", "after 65536 bytes", "file too large")
	intact(t, root)
}

func TestFullDisk(t *testing.T) {
	root := filepath.Join(t.TempDir(), "disk")
	must(t, os.Mkdir(root, 0o755))
	if err := unix.Mount("tmpfs", root, "tmpfs", 0, "size=1m"); err != nil {
		testenv.Skip(t, "mount", "a tmpfs of 1 MiB cannot be mounted: "+err.Error())
	}
	t.Cleanup(func() { must(t, unix.Unmount(root, 0)) })
	publishStep(t, root, 100)
	wantErr(t, saveLarge(root), "large", "bytes", "no space left on device")
	intact(t, root)
}

// intact holds after a save that failed: the old checkpoint alone is there.
func intact(t *testing.T, root string) {
	t.Helper()
	wantNames(t, root, lockName, "step-00000100")
	c, broken, err := Newest(root, nil)
	must(t, err)
	if c.Step != 100 || len(broken) != 0 {
		t.Errorf("newest %d, broken %v", c.Step, broken)
	}
}
