package decoder

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/gorun-dev/gorun/models"
	"github.com/gorun-dev/gorun/runtime/dtype"
	"github.com/gorun-dev/gorun/runtime/tensor"
)

// cache is the keys and values of the text that a generator has read, for one
// sequence. The zero cache has no room.
type cache struct {
	keys, values tensor.Tensor // [L, room, K*D]
	room, used   int           // tokens
}

// drainTimeout bounds the wait for a stream before memory that it reads is freed.
const drainTimeout = time.Minute

// reset empties the cache and makes room for n tokens, width = K*D keys and as
// many values each in every layer. A larger room is kept.
func (c *cache) reset(env models.Env, layers, n, width int) error {
	c.used = 0
	if n <= c.room {
		return nil
	}
	if err := c.drop(env); err != nil {
		return err
	}
	keys, err := tensor.Alloc(env.Device, dtype.F32, layers, n, width)
	if err != nil {
		return fmt.Errorf("cache of keys: %w", err)
	}
	values, err := tensor.Alloc(env.Device, dtype.F32, layers, n, width)
	if err != nil {
		return fmt.Errorf("cache of values: %w (freeing that of keys: %v)", err, env.Device.Free(keys.Buf))
	}
	*c = cache{keys: keys, values: values, room: n}
	return nil
}

// drop frees the memory once the stream has passed all that reads it.
func (c *cache) drop(env models.Env) error {
	if c.room == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeoutCause(context.Background(), drainTimeout,
		fmt.Errorf("the stream still reads the old one after %v", drainTimeout))
	defer cancel()
	if err := env.Stream.Synchronize(ctx); err != nil {
		return fmt.Errorf("replacing the cache of keys and values: %w", err)
	}
	old := *c
	*c = cache{}
	for _, t := range []tensor.Tensor{old.keys, old.values} {
		if err := env.Device.Free(t.Buf); err != nil {
			return fmt.Errorf("freeing the cache of keys and values: %w", err)
		}
	}
	return nil
}

// read takes further tokens, in pieces of at most atOnce. body computes a piece
// of ids whose first is token pos of the text, writes its keys and values where
// upTo sees them, and returns the stream behind the last layer, [n,C], whose
// last row of all, [1,C], is returned. The tokens are copied.
func (c *cache) read(tokens []int32, atOnce int, body func(ids tensor.Tensor, pos int) tensor.Tensor) (tensor.Tensor, error) {
	if len(tokens) == 0 || c.used+len(tokens) > c.room {
		return tensor.Tensor{}, fmt.Errorf("%d tokens behind the %d read, with room for %d in all (Reset makes room)",
			len(tokens), c.used, c.room)
	}
	var last tensor.Tensor
	for piece := range slices.Chunk(slices.Clone(tokens), atOnce) {
		last = body(models.Ints(piece), c.used).Rows(len(piece)-1, len(piece))
		c.used += len(piece)
	}
	return last, nil
}

// upTo sees the first n keys and values of layer i, [n, K*D].
func (c *cache) upTo(i, n int) (keys, values tensor.Tensor) {
	see := func(t tensor.Tensor) tensor.Tensor {
		return t.Rows(i, i+1).Reshape(c.room, t.Shape[2]).Rows(0, n)
	}
	return see(c.keys), see(c.values)
}

// bytes is the memory held.
func (c *cache) bytes() int64 { return int64(c.keys.Buf.Len() + c.values.Buf.Len()) }
