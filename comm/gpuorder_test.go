package comm

import (
	"errors"
	"testing"

	"github.com/gorun-dev/gorun/runtime/cuda"
	"github.com/gorun-dev/gorun/runtime/cuda/cudatest"
)

// Sums on other streams than the one before wait for it, and those on the same do not.
func TestCopiesKeepTheirOrder(t *testing.T) {
	driver := cudatest.Fake(t)
	d, err := cuda.Open(0)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	streams := make([]*cuda.Stream, 2)
	for i := range streams {
		s, err := d.NewStream("comm")
		if err != nil {
			t.Fatal(err)
		}
		streams[i] = s.(*cuda.Stream)
	}
	var o order
	waits := 0
	for i, on := range []int{0, 0, 1, 1, 0, 1} {
		enqueued := 0
		switches := i > 0 && streams[on] != o.stream
		end, err := orders{&o}.on(streams[on], func() error {
			enqueued = driver.Calls("cuStreamWaitEvent")
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		end.Release()
		if switches {
			waits++
		}
		if enqueued != waits {
			t.Errorf("sum %d was enqueued behind %d waits, want %d", i, enqueued, waits)
		}
	}
	if n := driver.Live()["events"]; n > 2 {
		t.Errorf("%d events are alive after 6 sums", n)
	}
	broken := errors.New("a peer is gone")
	streams[1].Fail(broken)
	if _, err := (orders{&o}).on(streams[0], streams[0].Err); !errors.Is(err, broken) {
		t.Errorf("a sum behind one on a failed stream has the error %v", err)
	}
}
