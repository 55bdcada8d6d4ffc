package train

import (
	"reflect"
	"testing"

	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/trace"
)

// Every operation that is enqueued on a stream leaves a span on it.
func TestTheTraceOfAGPUHasEveryOperation(t *testing.T) {
	s := device.NewCPUStream("another", nil)
	defer s.Close()
	recorder := trace.NewRecorder(0)
	recorder.Enable(true)
	all := reflect.TypeFor[operations]()
	for i := range all.NumMethod() {
		m := all.Method(i)
		if m.Type.NumIn() == 0 || m.Type.In(0) != reflect.TypeFor[device.Stream]() {
			continue
		}
		traced := traceOps(nil, recorder)
		traced.base = s.Record()
		args := []reflect.Value{reflect.ValueOf(device.Stream(s))}
		for k := 1; k < m.Type.NumIn(); k++ {
			args = append(args, reflect.Zero(m.Type.In(k)))
		}
		func() {
			defer func() { _ = recover() }() // there are no operations under it
			reflect.ValueOf(traced).MethodByName(m.Name).Call(args)
		}()
		if len(traced.spans) != 1 || traced.spans[0].stream != "another" || traced.spans[0].work == "" {
			t.Errorf("%s leaves %v", m.Name, traced.spans)
		}
	}
}
