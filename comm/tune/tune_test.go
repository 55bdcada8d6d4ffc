package tune

import (
	"errors"
	"math"
	"os"
	"reflect"
	"strings"
	"sync"
	"testing"
)

func anything([]Point) error { return nil }

func near(a, b float64) bool { return math.Abs(a-b) <= 1e-12*math.Abs(b) }

// ring is twice as slow as expected at 1 KiB, and four times at 16 KiB.
var points = []Point{
	{"AllReduce", "ring", 1 << 14, 1, 4},
	{"AllReduce", "ring", 1 << 10, 1, 2},
	{"AllReduce", "direct", 1 << 10, 3, 3.0 / 8},
	{"AllReduce", "oneshot", 1 << 10, 100, 0},
	{"Broadcast", "tree", 1 << 10, 5, 0},
}

func TestOff(t *testing.T) {
	table := New(points)
	for _, c := range []struct {
		call, algorithm string
		bytes           int
		want            float64
	}{
		{"AllReduce", "ring", 1, 2},
		{"AllReduce", "ring", 0, 2},
		{"AllReduce", "ring", 1 << 10, 2},
		{"AllReduce", "ring", 1 << 12, 2 * math.Sqrt2}, // half the way
		{"AllReduce", "ring", 1 << 14, 4},
		{"AllReduce", "ring", 1 << 30, 4},
		{"AllReduce", "direct", 1 << 20, 1.0 / 8},
		{"AllReduce", "oneshot", 1 << 10, 0.5}, // the mean of 2 and 1/8
		{"AllReduce", "doubling", 1 << 10, 1},
		{"AllGather", "ring", 1 << 10, 1},
		{"Broadcast", "tree", 1 << 10, 1},
	} {
		if got := table.Off(c.call, c.algorithm, c.bytes); !near(got, c.want) {
			t.Errorf("%s by %s of %d bytes is off by %v, want %v", c.call, c.algorithm, c.bytes, got, c.want)
		}
	}
	if off := (*Table)(nil).Off("AllReduce", "ring", 1); off != 1 {
		t.Errorf("no table is off by %v, want 1", off)
	}
}

// one is a point as it is written, and of a table of it.
func one(bytes, expected, seconds string) string {
	return `{"call":"AllReduce","algorithm":"ring","bytes":` + bytes + `,"expected":` + expected + `,"seconds":` + seconds + `}`
}

func of(bytes, expected, seconds string) string { return "[" + one(bytes, expected, seconds) + "]" }

func TestEncodedTablesAreTheSame(t *testing.T) {
	table := New(points)
	again, err := Decode(table.Encode())
	if err != nil || !reflect.DeepEqual(again, table) {
		t.Errorf("%v, %v: want %v", again, err, table)
	}
	if _, err := Decode([]byte(of("1024", "1", "1"))); err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{
		"", "{", `[{"call":"AllReduce"}]`,
		of("1024", "1", "-1"), of("1024", "1", "0"), of("1024", "1", "1e300"), of("1024", "1", "1e-300"), of("1024", "1e9", "1"), of("1024", "1e-12", "1"),
		of("0", "1", "1"), of("1e400", "1", "1"), of("1024", "1", "NaN"),
		"[" + one("1024", "1", "1") + "," + one("1024", "1", "2") + "]",
	} {
		if _, err := Decode([]byte(text)); err == nil {
			t.Errorf("%q is read as a table", text)
		}
	}
}

// A file is whole, and of this key, or an error.
func TestTheCache(t *testing.T) {
	folder := t.TempDir() + "/a/b"
	const key = "tcp 2 hosts; a, b"
	if table, err := Load(folder, key, anything); table != nil || err != nil {
		t.Errorf("an empty cache gives %v, %v", table, err)
	}
	table := New(points)
	if err := Save(folder, key, table); err != nil {
		t.Fatal(err)
	}
	if again, err := Load(folder, key, anything); err != nil || !reflect.DeepEqual(again, table) {
		t.Errorf("%v, %v: want %v", again, err, table)
	}
	if other, err := Load(folder, key+", c", anything); other != nil || err != nil {
		t.Errorf("another key gives %v, %v", other, err)
	}
	whole, err := os.ReadFile(file(folder, key))
	if err != nil {
		t.Fatal(err)
	}
	for what, content := range map[string][]byte{
		"half a table": whole[:len(whole)/2],
		"other":        []byte(strings.Replace(string(whole), "2 hosts", "3 hosts", 1)),
		"nothing":      nil,
		"a zero":       []byte(strings.Replace(string(whole), `"expected": 1,`, `"expected": 0,`, 1)),
	} {
		if err := os.WriteFile(file(folder, key), content, 0o666); err != nil {
			t.Fatal(err)
		}
		if table, err := Load(folder, key, anything); err == nil || !strings.Contains(err.Error(), folder) {
			t.Errorf("%s is read as %v, %v: want an error that names the file", what, table, err)
		}
	}
}

// Who knows which points there can be has the last word, and the file is named.
func TestPointsThatDoNotFit(t *testing.T) {
	folder, table := t.TempDir(), New(points)
	if err := Save(folder, "key", table); err != nil {
		t.Fatal(err)
	}
	none := errors.New("no ring is that fast")
	got, err := Load(folder, "key", func(p []Point) error {
		if !reflect.DeepEqual(p, table.Points()) {
			t.Errorf("asked of %v, want %v", p, table.Points())
		}
		return none
	})
	if got != nil || !errors.Is(err, none) || !strings.Contains(err.Error(), file(folder, "key")) {
		t.Errorf("%v, %v: want the reason, with the file", got, err)
	}
}

// Who reads while others write finds a whole table.
func TestConcurrentWriters(t *testing.T) {
	folder, table := t.TempDir(), New(points)
	if err := Save(folder, "key", table); err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for range 25 {
				if err := Save(folder, "key", table); err != nil {
					t.Error(err)
				}
				if again, err := Load(folder, "key", anything); err != nil || !reflect.DeepEqual(again, table) {
					t.Errorf("%v, %v", again, err)
				}
			}
		})
	}
	all.Wait()
	if left, err := os.ReadDir(folder); err != nil || len(left) != 1 {
		t.Errorf("the folder holds %v, %v: want one file", left, err)
	}
}
