package monitor

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"image/png"
	"io"
	"math"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/gorun-dev/gorun/runtime/testenv"
)

// parsed is an event as a reader of the file sees it.
type parsed struct {
	time    float64
	step    uint64
	version string
	start   bool
	scalars map[string]float32
}

// read follows the format's description, apart from the writer: every checksum counts.
func read(t *testing.T, path string) (events []parsed) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	unmask := func(c uint32) uint32 { r := c - 0xa282ead8; return r>>17 | r<<15 }
	sum := func(b []byte) uint32 { return crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)) }
	for len(b) > 0 {
		n := binary.LittleEndian.Uint64(b)
		if got := unmask(binary.LittleEndian.Uint32(b[8:])); got != sum(b[:8]) {
			t.Fatalf("checksum of the length is %#x, want %#x", got, sum(b[:8]))
		}
		data := b[12 : 12+n]
		if got := unmask(binary.LittleEndian.Uint32(b[12+n:])); got != sum(data) {
			t.Fatalf("checksum of the data is %#x, want %#x", got, sum(data))
		}
		b = b[16+n:]
		var e parsed
		each(t, data, func(field protowire.Number, bits uint64, bytes []byte) {
			switch field {
			case 1:
				e.time = math.Float64frombits(bits)
			case 2:
				e.step = bits
			case 3:
				e.version = string(bytes)
			case 5:
				e.scalars = map[string]float32{}
				each(t, bytes, func(_ protowire.Number, _ uint64, value []byte) {
					var name string
					each(t, value, func(field protowire.Number, bits uint64, bytes []byte) {
						if field == 1 {
							name = string(bytes)
						} else {
							e.scalars[name] = math.Float32frombits(uint32(bits))
						}
					})
				})
			case 7:
				each(t, bytes, func(_ protowire.Number, bits uint64, _ []byte) { e.start = bits == 1 })
			}
		})
		events = append(events, e)
	}
	return events
}

func each(t *testing.T, b []byte, f func(field protowire.Number, bits uint64, bytes []byte)) {
	t.Helper()
	for len(b) > 0 {
		field, kind, n := protowire.ConsumeTag(b)
		var bits uint64
		var bytes []byte
		var m int
		switch kind {
		case protowire.VarintType:
			bits, m = protowire.ConsumeVarint(b[n:])
		case protowire.Fixed64Type:
			bits, m = protowire.ConsumeFixed64(b[n:])
		case protowire.Fixed32Type:
			var v uint32
			v, m = protowire.ConsumeFixed32(b[n:])
			bits = uint64(v)
		case protowire.BytesType:
			bytes, m = protowire.ConsumeBytes(b[n:])
		}
		if n < 0 || m <= 0 && kind != protowire.BytesType {
			t.Fatalf("no field at %x", b)
		}
		f(field, bits, bytes)
		b = b[n+m:]
	}
}

func written(t *testing.T, dir string, points ...Point) string {
	t.Helper()
	tb, err := NewTensorBoard(dir, 7, time.Unix(1000, 5e8))
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range points {
		if err := tb.Write(p); err != nil {
			t.Fatal(err)
		}
	}
	if err := tb.Close(); err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(dir, "events.out.tfevents.0000001000.*"))
	if err != nil || len(files) != 1 {
		t.Fatalf("files %v, %v", files, err)
	}
	return files[0]
}

func points() (list []Point) {
	for step := 7; step < 10; step++ {
		list = append(list, Point{step, time.Unix(int64(1000+step), 0), []Value{
			{"train/loss", 1 / float64(step)}, {"train/lr", 3e-4}, {"perf/tokens_per_s", 1e6 * float64(step)},
		}})
	}
	return list
}

