package comm

import (
	"cmp"
	"context"
	"fmt"

	"github.com/gorun-dev/gorun/comm/dma"
)

// exchangeUnder is the part of the store that belongs to one group.
type exchangeUnder struct {
	store  Store
	prefix string
}

func (e exchangeUnder) Set(ctx context.Context, key string, value []byte) error {
	return e.store.Set(ctx, e.prefix+key, value)
}

func (e exchangeUnder) Wait(ctx context.Context, key string) ([]byte, error) {
	return e.store.Wait(ctx, e.prefix+key)
}

// all is an exchange of every rank's bytes through the store.
func (e exchangeUnder) all(rank, size int) dma.Exchange {
	return func(ctx context.Context, key string, mine []byte) ([][]byte, error) {
		entry := func(r int) string { return fmt.Sprintf("all/%s/%d", key, r) }
		if err := e.Set(ctx, entry(rank), mine); err != nil {
			return nil, err
		}
		all := make([][]byte, size)
		for r := range all {
			var err error
			if all[r], err = e.Wait(ctx, entry(r)); err != nil {
				return nil, fmt.Errorf("waiting for rank %d: %w", r, err)
			}
		}
		return all, nil
	}
}

// agree tells the other ranks what is in this one's way, and returns what is in the way of
// the first rank that has something; "" where none has.
func (e exchangeUnder) agree(ctx context.Context, g *Group, key, mine string) (string, error) {
	all, err := e.all(g.o.Rank, g.o.Size)(ctx, key, []byte(mine))
	if err != nil {
		return "", err
	}
	for r, text := range all {
		if len(text) > 0 {
			return fmt.Sprintf("rank %d on %s: %s", r, g.members[r].Host, text), nil
		}
	}
	return "", nil
}

func said(err error) string {
	if err == nil {
		return ""
	}
	return cmp.Or(err.Error(), "an error without words")
}
