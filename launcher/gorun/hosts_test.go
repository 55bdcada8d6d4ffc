package main

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"golang.org/x/sys/unix"

	"github.com/gorun-dev/gorun/runtime/testenv"
)

func TestParseHosts(t *testing.T) {
	for _, c := range []struct {
		in    string
		want  []host
		wrong string
	}{
		{"a,b:2,me@c:3", []host{{"a", "a", ""}, {"b", "b", "2"}, {"me@c", "c", "3"}}, ""},
		{"fd00::1,[fd00::2],[fd00::3]:4,x@[fd00::4]:5", []host{{"fd00::1", "fd00::1", ""}, {"fd00::2", "fd00::2", ""}, {"fd00::3", "fd00::3", "4"}, {"x@fd00::4", "fd00::4", "5"}}, ""},
		{"a,b,a:3", nil, "twice"},
		{"a:0", nil, "no number of workers"},
		{"a:x", nil, "no number of workers"},
		{"[fd00::1]4", nil, "want :slots"},
		{"-oProxyCommand=x", nil, "want a name"},
		{"a b", nil, "want a name"},
		{"a,,b", nil, "want a name"},
	} {
		got, err := parseHosts(strings.Split(c.in, ","))
		switch {
		case c.wrong != "":
			if err == nil || !strings.Contains(err.Error(), c.wrong) {
				t.Errorf("%s: %v, want an error about %q", c.in, err, c.wrong)
			}
		case err != nil || !slices.Equal(got, c.want):
			t.Errorf("%s: %v, %v, want %v", c.in, got, err, c.want)
		}
	}
}

// What a login shell is given survives its quoting, and names what is missing.
func TestRemoteCommand(t *testing.T) {
	dir := filepath.Join(t.TempDir(), `it's a "$folder"`)
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "gorun")
	out, err := exec.Command("sh", "-c", remoteCommand(path)).CombinedOutput()
	if exit, ok := err.(*exec.ExitError); !ok || exit.ExitCode() != 127 || !strings.Contains(string(out), "is not there: every host needs the same gorun") {
		t.Errorf("missing: %v, %s", err, out)
	}
	if err := os.WriteFile(path, []byte("#!/bin/sh\necho \"called with $@\"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	out, err = exec.Command("sh", "-c", remoteCommand(path)).CombinedOutput()
	if err != nil || string(out) != "called with "+hostAgent+"\n" {
		t.Errorf("%v, %s", err, out)
	}
}

// TestHosts runs testdata/hosts/*.txt with the real command, in $GORUN, and an sshd
// of its own, behind which 127.0.0.2 is another host.
func TestHosts(t *testing.T) {
	sshd, err := exec.LookPath("/usr/sbin/sshd")
	if err != nil {
		testenv.Skip(t, "sshd", "there is no /usr/sbin/sshd (apt-get install openssh-server openssh-client)")
	}
	dir := t.TempDir()
	config := startSSHD(t, sshd, dir)
	ssh, err := exec.LookPath("ssh")
	if err != nil {
		testenv.Skip(t, "sshd", "there is no ssh (apt-get install openssh-client)")
	}
	bin := filepath.Join(dir, "bin")
	write(t, filepath.Join(bin, "ssh"), fmt.Sprintf("#!/bin/sh\nexec %s -F %s \"$@\"\n", ssh, config), 0o755)
	command := filepath.Join(bin, "real-gorun")
	build := exec.Command("go", "build", "-o", command, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	tiny, err := filepath.Abs("../../configs/tiny.yaml")
	if err != nil {
		t.Fatal(err)
	}
	testscript.Run(t, testscript.Params{
		Dir: "testdata/hosts", RequireExplicitExec: true,
		Setup: func(e *testscript.Env) error {
			e.Setenv("GORUN", command)
			e.Setenv("TINY", tiny)
			e.Setenv("PATH", bin+":"+e.Getenv("PATH"))
			return nil
		},
		Cmds: scriptCommands,
	})
}

// startSSHD starts a server on 127.0.0.1 and 127.0.0.2 that lets this user in with
// a new key, and returns the configuration of a client that has it.
func startSSHD(t *testing.T, sshd, dir string) (config string) {
	t.Helper()
	for _, name := range []string{"host", "user"} {
		key := exec.Command("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", filepath.Join(dir, name))
		if out, err := key.CombinedOutput(); err != nil {
			t.Fatalf("ssh-keygen: %v\n%s", err, out)
		}
	}
	if os.Geteuid() == 0 { // where sshd separates privileges
		if err := os.MkdirAll("/run/sshd", 0o755); err != nil {
			testenv.Skip(t, "sshd", err.Error())
		}
	}
	l, err := listenBelow()
	if err != nil {
		t.Fatal(err)
	}
	port := l.Addr().(*net.TCPAddr).Port
	l.Close()
	me, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	server := filepath.Join(dir, "sshd_config")
	write(t, server, fmt.Sprintf("Port %d\nListenAddress 127.0.0.1\nListenAddress 127.0.0.2\nHostKey %[2]s/host\nAuthorizedKeysFile %[2]s/user.pub\n"+
		"StrictModes no\nUsePAM no\nPermitRootLogin yes\nPasswordAuthentication no\nPidFile none\nPermitUserEnvironment no\n", port, dir), 0o600)
	config = filepath.Join(dir, "ssh_config")
	write(t, config, fmt.Sprintf("Host *\nPort %d\nUser %s\nIdentityFile %s/user\nIdentitiesOnly yes\nStrictHostKeyChecking no\nUserKnownHostsFile /dev/null\nLogLevel ERROR\n",
		port, me.Username, dir), 0o600)
	cmd := exec.Command(sshd, "-D", "-e", "-f", server)
	log, err := os.Create(filepath.Join(dir, "sshd.log"))
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL}
	up := make(chan error)
	go func() { // keeps its thread for sshd; ends with it
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		up <- err
		if err == nil {
			cmd.Wait()
			close(up)
		}
	}()
	if err := <-up; err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		<-up
		log.Close()
	})
	deadline := time.Now().Add(patience)
	for {
		c, err := net.DialTimeout("tcp", fmt.Sprintf("127.0.0.2:%d", port), time.Second)
		if err == nil {
			c.Close()
			return config
		}
		select {
		case <-up:
			b, _ := os.ReadFile(log.Name())
			testenv.Skip(t, "sshd", "it does not run here: "+strings.TrimSpace(string(b)))
		default:
		}
		if time.Now().After(deadline) {
			t.Fatalf("sshd does not listen: %v", err)
		}
	}
}

func write(t *testing.T, path, text string, mode os.FileMode) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
}
