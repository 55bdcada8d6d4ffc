package topology

import (
	"bytes"
	"errors"
	"fmt"
	"runtime"
	"unsafe"

	"github.com/gorun-dev/gorun/runtime/dl"
)

var nvmlSpec = dl.Spec{
	Name:    "NVML",
	Files:   []string{"libnvidia-ml.so.1"},
	Env:     "GORUN_NVML_LIB",
	Gives:   "the GPUs' names, NVLinks and access to each other's memory",
	Install: "NVIDIA's driver (in a container: the capability utility, NVIDIA_DRIVER_CAPABILITIES=all)",
}

// Library is NVIDIA's management library, libnvidia-ml.so.1, which comes with the
// driver. Its methods may not be called at the same time.
type Library struct {
	call    map[string]dl.Proc
	devices []uintptr // handles
}

// nvmlCalls are the functions in use. Of Hopper's generation are those that may be
// missing from an older driver.
var nvmlCalls = []struct {
	name     string
	optional bool
}{
	{"nvmlInit_v2", false}, {"nvmlShutdown", false}, {"nvmlErrorString", false},
	{"nvmlDeviceGetCount_v2", false}, {"nvmlDeviceGetHandleByIndex_v2", false},
	{"nvmlDeviceGetName", false}, {"nvmlDeviceGetPciInfo_v3", false},
	{"nvmlDeviceGetCudaComputeCapability", false}, {"nvmlDeviceGetP2PStatus", false},
	{"nvmlDeviceGetNvLinkState", false}, {"nvmlDeviceGetNvLinkCapability", false},
	{"nvmlDeviceGetNvLinkRemotePciInfo_v2", true}, {"nvmlDeviceGetFieldValues", true},
}

// What NVML answers.
const (
	nvmlSuccess      = 0
	nvmlNotSupported = 3
)

// OpenNVML opens and starts the library. Close it afterwards.
func OpenNVML() (*Library, error) {
	lib, err := dl.Open(nvmlSpec)
	if err != nil {
		return nil, err
	}
	l := &Library{call: map[string]dl.Proc{}}
	for _, c := range nvmlCalls {
		p, err := lib.Proc(c.name)
		if err != nil && !c.optional {
			return nil, err
		}
		l.call[c.name] = p // zero if it is missing
	}
	if err := l.do("nvmlInit_v2"); err != nil {
		return nil, err
	}
	return l, nil
}

// Close ends the library's use.
func (l *Library) Close() error { return l.do("nvmlShutdown") }

func (l *Library) do(name string, args ...uintptr) error {
	if r := int32(l.call[name].Call(args...)); r != nvmlSuccess {
		return nvmlError{name, r, dl.GoString(l.call["nvmlErrorString"].Call(uintptr(r)))}
	}
	return nil
}

type nvmlError struct {
	call   string
	result int32
	text   string
}

func (e nvmlError) Error() string { return fmt.Sprintf("%s: %s (%d)", e.call, e.text, e.result) }

// Devices implements NVML.
func (l *Library) Devices() (devices []Device, err error) {
	var count uint32
	if err := l.do("nvmlDeviceGetCount_v2", uintptr(unsafe.Pointer(&count))); err != nil {
		return nil, err
	}
	l.devices = make([]uintptr, count)
	var problems []error
	for i := range l.devices {
		if err := l.do("nvmlDeviceGetHandleByIndex_v2", uintptr(i), uintptr(unsafe.Pointer(&l.devices[i]))); err != nil {
			return nil, fmt.Errorf("GPU%d: %w", i, err)
		}
		d, links, err := l.describe(l.devices[i])
		if err != nil {
			return nil, fmt.Errorf("GPU%d: %w", i, err)
		}
		if links != nil {
			problems = append(problems, fmt.Errorf("GPU%d: %w", i, links))
		}
		devices = append(devices, d)
	}
	return devices, errors.Join(problems...)
}

// describe tells all of a GPU. What is wrong with its links alone is links.
func (l *Library) describe(h uintptr) (d Device, links, err error) {
	var major, minor int32
	if err := l.do("nvmlDeviceGetCudaComputeCapability", h, uintptr(unsafe.Pointer(&major)), uintptr(unsafe.Pointer(&minor))); err != nil {
		return d, nil, err
	}
	d.Compute = int(major)*10 + int(minor)
	name := make([]byte, 96)
	if err := l.do("nvmlDeviceGetName", h, uintptr(unsafe.Pointer(&name[0])), uintptr(len(name))); err != nil {
		return d, nil, err
	}
	d.Name = dl.GoString(uintptr(unsafe.Pointer(&name[0])))
	runtime.KeepAlive(name)
	pci := new(nvmlPCI)
	if err := l.do("nvmlDeviceGetPciInfo_v3", h, uintptr(unsafe.Pointer(pci))); err != nil {
		return d, nil, err
	}
	d.BusID = pci.address()
	d.NVLinks, links = l.nvlinks(h, d.Compute)
	d.C2C, d.C2CRate = l.chipLinks(h, d.Compute)
	return d, links, nil
}

