package cudnn

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"strings"
	"unsafe"

	"github.com/gorun-dev/gorun/runtime/dl"
)

// session is a handle of cuDNN, and the calls on it and on descriptors. It is used
// by one goroutine at a time, locked to a thread on which the device's primary
// context is current: on a thread without a context cuDNN makes one current
// silently, and the text of an error belongs to the thread of the failed call.
//
// What C reads and writes lies in the session, or in s.in's memory: on the heap,
// which does not move as a goroutine's stack does, and alive as long as s.
type session struct {
	lib    *library
	handle uintptr
	// aim tells a graph or a plan which device it is for.
	aim func(d desc) error

	in      []byte     // the elements of an attribute
	count   int64      // how many of them the library has
	word    uintptr    // a new handle or descriptor
	message [2048]byte // what the library says of an error
}

// desc is a descriptor of the library.
type desc struct {
	addr uintptr
	kind kind
}

// newSession makes a handle.
func newSession(l *library) (*session, error) {
	s := &session{lib: l}
	s.aim = s.byHandle
	if err := s.failed(l.create.Call(s.wordAddr()), "cudnnCreate"); err != nil {
		return nil, err
	}
	s.handle = s.word
	return s, nil
}

// setStream sends the work of the handle to a CUstream.
func (s *session) setStream(stream uintptr) error {
	return s.failed(s.lib.setStream.Call(s.handle, stream), "cudnnSetStream")
}

// close destroys the handle. Plans made with it must be destroyed before.
func (s *session) close() error {
	return s.failed(s.lib.destroy.Call(s.handle), "cudnnDestroy")
}

// byHandle aims graphs and plans at the device of the session's handle.
func (s *session) byHandle(d desc) error {
	switch d.kind {
	case kindGraph:
		return s.set(d, attrGraphHandle, int64(s.handle))
	case kindPlan:
		return s.set(d, attrPlanHandle, int64(s.handle))
	}
	return nil
}

// failed is the error of a call with the given result; nil where it succeeded.
func (s *session) failed(result uintptr, call string) error {
	code := int32(result) // a cudnnStatus_t is an int: the upper half is undefined
	if code == 0 {
		return nil
	}
	clear(s.message[:])
	s.lib.lastError.Call(uintptr(unsafe.Pointer(&s.message)), uintptr(len(s.message)))
	text, _, _ := bytes.Cut(s.message[:], []byte{0})
	return &statusError{call, code, dl.GoString(s.lib.statusName.Call(uintptr(code))), strings.TrimSpace(string(text))}
}

func (s *session) wordAddr() uintptr {
	s.word = 0
	return uintptr(unsafe.Pointer(&s.word))
}

// create makes an empty descriptor. The caller destroys it.
func (s *session) create(k kind) (desc, error) {
	err := s.failed(s.lib.newDescriptor.Call(uintptr(k.number), s.wordAddr()), "create a "+k.name)
	return desc{s.word, k}, err
}

func (s *session) destroy(d desc) error {
	return s.failed(s.lib.freeDescriptor.Call(d.addr), "destroy a "+d.kind.name)
}

func (s *session) finalize(d desc) error {
	return s.failed(s.lib.finalize.Call(d.addr), "finalize a "+d.kind.name)
}

// set writes an attribute's elements, which the library copies.
func (s *session) set(d desc, a attribute, values ...int64) error {
	s.encode(a.of, values)
	return s.write(d, a, len(values))
}

// write sets an attribute to count elements that lie in s.in as C has them.
func (s *session) write(d desc, a attribute, count int) error {
	r := s.lib.setAttribute.Call(d.addr, uintptr(a.number), uintptr(a.of.number), uintptr(count), uintptr(unsafe.Pointer(unsafe.SliceData(s.in))))
	if int32(r) == 0 {
		return nil
	}
	return s.failed(r, fmt.Sprintf("set %s of a %s", a.name, d.kind.name))
}

// get reads up to len(values) elements of an attribute into values and returns how
// many the library has; none are read where values is empty. Elements that are
// descriptors must already hold created ones: the library fills what they name.
func (s *session) get(d desc, a attribute, values []int64) (int, error) {
	s.encode(a.of, values)
	n, err := s.read(d, a, len(values))
	if err != nil {
		return 0, err
	}
	for i := range min(n, len(values)) {
		at := s.in[i*a.of.size:]
		switch a.of.size {
		case 8:
			values[i] = int64(binary.NativeEndian.Uint64(at))
		case 4:
			values[i] = int64(int32(binary.NativeEndian.Uint32(at)))
		default:
			values[i] = int64(at[0])
		}
	}
	return n, nil
}

// read gets up to count elements of an attribute as C has them into s.in, which is
// long enough, and returns how many the library has.
func (s *session) read(d desc, a attribute, count int) (int, error) {
	array := uintptr(unsafe.Pointer(unsafe.SliceData(s.in)))
	if count == 0 {
		array = 0 // asks for the number alone
	}
	s.count = 0
	r := s.lib.getAttribute.Call(d.addr, uintptr(a.number), uintptr(a.of.number), uintptr(count), uintptr(unsafe.Pointer(&s.count)), array)
	if int32(r) != 0 {
		return 0, s.failed(r, fmt.Sprintf("get %s of a %s", a.name, d.kind.name))
	}
	return int(s.count), nil
}

// encode writes values to s.in as elements of C.
func (s *session) encode(of element, values []int64) {
	s.in = s.in[:0]
	for _, v := range values {
		switch of.size {
		case 8:
			s.in = binary.NativeEndian.AppendUint64(s.in, uint64(v))
		case 4:
			s.in = binary.NativeEndian.AppendUint32(s.in, uint32(v))
		default:
			s.in = append(s.in, byte(v))
		}
	}
}
