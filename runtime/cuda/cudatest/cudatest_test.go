package cudatest

import (
	"debug/elf"
	"testing"

	"github.com/gorun-dev/gorun/runtime/cuda/internal/driver"
)

func TestTheFakeHasEveryFunctionOfTheTable(t *testing.T) {
	d := Fake(t)
	for _, name := range driver.Names() {
		if _, err := d.lib.Proc(name); err != nil {
			t.Error(err)
		}
	}
	if _, err := driver.Load(); err != nil {
		t.Error(err)
	}
}

func TestEachFakeIsFresh(t *testing.T) {
	first := Fake(t)
	first.Fail("cuInit", driver.NoDevice)
	if _, err := driver.Load(); err == nil {
		t.Error("the call did not fail")
	}
	second := Fake(t)
	if n := second.Calls("cuInit"); n != 0 {
		t.Errorf("a fresh fake was called %d times", n)
	}
	if _, err := driver.Load(); err != nil {
		t.Error(err)
	}
}

func TestTheFakeIsFoundByNobodyElse(t *testing.T) {
	d := Fake(t)
	f, err := elf.Open(d.Path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if names, err := f.DynString(elf.DT_SONAME); err != nil || len(names) > 0 {
		t.Errorf("the fake has the soname %v, %v", names, err)
	}
}
