package comm

import (
	"context"
	"fmt"
	"strconv"
	"sync"

	"github.com/gorun-dev/gorun/comm/transport/local"
)

// hub is what ranks of one process share: the wiring of each group, and a Store.
type hub struct {
	mu      sync.Mutex
	nets    map[string]*local.Net
	values  map[string][]byte
	changed chan struct{} // closed, and made anew, when a value changes
}

func newHub() *hub {
	return &hub{nets: map[string]*local.Net{}, values: map[string][]byte{}, changed: make(chan struct{})}
}

func (h *hub) net(group string, size int) *local.Net {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.nets[group] == nil {
		h.nets[group] = local.NewNet(size)
	}
	return h.nets[group]
}

// set stores a value. h.mu is held.
func (h *hub) set(key string, value []byte) {
	h.values[key] = append([]byte{}, value...)
	close(h.changed)
	h.changed = make(chan struct{})
}

func (h *hub) Set(_ context.Context, key string, value []byte) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.set(key, value)
	return nil
}

func (h *hub) Get(_ context.Context, key string) ([]byte, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if v, ok := h.values[key]; ok {
		return v, nil
	}
	return nil, fmt.Errorf("no value under %q", key)
}

func (h *hub) Wait(ctx context.Context, key string) ([]byte, error) {
	for {
		h.mu.Lock()
		v, ok := h.values[key]
		changed := h.changed
		h.mu.Unlock()
		if ok {
			return v, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, fmt.Errorf("waiting for %q: %w", key, context.Cause(ctx))
		}
	}
}

func (h *hub) Add(_ context.Context, key string, delta int64) (int64, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	var n int64
	if v, ok := h.values[key]; ok {
		var err error
		if n, err = strconv.ParseInt(string(v), 10, 64); err != nil {
			return 0, err
		}
	}
	h.set(key, strconv.AppendInt(nil, n+delta, 10))
	return n + delta, nil
}

func (h *hub) CompareAndSet(_ context.Context, key string, old, new []byte) ([]byte, bool, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	v, ok := h.values[key]
	if ok != (old != nil) || string(v) != string(old) {
		return v, false, nil
	}
	h.set(key, new)
	return h.values[key], true, nil
}
