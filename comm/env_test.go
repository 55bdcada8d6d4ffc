package comm

import (
	"errors"
	"net"
	"testing"

	"github.com/gorun-dev/gorun/comm/store"
)

// Rank 0 serves those alone who know the job's secret.
func TestTheStoreOfAJobWithoutGorunAsksForTheSecret(t *testing.T) {
	w := world{size: 2, listen: "127.0.0.1:0", token: "secret", job: "job"}
	s, err := w.serve()
	if err != nil {
		t.Fatal(err)
	}
	defer s.stop()
	for token, want := range map[string]error{"secret": nil, "": store.ErrToken, "other": store.ErrToken} {
		c, err := store.Dial(t.Context(), s.server.Addr().String(), store.Options{Token: token, Job: "job"})
		if !errors.Is(err, want) {
			t.Errorf("with the token %q the answer is %v, want %v", token, err, want)
		}
		if err == nil {
			c.Close()
		}
	}
}

// The store of a job without gorun is served until the last connection is closed.
func TestCallersAreGoneWithTheLastConnection(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c := &callers{Listener: l, none: make(chan struct{})}
	accept := func() net.Conn {
		near, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { near.Close() })
		far, err := c.Accept()
		if err != nil {
			t.Fatal(err)
		}
		return far
	}
	open := func() {
		t.Helper()
		select {
		case <-c.gone():
			t.Error("gone with a connection open")
		default:
		}
	}
	first, second := accept(), accept()
	open()
	first.Close()
	first.Close() // counts once
	open()
	second.Close()
	<-c.gone()
	third := accept() // late, and no matter
	third.Close()
	<-c.gone()
}
