package doctor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/gorun-dev/gorun/comm/transport"
	"github.com/gorun-dev/gorun/comm/transport/rdma"
	"github.com/gorun-dev/gorun/runtime/dtype"
)

const (
	pingBound   = 10 * time.Second // for the ports of one pair of hosts, all at once
	pingRounds  = 100              // small messages, there and back
	pingPayload = 1 << 20          // bytes that go each way in packets of full size, and are verified
)

// Ping is an exchange over RDMA between a port of this host and one of another.
type Ping struct {
	From   string  `json:"from"`
	To     string  `json:"to"`
	Port   string  `json:"port"`      // mlx5_0:1
	Peer   string  `json:"peer_port"` // there
	Micros float64 `json:"us"`        // half a round trip of a small message, the median
	Error  string  `json:"error,omitempty"`
}

// pinger exchanges messages with a peer, who does the same at the same time: by port,
// this host being rank 0 or 1 of the two.
type pinger func(ctx context.Context, rank int, hosts [2]string, port string, keys rdma.Exchange) (micros float64, err error)

// activePorts are those that a job would use, as NCCL_IB_HCA names them; chosen is
// that variable.
func activePorts(devices []RDMADevice, chosen string) (out []string) {
	list, exclude := strings.CutPrefix(chosen, "^")
	list, exact := strings.CutPrefix(list, "=")
	named := func(device string, port int) bool {
		for e := range strings.SplitSeq(list, ",") {
			name, number, has := strings.Cut(strings.TrimSpace(e), ":")
			if name == "" || has && number != strconv.Itoa(port) {
				continue
			}
			if name == device || !exact && strings.HasPrefix(device, name) {
				return true
			}
		}
		return false
	}
	for _, d := range devices {
		for _, p := range d.Ports {
			if d.Verbs != "" && p.active() && (list == "" || named(d.Name, p.Number) != exclude) {
				out = append(out, fmt.Sprintf("%s:%d", d.Name, p.Number))
			}
		}
	}
	return out
}

// opponent is whom a host plays in a round of a tournament of n, in which everybody
// plays everybody once in n rounds, and at most one at a time. A host that would play
// itself pauses.
func opponent(host, round, n int) int { return ((round-host)%n + n) % n }

// pingAll exchanges messages with all other hosts, port by port in the order of the
// devices, as the ranks of a job take them. All hosts do it at the same time, once
// everybody is ready, and with one peer at a time: each knows whose turn it is.
func (m *Meeting) pingAll(ctx context.Context, own call, r *result) {
	if err := m.Board.Set(ctx, readyKey(m.Self), []byte{1}); err != nil {
		return // handing in the result will fail, too, and say it
	}
	if len(own.RDMA) == 0 {
		return // the check of RDMA devices has said why
	}
	if err := m.ready(ctx); err != nil {
		r.Examination.unseen("ping over RDMA", m.Machine.Name, []error{err})
		return
	}
	for round := range m.Names {
		peer := opponent(m.Self, round, len(m.Names))
		if peer == m.Self {
			continue
		}
		var there call
		err := fetch(ctx, m.Board, callKey(peer), &there)
		if err == nil && ctx.Err() != nil {
			err = errTimeUp
		}
		if err != nil {
			r.Examination.unseen("ping over RDMA to "+m.Names[peer], m.Machine.Name, []error{err})
			continue
		}
		for _, p := range m.pingPorts(ctx, peer, own, there) {
			r.Pings = append(r.Pings, p)
			if p.Error != "" {
				r.Examination.Findings = append(r.Examination.Findings, p.finding())
			}
		}
	}
}

// ready waits until all hosts have come as far, so that no ping waits for a host that
// still does something else.
func (m *Meeting) ready(ctx context.Context) error {
	for host := range m.Names {
		if _, err := m.Board.Wait(ctx, readyKey(host)); err != nil {
			return fmt.Errorf("%s did not get ready: %w", m.Names[host], err)
		}
	}
	return nil
}

func readyKey(host int) string { return fmt.Sprintf("doctor/ready/%d", host) }

// pingPorts exchanges messages over all ports of a pair of hosts at once.
func (m *Meeting) pingPorts(ctx context.Context, peer int, own, there call) []Ping {
	ctx, cancel := context.WithTimeout(ctx, pingBound)
	defer cancel()
	low, high, rank := m.Self, peer, 0
	if peer < m.Self {
		low, high, rank = peer, m.Self, 1
	}
	out := make([]Ping, min(len(own.RDMA), len(there.RDMA)))
	var wait sync.WaitGroup
	for i := range out {
		out[i] = Ping{From: m.Machine.Name, To: m.Names[peer], Port: own.RDMA[i], Peer: there.RDMA[i]}
		wait.Go(func() {
			keys := prefixed{m.Board, fmt.Sprintf("doctor/ping/%d/%d/%d/", low, high, i)}
			micros, err := m.ping(ctx, rank, [2]string{m.Names[low], m.Names[high]}, own.RDMA[i], keys)
			out[i].Micros = micros
			if err != nil {
				out[i].Error = err.Error()
			}
		})
	}
	wait.Wait()
	return out
}

