package mapped

import (
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// pages maps a file of two pages, the first of which stays when it is shortened.
func pages(t *testing.T) (path string, b []byte) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "two pages")
	page := os.Getpagesize()
	if err := os.WriteFile(path, make([]byte, 2*page), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if b, err = unix.Mmap(int(f.Fd()), 0, 2*page, unix.PROT_READ, unix.MAP_SHARED); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Munmap(b); err != nil {
			t.Error(err)
		}
	})
	if err := os.Truncate(path, int64(page)); err != nil {
		t.Fatal(err)
	}
	return path, b
}

func read(path string, b []byte, i int) (v byte, err error) {
	defer Shortened(path, debug.SetPanicOnFault(true), &err)
	return b[i], nil
}

func TestAFaultIsAnErrorThatNamesTheFile(t *testing.T) {
	path, b := pages(t)
	if _, err := read(path, b, 0); err != nil {
		t.Errorf("what is still there: %v", err)
	}
	if _, err := read(path, b, len(b)-1); err == nil || !strings.HasPrefix(err.Error(), path+": ") || !strings.Contains(err.Error(), "shortened") {
		t.Errorf("behind the end: %v", err)
	}
	if was := debug.SetPanicOnFault(false); was {
		t.Error("faults are still panics behind it")
	}
}

// What else goes wrong in the function is none of it.
func TestOtherPanicsStay(t *testing.T) {
	path, b := pages(t)
	for what, wrong := range map[string]func(){
		"an index": func() { read(path, b, len(b)) },
		"nil": func() {
			var err error
			defer Shortened(path, debug.SetPanicOnFault(true), &err)
			*(*int)(nil)++
		},
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", what)
				}
			}()
			wrong()
		}()
		if was := debug.SetPanicOnFault(false); was {
			t.Errorf("%s: faults are still panics behind it", what)
		}
	}
}
