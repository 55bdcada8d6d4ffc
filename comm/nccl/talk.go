package nccl

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/gorun-dev/gorun/runtime/dl"
)

// Which links NCCL uses, it says in its debug log alone. So the log is turned on,
// for the subsystems that speak while a communicator is made, and led into memory
// of this process. Where the user has a say in NCCL's log, it is left alone, and
// the path of a communicator is not known.

// logVariables are those by which users direct NCCL's log.
var logVariables = []string{"NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE"}

// talk is NCCL's log.
type talk struct {
	file  *os.File
	close error // why it cannot be read; nil where it can
}

// listen turns the log on. It has to be called before NCCL reads its environment.
func listen() *talk {
	if name, where := usersLog(); name != "" {
		return &talk{close: fmt.Errorf("%s is set in %s, so NCCL's own log has it", name, where)}
	}
	fd, err := unix.MemfdCreate("nccl.log", unix.MFD_CLOEXEC)
	if err != nil {
		return &talk{close: fmt.Errorf("no memory for NCCL's log: %w", err)}
	}
	t := &talk{file: os.NewFile(uintptr(fd), "nccl.log")}
	err = setenv(map[string]string{
		"NCCL_DEBUG":        "INFO",
		"NCCL_DEBUG_SUBSYS": "INIT,GRAPH",
		"NCCL_DEBUG_FILE":   fmt.Sprintf("/proc/self/fd/%d", fd),
	})
	if err != nil {
		t.file.Close()
		return &talk{close: fmt.Errorf("NCCL's log cannot be turned on: %w", err)}
	}
	return t
}

// usersLog names a variable of the log that the user has set, and where.
func usersLog() (name, where string) {
	for _, v := range logVariables {
		if _, ok := os.LookupEnv(v); ok {
			return v, "the environment"
		}
	}
	files := []string{"/etc/nccl.conf"}
	if f := os.Getenv("NCCL_CONF_FILE"); f != "" {
		files = append(files, f)
	} else if u, err := user.Current(); err == nil {
		files = append(files, filepath.Join(u.HomeDir, ".nccl.conf"))
	}
	for _, f := range files {
		if name := setIn(f); name != "" {
			return name, f
		}
	}
	return "", ""
}

// setIn names a variable of the log that a file of NCCL's settings has.
func setIn(path string) string {
	f, err := os.Open(path)
	if err != nil {
		return "" // most hosts have none
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		for _, v := range logVariables {
			if strings.HasPrefix(lines.Text(), v+"=") {
				return v
			}
		}
	}
	return ""
}

// setenv sets variables that C code sees. Go's own copy of the environment, which
// child processes get, stays as it is.
func setenv(vars map[string]string) error {
	libc, err := dl.Open(dl.Spec{Name: "the C library", Files: []string{"libc.so.6"}, Gives: "NCCL's environment", Install: "glibc"})
	if err != nil {
		return err
	}
	set, err := libc.Proc("setenv")
	if err != nil {
		return err
	}
	for name, value := range vars {
		n, v := dl.CString(name), dl.CString(value)
		const overwrite = 1
		if int32(set.Call(uintptr(unsafe.Pointer(n)), uintptr(unsafe.Pointer(v)), overwrite)) != 0 {
			return fmt.Errorf("setenv(%s) failed", name)
		}
	}
	return nil
}

// SetInterface has NCCL open its sockets on one network interface, whatever its own
// variable says. It has to be called before the first communicator of the process.
func (l *Library) SetInterface(name string) error {
	return setenv(map[string]string{"NCCL_SOCKET_IFNAME": "=" + name})
}

// SetTopology has NCCL take the machine from a file in its XML format, whatever its own
// variable says. It has to be called before the first communicator of the process.
func (l *Library) SetTopology(path string) error {
	path, err := filepath.Abs(path) // the process may change its folder
	if err != nil {
		return err
	}
	return setenv(map[string]string{"NCCL_TOPO_FILE": path})
}

// end is where the log ends now.
func (t *talk) end() int64 {
	if t.close != nil {
		return 0
	}
	info, err := t.file.Stat()
	if err != nil {
		return 0
	}
	return info.Size()
}

// since is what was logged after position from.
func (t *talk) since(from int64) (string, error) {
	if t.close != nil {
		return "", t.close
	}
	n := t.end() - from
	if n <= 0 {
		return "", errors.New("NCCL has logged nothing")
	}
	b := make([]byte, n)
	if _, err := t.file.ReadAt(b, from); err != nil {
		return "", fmt.Errorf("NCCL's log: %w", err)
	}
	return string(b), nil
}
