package dma

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/gorun-dev/gorun/runtime/cuda"
	"github.com/gorun-dev/gorun/runtime/device"
)

// offer is what a rank tells the others about a piece of its memory. Processes open
// each other's by a handle; ranks that are goroutines of one process have the
// addresses in common, once their GPUs may access each other.
type offer struct {
	Process int
	Team    string // key in here
	Addr    uintptr
	Memory  cuda.SharedMemory
	Error   string
}

// mapping is a peer's memory that this process has opened.
type mapping struct {
	memory cuda.SharedMemory
	buf    device.Buffer
}

// here is the devices of this process's teams, by their keys.
var here sync.Map

func (t *Team) key() string { return fmt.Sprintf("%p", t) }

// share allocates n zeroed bytes on every rank and opens those of the others.
func (t *Team) share(ctx context.Context, key string, n int) (s shared, err error) {
	o := offer{Process: os.Getpid(), Team: t.key()}
	here.Store(o.Team, t.d) // until Close
	if s.own, err = t.d.Alloc(n); err == nil {
		o.Addr = s.own.Addr()
		o.Memory, err = t.d.ShareMemory(s.own)
	}
	if err != nil {
		o.Error = err.Error()
	}
	mine, e := json.Marshal(o)
	if e != nil {
		return s, e
	}
	all, e := t.exchange(ctx, key, mine)
	if e != nil {
		return s, errors.Join(err, e)
	}
	s.ranks = make([]device.Buffer, t.size)
	for r, b := range all {
		var peer offer
		if err := json.Unmarshal(b, &peer); err != nil {
			return s, fmt.Errorf("rank %d's offer %q: %w", r, b, err)
		}
		if peer.Error != "" {
			return s, fmt.Errorf("rank %d: %s", r, peer.Error)
		}
		if r == t.me {
			s.ranks[r] = s.own
			continue
		}
		if s.ranks[r], err = t.open(&s, peer, n); err != nil {
			return s, fmt.Errorf("the memory of rank %d's GPU: %w", r, err)
		}
	}
	return s, nil
}

func (t *Team) open(s *shared, peer offer, n int) (device.Buffer, error) {
	if peer.Process == os.Getpid() {
		if d, ok := here.Load(peer.Team); ok {
			return device.At(peer.Addr, n), t.d.EnablePeerAccess(d.(*cuda.Device))
		}
	}
	b, err := t.d.OpenMemory(peer.Memory)
	if err != nil {
		return b, err
	}
	s.maps = append(s.maps, mapping{peer.Memory, b})
	return b, nil
}

// unmap closes the others' memory.
func (t *Team) unmap(s shared) error {
	var errs []error
	for _, m := range s.maps {
		errs = append(errs, t.d.CloseMemory(m.memory, m.buf))
	}
	return errors.Join(errs...)
}

// partWithin bounds how long Close waits for peers to close too.
const partWithin = 2 * time.Second

// part returns when all ranks have closed each other's memory, or do not say so: then
// they are gone, and their mappings with them, or the store is.
func (t *Team) part() {
	ctx, cancel := context.WithTimeout(context.Background(), partWithin)
	defer cancel()
	_, _ = t.exchange(ctx, "parted", nil)
}
