package dma

import (
	"bytes"
	"errors"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/gorun-dev/gorun/comm/transport"
	"github.com/gorun-dev/gorun/runtime/cuda"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/dtype"
)

// parcel is n bytes that one rank sends to another in a round.
func parcel(from, to, round, n int) []byte {
	pattern := make([]byte, 251)
	for i := range pattern {
		pattern[i] = byte(31*from + 57*to + 7*round + i*i)
	}
	return bytes.Repeat(pattern, n/len(pattern)+1)[:n]
}

// allToAllV makes one call in which rank a sends size(a, b) bytes to rank b.
func allToAllV(team *Team, s *cuda.Stream, memory, host device.Buffer, round int, size func(a, b int) int) error {
	var send, recv []int
	var src, dst []byte
	for p := range team.size {
		send, recv = append(send, size(team.me, p)), append(recv, size(p, team.me))
		src = append(src, parcel(team.me, p, round, send[p])...)
		dst = append(dst, parcel(p, team.me, round, recv[p])...)
	}
	all := host.Bytes()
	clear(all)
	at := 1 + round%17 // any address
	copy(all[at:], src)
	to := at + len(src) + 3
	s.Copy(memory, host)
	c := &Call{To: memory.Slice(to, to+len(dst)), From: memory.Slice(at, at+len(src)), SendCounts: send, RecvCounts: recv}
	c.Kind, c.DType, c.Root = transport.AllToAll, dtype.U8, -1
	if err := team.Exchange(s, c); err != nil {
		return err
	}
	s.Copy(host, memory)
	if err := wait(s); err != nil {
		return err
	}
	if got := all[to : to+len(dst)]; string(got) != string(dst) || all[to+len(dst)] != 0 {
		return fmt.Errorf("round %d: rank %d got other bytes than it was sent", round, team.me)
	}
	return nil
}

// mostOfAPair is more than the slots of the two channels that four blocks have.
const mostOfAPair = 2*2*depth*pairRoom + 77

// Parts of nothing, of less than a pack, of more than all slots of a channel.
func pairSizes(round int) func(a, b int) int {
	of := []int{0, 1, 15, 16, 17, 1000, 100_001, mostOfAPair}
	return func(a, b int) int {
		k := (3*a + 5*b + round) % len(of)
		if k == len(of)-1 && (a+b)%2 == 0 {
			k = 3 // not too many of the largest
		}
		return of[k]
	}
}

func TestPairsEmulated(t *testing.T) {
	for _, n := range []int{2, 3} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			teams := emulated(t, n)
			ranks(t, n, func(rank int) error {
				team := teams[rank]
				s, memory, host, free, err := room(team, 2*n*(mostOfAPair+100))
				if err != nil {
					return err
				}
				for round := range 10 {
					if err := allToAllV(team, s, memory, host, round, pairSizes(round)); err != nil {
						return errors.Join(err, team.Abort(err, time.Minute))
					}
				}
				return free()
			})
		})
	}
}

// What two ranks send each other at the same time, on two streams each, arrives in the
// order of its sending, between collectives that others make too.
func TestSendAndRecvEmulated(t *testing.T) {
	const n, rounds, most = 3, 20, 3 * depth * pairRoom
	teams := emulated(t, n)
	ranks(t, n, func(rank int) error {
		team := teams[rank]
		for round := range rounds {
			size := []int{0, 1, 100, most}[round%4]
			from, to := round%n, (round+1)%n
			if rank == from || rank == to {
				s, memory, host, free, err := room(team, max(size, 1))
				if err != nil {
					return err
				}
				c := &Call{Peer: from}
				c.Kind, c.DType, c.Root, c.Count = transport.Send, dtype.U8, int32(from), uint64(size)
				if rank == from {
					c.Peer, c.Root = to, int32(to)
					c.From = memory.Slice(0, size)
					copy(host.Bytes(), parcel(from, to, round, size))
					s.Copy(memory, host)
				} else {
					c.Root, c.To = int32(rank), memory.Slice(0, size)
				}
				if err := team.Exchange(s, c); err != nil {
					return errors.Join(err, team.Abort(err, time.Minute))
				}
				s.Copy(host, memory)
				if err := wait(s); err != nil {
					return err
				}
				if !bytes.Equal(host.Bytes()[:size], parcel(from, to, round, size)) {
					return fmt.Errorf("round %d: other bytes arrived than were sent", round)
				}
				if err := free(); err != nil {
					return err
				}
			}
			if round%5 == 0 {
				c := try{kind: transport.AllReduce, dt: dtype.F32, count: 100 + round, inPlace: true}
				s, memory, host, free, err := room(team, 4096)
				if err == nil {
					err = c.run(team, s, memory, host, team.Exchange)
				}
				if err = errors.Join(err, free()); err != nil {
					return errors.Join(err, team.Abort(err, time.Minute))
				}
			}
		}
		return nil
	})
}

// A rank that waits for a parcel that nobody sends names the one that should.
func TestAbortOfPairsEmulated(t *testing.T) {
	teams := emulated(t, 2)
	called := make(chan error)
	s, memory, _, free, err := room(teams[0], 1000)
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		c := &Call{Peer: 1, To: memory}
		c.Kind, c.DType, c.Root, c.Count = transport.Send, dtype.U8, 0, 1000
		called <- teams[0].Exchange(s, c)
	}()
	if behind := listen(teams[0]); behind != 1 {
		t.Errorf("rank 0 waits for rank %d", behind)
	}
	if err := teams[0].Abort(errors.New("the test says so"), time.Minute); err != nil {
		t.Error(err)
	}
	if err := <-called; err != nil {
		t.Error(err)
	}
	if err := errors.Join(teams[1].Abort(errors.New("the test says so"), time.Minute), free()); err != nil {
		t.Error(err)
	}
}

// listen returns for whom a rank's kernel says that it waits.
func listen(team *Team) int {
	for {
		if behind, ok := team.Behind(); ok {
			return behind
		}
		runtime.Gosched()
	}
}
