package cudnn

import (
	"errors"
	"strings"
	"testing"

	"github.com/gorun-dev/gorun/runtime/device"
)

func TestNothingIsEnqueuedAfterAnError(t *testing.T) {
	f := openFake(t)
	a, c := testSDPA(t, f, "")
	x := tensors(1, 64, 2, 1, 64)

	failed := &testStream{err: errors.New("a peer is gone")}
	a.both(failed, x)
	if f.record() != "" || failed.err.Error() != "a peer is gone" {
		t.Errorf("on a failed stream: %q, error %v", f.record(), failed.err)
	}

	poor := &testStream{}
	c.fails = true
	a.both(poor, x)
	if poor.err == nil || !strings.Contains(poor.err.Error(), "no memory is left") || f.count("execute") != 0 {
		t.Errorf("without scratch memory: error %v, %d executions", poor.err, f.count("execute"))
	}

	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	late := &testStream{}
	a.both(late, x)
	if late.err == nil || !strings.Contains(late.err.Error(), "closed") {
		t.Errorf("after Close: %v", late.err)
	}
	if err := a.Close(); err != nil || f.live() != 0 {
		t.Errorf("a second Close: %v, %d live", err, f.live())
	}
}

// Whatever call fails, the stream fails with the call's name and the library's
// text, and nothing is left behind.
func TestEveryCallMayFail(t *testing.T) {
	f := openFake(t)
	for _, function := range []string{
		"cudnnSetStream", "cudnnBackendCreateDescriptor", "cudnnBackendSetAttribute", "cudnnBackendGetAttribute",
		"cudnnBackendFinalize", "cudnnBackendExecute", "cudnnBackendDestroyDescriptor",
	} {
		t.Run(function, func(t *testing.T) {
			for n := 1; ; n++ {
				f.controls["fakeReset"].Call()
				a, _ := testSDPA(t, f, "")
				s := &testStream{handle: 99}
				f.fail(function, n)
				a.both(s, tensors(1, 64, 2, 1, 64))
				if f.pending() {
					t.Logf("%d calls", n-1)
					if n == 1 || s.err != nil || f.count("execute") != 2 {
						t.Errorf("without a failure: error %v, %d executions", s.err, f.count("execute"))
					}
					return
				}
				if s.err == nil && f.count("execute") != 2 {
					t.Errorf("call %d: the failure is not told", n)
				}
				if s.err != nil {
					for _, want := range []string{"cuda:7: cuDNN attention", "(version 9.14.0) of 1×64 positions, 2/1 heads of 64", "injected into " + function, "CUDNN_STATUS_BAD_PARAM (2000)"} {
						if !strings.Contains(s.err.Error(), want) {
							t.Errorf("call %d: %v: says nothing of %q", n, s.err, want)
						}
					}
				}
				if err := a.Close(); err != nil {
					t.Errorf("call %d: Close: %v", n, err)
				}
				if live := f.live(); live != 0 {
					t.Errorf("call %d: %d handles and descriptors live after Close; the error was %v", n, live, s.err)
				}
			}
		})
	}
}

func TestOpenAndCloseMayFail(t *testing.T) {
	f := openFake(t)
	f.fail("cudnnCreate", 1)
	c := &testCard{scratch: map[string]device.Buffer{}}
	if _, err := open(f.library, c, cache{}); err == nil || !strings.Contains(err.Error(), "cudnnCreate: CUDNN_STATUS_BAD_PARAM (2000): injected") {
		t.Errorf("Open: %v", err)
	}
	if c.bound != 0 || f.live() != 0 {
		t.Errorf("bound %d times, %d live", c.bound, f.live())
	}
	a, _ := testSDPA(t, f, "")
	f.fail("cudnnDestroy", 1)
	if err := a.Close(); err == nil || !strings.Contains(err.Error(), "cudnnDestroy") {
		t.Errorf("Close: %v", err)
	}
}
