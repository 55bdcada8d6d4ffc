package nccl

import (
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
	libc, err := dl.Open(dl.Spec{Name: "the C library", Files: []string{"libc.so.6"}, Gives: "the environment", Install: "glibc"})
	if err != nil {
		t.Fatal(err)
	}
	get, err := libc.Proc("getenv")
	if err != nil {
		t.Fatal(err)
	}
	name := dl.CString("NCCL_SOCKET_IFNAME")
	if got := dl.GoString(get.Call(uintptr(unsafe.Pointer(name)))); got != "=eth3" {
		t.Errorf("NCCL finds %q, want =eth3", got)
	}
}
