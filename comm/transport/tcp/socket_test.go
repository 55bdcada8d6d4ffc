package tcp

import (
	"net"
	"strings"
	"testing"
)

// Why a host does not acknowledge is told from whether it takes a new connection,
// and from how much waits.
func TestUnanswered(t *testing.T) {
	m := join(t, 1, newExchange(), nil)[0].Mesh
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	conn := c.(*net.TCPConn)
	if got := m.unanswered(conn, 9000); !strings.Contains(got, "firewall") {
		t.Errorf("nothing of size waits: %s", got)
	}
	// Its window closed, the peer leaves the rest of this unacknowledged.
	if err := conn.SetWriteBuffer(1 << 20); err != nil {
		t.Fatal(err)
	}
	go conn.Write(make([]byte, 64<<20)) // ends with the connection
	for waiting := 0; waiting <= smallEnough; {
		if err := control(conn, func(fd int) (err error) { waiting, err = outstanding(fd); return err }); err != nil {
			t.Fatal(err)
		}
	}
	for _, listening := range []bool{true, false} { // nobody there: its host says so
		if !listening {
			l.Close()
		}
		if got := m.unanswered(conn, 9000); !strings.Contains(got, "MTU is smaller than the interface's 9000 bytes") {
			t.Errorf("a lot waits, somebody listens %t: %s", listening, got)
		}
	}
}