// nvmlPCI is nvmlPciInfo_t.
type nvmlPCI struct {
	legacy                [16]byte
	domain, bus, device   uint32
	deviceID, subSystemID uint32
	busID                 [32]byte
	_                     [64]byte // for a later version of it
}

// address is "" for a device that is not to be seen, which has no proper one.
func (p *nvmlPCI) address() string {
	text, _, _ := bytes.Cut(p.busID[:], []byte{0})
	if id := string(text); isBusID(id) {
		return id
	}
	return ""
}

// nvlinks are the other ends of the links that are up and may carry traffic between
// GPUs. That a GPU has no links is no error.
func (l *Library) nvlinks(h uintptr, compute int) (ends []string, err error) {
	const most, capabilityP2P = 18, 0
	var problems []error
	for link := range most {
		var can uint32
		err := l.do("nvmlDeviceGetNvLinkCapability", h, uintptr(link), capabilityP2P, uintptr(unsafe.Pointer(&can)))
		if err != nil || can == 0 {
			continue // it has no such link
		}
		end, up, err := l.nvlink(h, link, compute)
		if err != nil {
			problems = append(problems, fmt.Errorf("NVLink %d: %w", link, err))
		} else if up {
			ends = append(ends, end)
		}
	}
	return ends, errors.Join(problems...)
}

func (l *Library) nvlink(h uintptr, link, compute int) (end string, up bool, err error) {
	state, err := l.linkState(h, link, compute)
	if err != nil || state == 0 {
		return "", false, err
	}
	if l.call["nvmlDeviceGetNvLinkRemotePciInfo_v2"] == 0 {
		return "", false, errors.New("the driver is too old to tell where it leads: update it to 450 or later")
	}
	pci := new(nvmlPCI)
	if err := l.do("nvmlDeviceGetNvLinkRemotePciInfo_v2", h, uintptr(link), uintptr(unsafe.Pointer(pci))); err != nil {
		return "", false, err
	}
	return pci.address(), true, nil
}

// linkState is 1 for a link that is up. From Hopper on it is a field.
func (l *Library) linkState(h uintptr, link, compute int) (state uint32, err error) {
	const fieldState = 165
	if compute >= 90 {
		if state, ok := l.field(h, fieldState, link); ok {
			return state, nil
		}
	}
	return state, l.do("nvmlDeviceGetNvLinkState", h, uintptr(link), uintptr(unsafe.Pointer(&state)))
}

// chipLinks are the links of a GPU to the CPU on its own package.
func (l *Library) chipLinks(h uintptr, compute int) (count, rate int) {
	const fieldCount, fieldStatus, fieldRate = 170, 171, 172
	if compute < 90 {
		return 0, 0
	}
	n, _ := l.field(h, fieldCount, 0) // 0 where there are none
	for link := range int(n) {
		up, ok := l.field(h, fieldStatus, link)
		mbs, ok2 := l.field(h, fieldRate, link)
		if ok && ok2 && up == 1 {
			count, rate = count+1, int(mbs)
		}
	}
	return count, rate
}

// nvmlField is nvmlFieldValue_t.
type nvmlField struct {
	id, scope  uint32
	time, took int64
	kind       uint32
	result     int32
	value      [8]byte
}

// field is a number that NVML has no function for; ok is false where this GPU or
// driver does not have it.
func (l *Library) field(h uintptr, id uint32, scope int) (v uint32, ok bool) {
	if l.call["nvmlDeviceGetFieldValues"] == 0 {
		return 0, false
	}
	f := &nvmlField{id: id, scope: uint32(scope), result: nvmlNotSupported}
	if err := l.do("nvmlDeviceGetFieldValues", h, 1, uintptr(unsafe.Pointer(f))); err != nil || f.result != nvmlSuccess {
		return 0, false
	}
	return *(*uint32)(unsafe.Pointer(&f.value)), true
}

// p2pStatus is what NVML's statuses say.
var p2pStatus = []string{
	"ok", "the chipset does not support it", "the GPU does not support it", "the PCIe topology does not support it",
	"a setting of the driver disables it", "not supported", "unknown",
}

// P2P implements NVML. Devices has to be called before.
func (l *Library) P2P(a, b int) (p P2P, err error) {
	for i, to := range []*string{&p.Read, &p.Write} {
		var status int32
		if err := l.do("nvmlDeviceGetP2PStatus", l.devices[a], l.devices[b], uintptr(i), uintptr(unsafe.Pointer(&status))); err != nil {
			return p, err
		}
		*to = p2pStatus[len(p2pStatus)-1]
		if int(status) < len(p2pStatus) && status >= 0 {
			*to = p2pStatus[status]
		}
	}
	return p, nil
}
