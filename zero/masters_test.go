package zero

import (
	"testing"

	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
)

// elsewhere gives memory for masters and keeps account of it.
type elsewhere struct {
	device.Device
	given device.Buffer
	calls int
}

func (e *elsewhere) Alloc(n int) (device.Buffer, error) {
	b, err := e.Device.Alloc(n)
	e.given = b
	e.calls++
	return b, err
}

// Masters lie in the memory that Options.Masters gives, all of them and nothing else,
// and are the same as on the device.
func TestMastersElsewhere(t *testing.T) {
	for stage := 1; stage <= 3; stage++ {
		ranks(t, 2, paramsOf(dtype.BF16), func(w *worker) {
			e := &elsewhere{Device: w.compute.Device()}
			if !w.start(Options{PlanOptions: PlanOptions{Stage: stage}, Masters: e}) {
				return
			}
			z := w.zero
			if want := z.Plan().Memory().Masters; e.calls != 1 || int64(e.given.Len()) != want {
				t.Errorf("stage %d: %d bytes in %d calls, want %d", stage, e.given.Len(), e.calls, want)
			}
			for _, s := range z.Shards() {
				if b := s.Master.Buf; b.Len() > 0 && !inside(b, e.given) {
					t.Errorf("stage %d: the master of %s lies elsewhere", stage, s.Param.Name)
				}
				if inside(s.Grad.Buf, e.given) {
					t.Errorf("stage %d: the gradient of %s lies among the masters", stage, s.Param.Name)
				}
			}
		}, "comm")
	}
}

func inside(b, of device.Buffer) bool {
	return b.Addr() >= of.Addr() && b.Addr()+uintptr(b.Len()) <= of.Addr()+uintptr(of.Len())
}
