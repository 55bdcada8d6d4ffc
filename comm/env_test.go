package comm

import (
	"net"
	"testing"
)

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
	first, second := accept(), accept()
	first.Close()
	first.Close() // counts once
	select {
	case <-c.gone():
		t.Error("gone with a connection open")
	default:
	}
	second.Close()
	<-c.gone()
	third := accept() // late, and no matter
	third.Close()
	<-c.gone()
}
