package verbs

import "fmt"

// Status is how a work request ended.
type Status uint32

const (
	Success        Status = 0
	LocalLength    Status = 1
	LocalOperation Status = 2
	LocalProtect   Status = 4
	Flushed        Status = 5
	RemoteInvalid  Status = 9
	RemoteAccess   Status = 10
	RemoteOp       Status = 11
	RetryExceeded  Status = 12
	RNRExceeded    Status = 13
)

// sentences say what a status means, and what to do.
var sentences = map[Status]string{
	Success:        "success",
	LocalLength:    "a message of a wrong length: the two ends differ in version or in MTU; give all hosts one MTU",
	LocalOperation: "the device could not carry it out: its own link is down, or its address is gone; look at the port's state and at `ip link`",
	LocalProtect:   "memory of this rank that the device may not touch: a fault of the program",
	Flushed:        "the queue pair had failed before",
	RemoteInvalid:  "the peer refused the packet: its MTU is smaller than this end's; give both interfaces one MTU",
	RemoteAccess:   "memory of the peer that this rank may not write: its key or address is wrong, a fault of the program, or a peer that was started anew",
	RemoteOp:       "the peer's device could not carry it out: look at the kernel log of its host",
	RetryExceeded:  "the peer does not answer: its process has ended, its host or link is down, packets of this size are dropped on the way (a switch with a smaller MTU), or the network loses too many (raise comm.ib_timeout)",
	RNRExceeded:    "the peer has no receive posted: it has stopped, or is overrun",
}

func (s Status) String() string {
	if text, ok := sentences[s]; ok {
		return text
	}
	return "it failed; the vendor's documentation knows the status"
}

// Event is what a device reports of itself.
type Event uint32

const (
	CQError     Event = 0
	QPFatal     Event = 1
	QPRequest   Event = 2
	QPAccess    Event = 3
	DeviceFatal Event = 8
	PortUp      Event = 9
	PortDown    Event = 10
	LIDChange   Event = 11
	PKeyChange  Event = 12
	GIDChange   Event = 18
)

var events = map[Event]string{
	CQError:     "a completion queue has overflowed",
	QPFatal:     "a queue pair has failed",
	QPRequest:   "a queue pair got an invalid request",
	QPAccess:    "a queue pair was asked for memory that it has no right to",
	DeviceFatal: "the device has failed",
	PortUp:      "a port has come up",
	PortDown:    "a port has gone down",
	LIDChange:   "the subnet manager has changed the port's address",
	PKeyChange:  "the table of partitions has changed",
	GIDChange:   "the table of addresses has changed",
}

func (e Event) String() string {
	if text, ok := events[e]; ok {
		return text
	}
	return fmt.Sprintf("event %d", uint32(e))
}

// Fatal reports whether nothing works any more after e.
func (e Event) Fatal() bool { return e <= QPAccess || e == DeviceFatal }
