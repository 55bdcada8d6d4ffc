package status

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/gorun-dev/gorun/comm"
	"github.com/gorun-dev/gorun/comm/transport"
)

var errTest = errors.New("why")

func TestBlames(t *testing.T) {
	late := transport.TimeoutError{Peer: 3}
	for _, c := range []struct {
		err  error
		want []int
	}{
		{errTest, nil},
		{nil, nil},
		{&transport.PeerError{Peer: 2, Err: errTest}, []int{2}},
		{&late, []int{3}},
		{&comm.StuckError{TimeoutError: late}, []int{3}},
		{&comm.StuckError{TimeoutError: late, Behind: []comm.Position{{Rank: 1}, {Rank: 2}}}, []int{1, 2}},
		{&comm.StuckError{TimeoutError: late, Silent: []int{0}, Behind: []comm.Position{{Rank: 1}}}, []int{0}},
		{&comm.StuckError{TimeoutError: late, Waits: []comm.Wait{{Rank: 2, For: 1}, {Rank: 0, For: 2}}}, []int{1}},
		{&comm.StuckError{TimeoutError: transport.TimeoutError{Peer: -1}}, nil},
		{&comm.AbortError{Rank: 1, Err: &transport.PeerError{Peer: 2, Err: errTest}}, []int{1}},
		{&comm.StreamError{Rank: 1, Err: errTest}, []int{1}},
		{&comm.CallError{Rank: 0, Err: errTest}, []int{0}},
		{&transport.MismatchError{Rank: 1, Peer: 2}, nil},
	} {
		if got := Blames(c.err); !slices.Equal(got, c.want) {
			t.Errorf("%T: %v, want %v", c.err, got, c.want)
		}
		if c.err == nil {
			continue
		}
		wrapped := fmt.Errorf("step 3: %w", &comm.DeadError{Err: c.err})
		if got := Blames(wrapped); !slices.Equal(got, c.want) {
			t.Errorf("%T in a DeadError: %v, want %v", c.err, got, c.want)
		}
	}
}

func TestRecordError(t *testing.T) {
	path := filepath.Join(t.TempDir(), "error.json")
	t.Setenv(ErrorFileVariable, path)
	if err := RecordError(nil); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err == nil {
		t.Error("a file for no error")
	}
	if err := RecordError(&transport.PeerError{Peer: 2, Host: "h", Err: errTest}); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var got errorFile
	if err := json.Unmarshal(b, &got); err != nil || got.Message != "rank 2 on h: why" || !slices.Equal(got.Blames, []int{2}) {
		t.Errorf("%s: %v", b, err)
	}
	t.Setenv(ErrorFileVariable, filepath.Join(path, "x"))
	if err := RecordError(errTest); err == nil {
		t.Error("it cannot be written, and that is no error")
	}
}
