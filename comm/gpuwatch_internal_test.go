package comm

import (
	"testing"

	"github.com/gorun-dev/gorun/runtime/cuda"
	"github.com/gorun-dev/gorun/runtime/cuda/cudatest"
)

// Of many calls that have ended half are seen with one question.
func TestSkim(t *testing.T) {
	driver := cudatest.Fake(t)
	d, err := cuda.Open(0)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	s, err := d.NewStream("comm")
	if err != nil {
		t.Fatal(err)
	}
	u := &gpu{g: new(Group)}
	asked := func(f func()) int {
		before := driver.Calls("cuEventQuery")
		f()
		return driver.Calls("cuEventQuery") - before
	}
	made := func() *flight { return &flight{progress: byEvents{end: s.Record().(*cuda.Event)}} }
	for range many - 1 {
		u.flights = append(u.flights, made())
	}
	if n := asked(u.skim); n != 0 {
		t.Errorf("%d questions for too few calls", n)
	}
	for range 85 {
		u.flights = append(u.flights, made())
	}
	u.flights = append(u.flights, &flight{}) // one that could not be enqueued
	if n := asked(u.skim); n != 1 {
		t.Errorf("%d questions, want 1", n)
	}
	if n := asked(func() {
		for _, f := range u.flights[:50] {
			if there, err := f.progress.ended(); !there || err != nil {
				t.Fatal(there, err)
			}
		}
	}); n != 0 {
		t.Errorf("the first half took %d more questions", n)
	}
}
