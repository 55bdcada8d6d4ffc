// Package hosttest runs the gorun command on several hosts at once, each made of
// namespaces by runtime/testenv/netns, and lets things go wrong: processes are
// killed and stopped, cables pulled, packets lost, strangers let in.
//
// job_test.go starts jobs and knows what is left of them. The other files are
// tests by what they are about. The long one runs where GORUN_SOAK is set.
package hosttest

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

// folder holds the command; TestMain makes and removes it.
var folder string

func TestMain(m *testing.M) {
	if os.Getenv(faultVariable) != "" && os.Getenv("RANK") != "" {
		program() // never returns
	}
	os.Exit(func() int {
		flag.Parse()
		// Most of these tests wait for deadlines of the jobs; the cores are idle.
		if err := flag.Set("test.parallel", "6"); err != nil {
			panic(err)
		}
		var err error
		if folder, err = os.MkdirTemp("", "hosttest"); err != nil {
			panic(err)
		}
		defer os.RemoveAll(folder)
		return m.Run()
	}())
}

// gorun builds the command, once, and returns its path.
var gorun = sync.OnceValues(func() (string, error) {
	path := filepath.Join(folder, "gorun")
	cmd := exec.Command("go", "build", "-o", path, "github.com/gorun-dev/gorun/launcher/gorun")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build: %w\n%s", err, out)
	}
	return path, nil
})
