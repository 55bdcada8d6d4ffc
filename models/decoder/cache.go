package decoder

import (
	"fmt"

	"github.com/gorun-dev/gorun/runtime/tensor"
)

// cache is the keys and values of the text that a generator has read, for one
// sequence. The zero cache has no room.
type cache struct {
	keys, values tensor.Tensor // [L, room, K*D]
	room, used   int           // tokens
	staging      []int32       // the tokens that were copied to the device last
}

// layer is the keys and values of layer i, [room, K*D].
func (c *cache) layer(i int) (keys, values tensor.Tensor) {
	see := func(t tensor.Tensor) tensor.Tensor { return t.Rows(i, i+1).Reshape(c.room, t.Shape[2]) }
	return see(c.keys), see(c.values)
}

// bytes is the memory held.
func (c *cache) bytes() int64 { return int64(c.keys.Buf.Len() + c.values.Buf.Len()) }

// resetCache empties the cache and makes room for n tokens. A larger room is kept.
func (m *Model) resetCache(n int) error {
	c := &m.cache
	c.used = 0
	if n <= c.room {
		return nil
	}
	if err := m.dropCache(); err != nil {
		return err
	}
	s, dev := m.spec, m.env.Device
	alloc := func() (tensor.Tensor, error) { return tensor.Alloc(dev, s.DType, s.Layers, n, s.KVHeads*s.HeadDim) }
	keys, err := alloc()
	if err != nil {
		return fmt.Errorf("cache of keys: %w", err)
	}
	values, err := alloc()
	if err != nil {
		return fmt.Errorf("cache of values: %w (freeing that of keys: %v)", err, dev.Free(keys.Buf))
	}
	*c = cache{keys: keys, values: values, room: n}
	return nil
}

// dropCache frees the memory once the stream has passed all that reads it.
func (m *Model) dropCache() error {
	if m.cache.room == 0 {
		return nil
	}
	if err := m.drain(); err != nil {
		return fmt.Errorf("replacing the cache of keys and values: %w", err)
	}
	old := m.cache
	m.cache = cache{}
	for _, t := range []tensor.Tensor{old.keys, old.values} {
		if err := m.env.Device.Free(t.Buf); err != nil {
			return fmt.Errorf("freeing the cache of keys and values: %w", err)
		}
	}
	return nil
}
