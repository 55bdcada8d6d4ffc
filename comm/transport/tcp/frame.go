package tcp

import (
	"encoding/binary"

	"github.com/gorun-dev/gorun/comm/transport"
)

// A frame is a header, the size of the data, and the data.
const frameSize = transport.HeaderSize + 8

// What stands in place of the size in a frame without data.
const (
	goodbye = ^uint64(0)     // the rank leaves
	ready   = ^uint64(0) - 1 // the dialer knows the listener; the first frame as a rule
)

func encodeFrame(b *[frameSize]byte, h transport.Header, size uint64) {
	h.Encode(b[:])
	binary.LittleEndian.PutUint64(b[transport.HeaderSize:], size)
}

func decodeFrame(b *[frameSize]byte) (h transport.Header, size uint64) {
	return transport.Decode(b[:]), binary.LittleEndian.Uint64(b[transport.HeaderSize:])
}
