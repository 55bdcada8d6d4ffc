package status

import (
	"errors"
	"os"
	"strconv"
	"strings"
	"testing"
)

func TestStopReason(t *testing.T) {
	if err := StopReason(); err != nil {
		t.Errorf("without an agent: %v", err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	t.Setenv(StopVariable, strconv.Itoa(int(r.Fd())))
	if err := StopReason(); err != nil {
		t.Errorf("nothing was said: %v", err)
	}
	if _, err := w.WriteString("rank 2 is gone\n"); err != nil {
		t.Fatal(err)
	}
	err = StopReason()
	if e, ok := errors.AsType[*StopError](err); !ok || e.Reason != "rank 2 is gone" {
		t.Errorf("said: %v", err)
	}
	w.Close()
	if err := StopReason(); err != nil {
		t.Errorf("the agent is gone: %v", err)
	}
	for _, v := range []string{"", "x", "-1", "1000000"} {
		t.Setenv(StopVariable, v)
		if err := StopReason(); err == nil || !strings.Contains(err.Error(), StopVariable+"=") {
			t.Errorf("%q: %v", v, err)
		}
	}
}
