package doctor

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
)

// memory is a Board within a test.
type memory struct {
	mu      sync.Mutex // guards what follows
	values  map[string][]byte
	changed chan struct{} // closed and replaced with every change
	longest int
}

func newMemory() *memory {
	return &memory{values: map[string][]byte{}, changed: make(chan struct{})}
}

func (b *memory) Set(_ context.Context, key string, value []byte) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.values[key] = value
	b.longest = max(b.longest, len(value))
	close(b.changed)
	b.changed = make(chan struct{})
	return nil
}

func (b *memory) Wait(ctx context.Context, key string) ([]byte, error) {
	for {
		b.mu.Lock()
		value, ok := b.values[key]
		changed := b.changed
		b.mu.Unlock()
		if ok {
			return value, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, fmt.Errorf("wait %s: %w", key, ctx.Err())
		}
	}
}

// What is posted comes in pieces that fit into short packets, whatever its length.
func TestPost(t *testing.T) {
	for _, n := range []int{0, 1, pieceBytes - 3, pieceBytes - 2, pieceBytes - 1, 5000} {
		b := newMemory()
		want := strings.Repeat("x", n)
		if err := post(t.Context(), b, "k", want); err != nil {
			t.Fatal(err)
		}
		var got string
		if err := fetch(t.Context(), b, "k", &got); err != nil || got != want || b.longest > pieceBytes {
			t.Errorf("%d bytes: got %d (%v), longest piece %d", n, len(got), err, b.longest)
		}
	}
}