// prefixed is a part of a Board.
type prefixed struct {
	board  Board
	prefix string
}

func (p prefixed) Set(ctx context.Context, key string, value []byte) error {
	return p.board.Set(ctx, p.prefix+key, value)
}

func (p prefixed) Wait(ctx context.Context, key string) ([]byte, error) {
	return p.board.Wait(ctx, p.prefix+key)
}

func (p Ping) finding() Finding {
	return Finding{
		Check: "rdma", Severity: Error, Where: Where{Host: p.From, Device: p.Port, Peer: p.To},
		What:     fmt.Sprintf("%s cannot exchange data with %s of %s over RDMA, though both ports are active", p.Port, p.Peer, p.To),
		Evidence: p.Error,
		Fix:      "look at the addresses of both ends (show_gids, NCCL_IB_GID_INDEX), at the MTU of every switch between them, at firewalls for UDP port 4791 (RoCE), and at the partition key (InfiniBand); NCCL_IB_HCA leaves a port out",
	}
}

// pingOver is the pinger of real devices. It takes the way that a job takes.
func (m *Machine) pingOver(ctx context.Context, rank int, hosts [2]string, port string, keys rdma.Exchange) (micros float64, err error) {
	deadline, ok := ctx.Deadline()
	if !ok {
		return 0, errors.New("an exchange over RDMA needs a deadline")
	}
	settings, err := rdma.Settings{HCA: "=" + port}.FromEnvironment(m.env)
	if err != nil {
		return 0, err
	}
	mesh, err := rdma.Join(ctx, rdma.Options{
		Rank: rank, Hosts: hosts[:], Exchange: keys, Settings: settings,
		Traffic: &transport.Traffic{}, Logger: slog.New(slog.DiscardHandler),
		Check: func(int, transport.Header) error { return nil }, Lost: func(error) {},
	})
	if err != nil {
		return 0, err
	}
	micros, err = exchange(mesh, rank, deadline)
	if err != nil {
		mesh.Abort(err)
		return micros, errors.Join(err, ifOther(mesh.Close(), err))
	}
	return micros, mesh.Close()
}

// exchange sends small messages there and back, and then verified data each way. It
// returns half the median time of a round.
func exchange(mesh *rdma.Mesh, rank int, deadline time.Time) (micros float64, err error) {
	peer, seq := 1-rank, uint64(0)
	move := func(send bool, b []byte) error {
		c := &transport.Call{Header: transport.Header{Seq: seq, Kind: transport.Barrier, DType: dtype.U8, Root: -1, Count: uint64(len(b))}, Deadline: deadline}
		if !send {
			if err := mesh.PostRecv(c, peer, b); err != nil {
				return err
			}
			return mesh.WaitRecv(c, peer)
		}
		if err := mesh.PostSend(c, peer, b); err != nil {
			return err
		}
		return mesh.WaitSend(c, peer)
	}
	// both moves b there, and then back.
	both := func(there, back []byte) error {
		seq++
		if err := move(rank == 0, there); err != nil {
			return err
		}
		return move(rank == 1, back)
	}
	var rounds []time.Duration
	small := make([]byte, 8)
	for range pingRounds {
		start := time.Now()
		if err := both(small, small); err != nil {
			return 0, err
		}
		rounds = append(rounds, time.Since(start))
	}
	slices.Sort(rounds)
	micros = float64(rounds[len(rounds)/2].Nanoseconds()) / 2000
	data := [2][]byte{make([]byte, pingPayload), make([]byte, pingPayload)} // that rank 0 and rank 1 send
	for i := range data[rank] {
		data[rank][i] = pattern(rank, i)
	}
	if err := both(data[0], data[1]); err != nil {
		return micros, err
	}
	for i, b := range data[peer] {
		if b != pattern(peer, i) {
			return micros, fmt.Errorf("byte %d of %d arrived as %#02x, want %#02x", i, pingPayload, b, pattern(peer, i))
		}
	}
	return micros, nil
}

func pattern(rank, i int) byte { return byte(i*7 + i>>8*13 + rank*31) }

// ifOther drops an error that repeats another.
func ifOther(err, known error) error {
	if errors.Is(err, known) || err != nil && err.Error() == known.Error() {
		return nil
	}
	return err
}

// writePings writes a line for each.
func writePings(b *strings.Builder, pings []Ping) {
	if len(pings) == 0 {
		return
	}
	b.WriteString("pings over RDMA:\n")
	for _, p := range pings {
		fmt.Fprintf(b, "  %s %s to %s %s: ", p.From, p.Port, p.To, p.Peer)
		if p.Error != "" {
			fmt.Fprintf(b, "%s\n", p.Error)
		} else {
			fmt.Fprintf(b, "%.1f us\n", p.Micros)
		}
	}
	b.WriteString("\n")
}
