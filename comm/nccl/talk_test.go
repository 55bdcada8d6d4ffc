package nccl

import (
	"os"
	"path/filepath"
	"testing"
	"unsafe"

	"github.com/gorun-dev/gorun/runtime/dl"
)

// C code sees the interface, as a whole name.
func TestSetInterface(t *testing.T) {
	t.Setenv("NCCL_SOCKET_IFNAME", "eth0")
	l := &Library{}
	if err := l.SetInterface("eth3"); err != nil {
		t.Fatal(err)
	}
	if got := environment(t, "NCCL_SOCKET_IFNAME"); got != "=eth3" {
		t.Errorf("NCCL finds %q, want =eth3", got)
	}
}

// C code sees the file by its full path.
func TestSetTopology(t *testing.T) {
	t.Chdir(t.TempDir())
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	l := &Library{}
	if err := l.SetTopology("host.xml"); err != nil {
		t.Fatal(err)
	}
	if got, want := environment(t, "NCCL_TOPO_FILE"), filepath.Join(here, "host.xml"); got != want {
		t.Errorf("NCCL finds %q, want %q", got, want)
	}
}

// environment is a variable as C code sees it.
func environment(t *testing.T, variable string) string {
	t.Helper()
	libc, err := dl.Open(dl.Spec{Name: "the C library", Files: []string{"libc.so.6"}, Gives: "the environment", Install: "glibc"})
	if err != nil {
		t.Fatal(err)
	}
	get, err := libc.Proc("getenv")
	if err != nil {
		t.Fatal(err)
	}
	name := dl.CString(variable)
	return dl.GoString(get.Call(uintptr(unsafe.Pointer(name))))
}
