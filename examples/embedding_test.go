// Package examples holds programs that use gorun's packages, each in a folder of its
// own, and tests that run them as a reader would.
package examples

import (
	"bufio"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// A new user types the README's section on embedding: the program builds in an empty
// module beside a checkout, and prints what the README says, on any number of ranks.
func TestTheReadmesProgramTypedLiterally(t *testing.T) {
	section := section(t, "../README.md", "## In a program of your own")
	blocks := regexp.MustCompile("(?ms)^```([a-z]+)\n(.*?)^```\n").FindAllStringSubmatch(section, -1)
	output := regexp.MustCompile(`(?m)(^    .*\n)+`).FindString(section[strings.LastIndex(section, "```"):])
	if len(blocks) < 3 || output == "" {
		t.Fatalf("%d blocks of code, and the output %q: want commands, a main.go, commands, and what they print", len(blocks), output)
	}
	want := regexp.MustCompile(`(?m)^    `).ReplaceAllString(output, "")

	home := t.TempDir()
	link(t, "..", filepath.Join(home, "gorun"))
	line := filepath.Join(home, "line")
	if err := os.Mkdir(line, 0o777); err != nil {
		t.Fatal(err)
	}
	env := append(os.Environ(), "GOBIN="+home+"/bin", "PATH="+home+"/bin:"+os.Getenv("PATH"), "GOFLAGS=-ldflags=-w", "GOWORK=off")
	var printed string
	for _, b := range blocks {
		switch language, text := b[1], b[2]; language {
		case "go":
			name, ok := strings.CutPrefix(strings.SplitN(text, "\n", 2)[0], "// ")
			if !ok {
				t.Fatalf("a program does not begin with its file's name:\n%s", text)
			}
			if err := os.WriteFile(filepath.Join(line, name), []byte(text), 0o666); err != nil {
				t.Fatal(err)
			}
		case "sh":
			printed = sh(t, line, env, text)
		default:
			t.Errorf("a block of %s is not tested", language)
		}
	}
	if printed != want {
		t.Errorf("the program printed %q, the README says %q", printed, want)
	}
	for _, n := range []string{"1", "3"} {
		if got := sh(t, line, env, "gorun --nproc "+n+" -- ./line"); !strings.HasSuffix(got, "y = 3.000x + 1.000\n") {
			t.Errorf("%s ranks printed %q", n, got)
		}
	}
	if vet := sh(t, line, env, "go vet . && gofmt -l ."); vet != "" {
		t.Errorf("gofmt would change %s", vet)
	}
	// The examples are started in the same way.
	sh(t, filepath.Join(home, "gorun"), env, "go build -o "+home+" ./examples/slices ./examples/paramsync")
	alone := sh(t, home, env, "gorun --nproc 1 -- ./slices")
	if got := sh(t, home, env, "gorun --nproc 3 -- ./slices"); got != "[rank0] "+strings.Replace(alone, "ranks: 1", "ranks: 3", 1) {
		t.Errorf("examples/slices printed %q on 3 ranks, %q on 1", got, alone)
	}
	lateJoiner(t, home, env)
}

// lateJoiner fetches weights from a running job, twice, and ends the job by an interrupt.
func lateJoiner(t *testing.T, home string, env []string) {
	job := exec.CommandContext(t.Context(), filepath.Join(home, "bin/gorun"), "--nproc", "2", "--", "./paramsync", "--listen", "127.0.0.1:0")
	job.Dir, job.Env = home, env
	out, err := job.StdoutPipe()
	if err == nil {
		err = job.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	lines.Scan()
	_, addr, ok := strings.Cut(lines.Text(), "weights at ")
	if !ok {
		t.Errorf("the job printed %q, want its address", lines.Text())
	}
	for range 2 {
		if got := sh(t, home, env, "./paramsync --from "+addr); !regexp.MustCompile(`^weights of step \d+: loss \d+\.\d+\n$`).MatchString(got) {
			t.Errorf("the late joiner printed %q", got)
		}
	}
	if err := job.Process.Signal(os.Interrupt); err != nil {
		t.Error(err)
	}
	lines.Scan()
	if !strings.Contains(lines.Text(), "stopped behind step") {
		t.Errorf("the job ended with %q", lines.Text())
	}
	if err := job.Wait(); job.ProcessState.ExitCode() != 130 {
		t.Errorf("the interrupted job ended with %v, want status 130", err)
	}
}

// section is the part of a document from a heading to the next one of its level.
func section(t *testing.T, file, heading string) string {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok := strings.Cut(string(b), "\n"+heading+"\n")
	if !ok {
		t.Fatalf("%s has no section %q", file, heading)
	}
	text, _, _ := strings.Cut(rest, "\n## ")
	return text
}

func link(t *testing.T, to, from string) {
	t.Helper()
	to, err := filepath.Abs(to)
	if err == nil {
		err = os.Symlink(to, from)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// sh runs commands in a folder, as typed, and returns what they print on stdout.
func sh(t *testing.T, dir string, env []string, commands string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	c := exec.CommandContext(ctx, "sh", "-e", "-c", commands)
	c.Dir, c.Env = dir, env
	var stdout, stderr strings.Builder
	c.Stdout, c.Stderr = &stdout, &stderr
	if err := c.Run(); err != nil {
		t.Fatalf("%s: %v\n%s%s", commands, err, stdout.String(), stderr.String())
	}
	return stdout.String()
}
