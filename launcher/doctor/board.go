package doctor

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strconv"
)

// Board is where hosts leave words for each other: a store of the job.
type Board interface {
	Set(ctx context.Context, key string, value []byte) error
	Wait(ctx context.Context, key string) ([]byte, error) // until somebody has set the key
}

// pieceBytes is the most that goes over the board at once. Each piece is awaited
// before the next, so that it travels in a packet that any path carries: a path that
// swallows long ones must not keep doctor from saying so.
const pieceBytes = 400

// post leaves a value under a key, in pieces.
func post(ctx context.Context, b Board, key string, value any) error {
	data, err := json.Marshal(value)
	if err != nil {
		return err
	}
	n := 0
	for ; n*pieceBytes < len(data); n++ {
		piece := data[n*pieceBytes : min(len(data), (n+1)*pieceBytes)]
		if err := b.Set(ctx, pieceKey(key, n), piece); err != nil {
			return err
		}
	}
	return b.Set(ctx, key, []byte(strconv.Itoa(n)))
}

// fetch waits for a value that was posted.
func fetch(ctx context.Context, b Board, key string, value any) error {
	count, err := b.Wait(ctx, key)
	if err != nil {
		return err
	}
	n, err := strconv.Atoi(string(count))
	if err != nil {
		return fmt.Errorf("%s: %q is no number of pieces", key, count)
	}
	var data bytes.Buffer
	for i := range n {
		piece, err := b.Wait(ctx, pieceKey(key, i))
		if err != nil {
			return err
		}
		data.Write(piece)
	}
	return json.Unmarshal(data.Bytes(), value)
}

func pieceKey(key string, n int) string { return key + "/" + strconv.Itoa(n) }
