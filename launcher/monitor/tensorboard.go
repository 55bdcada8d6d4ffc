package monitor

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math"
	"os"
	"path/filepath"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
)

// TensorBoard writes an event file, which TensorBoard shows while it grows. A run that
// goes on begins a new file beside the old ones, whose later steps it supersedes.
type TensorBoard struct{ f *os.File }

// NewTensorBoard begins a file in dir, for steps from the given one on: of the files
// that are there, TensorBoard then shows none of these.
func NewTensorBoard(dir string, from int, now time.Time) (*TensorBoard, error) {
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return nil, err
	}
	host, err := os.Hostname()
	if err != nil {
		return nil, err
	}
	name := fmt.Sprintf("events.out.tfevents.%010d.%s.%d.%d", now.Unix(), host, os.Getpid(), now.Nanosecond())
	f, err := os.OpenFile(filepath.Join(dir, name), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if err != nil {
		return nil, err
	}
	t := &TensorBoard{f}
	version := protowire.AppendString(protowire.AppendTag(nil, eventVersion, protowire.BytesType), "brain.Event:2")
	const start = 1 // SessionLog.START
	session := protowire.AppendVarint(protowire.AppendTag(nil, sessionStatus, protowire.VarintType), start)
	for _, e := range []struct {
		step int
		what []byte
	}{{0, version}, {from, submessage(nil, eventSession, session)}} {
		if err := t.event(e.step, now, e.what); err != nil {
			f.Close() // the first error says more
			return nil, err
		}
	}
	return t, nil
}

// The numbers of the fields in TensorFlow's event.proto and summary.proto.
const (
	eventTime, eventStep, eventVersion, eventSummary, eventSession = 1, 2, 3, 5, 7
	summaryValue                                                   = 1
	valueTag, valueSimple                                          = 1, 2
	sessionStatus                                                  = 1
)

// Write appends the figures.
func (t *TensorBoard) Write(p Point) error {
	var summary []byte
	for _, v := range p.Values {
		value := protowire.AppendString(protowire.AppendTag(nil, valueTag, protowire.BytesType), v.Name)
		value = protowire.AppendFixed32(protowire.AppendTag(value, valueSimple, protowire.Fixed32Type), math.Float32bits(float32(v.V)))
		summary = submessage(summary, summaryValue, value)
	}
	return t.event(p.Step, p.Time, submessage(nil, eventSummary, summary))
}

// Close ends the file.
func (t *TensorBoard) Close() error { return t.f.Close() }

func submessage(b []byte, field protowire.Number, message []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(b, field, protowire.BytesType), message)
}

// event writes one event in one call, so that a killed job leaves whole ones.
func (t *TensorBoard) event(step int, now time.Time, what []byte) error {
	e := protowire.AppendFixed64(protowire.AppendTag(nil, eventTime, protowire.Fixed64Type), math.Float64bits(float64(now.UnixMicro())/1e6))
	e = protowire.AppendVarint(protowire.AppendTag(e, eventStep, protowire.VarintType), uint64(step))
	_, err := t.f.Write(record(append(e, what...)))
	return err
}

// record frames data as TFRecord files do: the length and its checksum, the data and
// its checksum.
func record(data []byte) []byte {
	b := binary.LittleEndian.AppendUint64(nil, uint64(len(data)))
	b = binary.LittleEndian.AppendUint32(b, masked(b))
	b = append(b, data...)
	return binary.LittleEndian.AppendUint32(b, masked(data))
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// masked is a checksum that may itself be part of data with a checksum.
func masked(b []byte) uint32 {
	c := crc32.Checksum(b, castagnoli)
	return (c>>15 | c<<17) + 0xa282ead8
}
