package train

import (
	"context"
	"errors"
	"io"
	"slices"
	"testing"
)

// large is a tensor's size in elements: more than a file's buffer holds, so that what
// fails does so between two tensors.
const large = 1 << 19

// counted is a store that notes when it is asked for.
type counted struct {
	name string
	asks *[]string
}

func (c counted) upload(context.Context, []byte) error { return nil }

func (c counted) download(_ context.Context, w io.Writer) error {
	*c.asks = append(*c.asks, c.name)
	_, err := w.Write(make([]byte, 4*large))
	return err
}

type full struct{ err error }

func (f full) Write([]byte) (int, error) { return 0, f.err }

// Ranks that send their parts and rank 0, whose disk may be full, ask for the same
// tensors in the same order.
func TestEveryTensorOfAFileIsAskedForThoughTheDiskIsFull(t *testing.T) {
	var asks []string
	f := file{name: weightsFile}
	for _, name := range []string{"c", "a", "b"} {
		f.tensors = append(f.tensors, entry{name, []int{large}, counted{name, &asks}})
	}
	enough := errors.New("no space left")
	if err := f.write(full{enough}); !errors.Is(err, enough) {
		t.Errorf("got %v", err)
	}
	wrote := slices.Clone(asks)
	asks = nil
	if err := f.contribute(); err != nil {
		t.Error(err)
	}
	if len(wrote) != 3 || !slices.Equal(wrote, asks) {
		t.Errorf("rank 0 asked for %v, the others for %v", wrote, asks)
	}
}