func TestEventFile(t *testing.T) {
	got := read(t, written(t, filepath.Join(t.TempDir(), "tensorboard"), points()...))
	if len(got) != 5 {
		t.Fatalf("%d events, want 5", len(got))
	}
	if got[0].version != "brain.Event:2" || got[0].time != 1000.5 {
		t.Errorf("the first event is %+v", got[0])
	}
	if !got[1].start || got[1].step != 7 {
		t.Errorf("the second event is %+v", got[1])
	}
	for i, p := range points() {
		e := got[2+i]
		if e.step != uint64(p.Step) || e.time != float64(p.Time.Unix()) || len(e.scalars) != len(p.Values) {
			t.Errorf("event of step %d: %+v", p.Step, e)
		}
		for _, v := range p.Values {
			if e.scalars[v.Name] != float32(v.V) {
				t.Errorf("step %d: %s is %v, want %v", p.Step, v.Name, e.scalars[v.Name], v.V)
			}
		}
	}
}

// TensorBoard itself reads the file.
func TestTensorBoardReadsIt(t *testing.T) {
	python := testenv.Python(t, "tensorboard")
	dir := t.TempDir()
	written(t, dir, points()...)
	out := testenv.RunPython(t, python, nil, "-c", `
import sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
a = EventAccumulator(sys.argv[1])
a.Reload()
for tag in sorted(a.Tags()["scalars"]):
    print(tag, [(e.step, round(e.value, 6)) for e in a.Scalars(tag)])
`, dir)
	want := "perf/tokens_per_s [(7, 7000000.0), (8, 8000000.0), (9, 9000000.0)]\n" +
		"train/loss [(7, 0.142857), (8, 0.125), (9, 0.111111)]\ntrain/lr [(7, 0.0003), (8, 0.0003), (9, 0.0003)]\n"
	if string(out) != want {
		t.Errorf("TensorBoard reads\n%s\nwant\n%s", out, want)
	}
}

func TestPrometheusPage(t *testing.T) {
	p, err := NewPrometheus("127.0.0.1:0", "a \"run\"")
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range points() {
		if err := p.Write(x); err != nil {
			t.Fatal(err)
		}
	}
	url := fmt.Sprintf("http://%s/metrics", p.Addr())
	r, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(r.Body)
	if err != nil || r.Body.Close() != nil || r.StatusCode != http.StatusOK {
		t.Fatalf("status %s, %v", r.Status, err)
	}
	for _, want := range []string{
		`gorun_step{run="a \"run\""} 9`, `gorun_train_lr{run="a \"run\""} 0.0003`, `gorun_perf_tokens_per_s{run="a \"run\""} 9e+06`,
		"# TYPE gorun_train_loss gauge",
	} {
		if !strings.Contains(string(body), want+"\n") {
			t.Errorf("the page lacks %q:\n%s", want, body)
		}
	}
	if _, err := NewPrometheus(p.Addr().String(), ""); err == nil {
		t.Error("two pages at one address")
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	if _, err := net.Dial("tcp", p.Addr().String()); err == nil {
		t.Error("it still listens")
	}
}

func TestPlot(t *testing.T) {
	path := filepath.Join(t.TempDir(), "loss.png")
	var train []XY
	for step := range 200 {
		train = append(train, XY{step, 3 / (1 + float64(step)/50)})
	}
	train[5].Y, train[6].Y = math.NaN(), math.Inf(1)
	size := map[string]int{}
	for name, curves := range map[string][]Curve{
		"both": {{"training", train}, {"validation", []XY{{50, 2}, {100, 1.5}}}}, "nothing": {{"training", nil}}, "one": {{"training", train[:1]}},
	} {
		if err := Plot(path, "a run", "loss", curves); err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		img, err := png.Decode(bytes.NewReader(b))
		if err != nil || img.Bounds().Dx() < 600 {
			t.Errorf("%s: %v, %v", name, img.Bounds(), err)
		}
		coloured := 0
		for y := range img.Bounds().Dy() {
			for x := range img.Bounds().Dx() {
				if r, g, b, _ := img.At(x, y).RGBA(); max(r, g, b)-min(r, g, b) > 1<<14 {
					coloured++
				}
			}
		}
		size[name] = coloured
	}
	if size["nothing"] != 0 || size["one"] == 0 || size["both"] < 1000 {
		t.Errorf("coloured points: %v", size)
	}
}
