// Package store is the small key-value store by which the processes of a job find
// each other: addresses, ids, votes, heartbeats. The first node's agent serves it
// over gRPC (Serve), everybody dials it (Dial).
//
//	srv := store.Serve(listener, store.ServerOptions{Token: token})
//	c, err := store.Dial(ctx, "10.0.0.1:29400", store.Options{Token: token, Job: "quickstart", Attempt: 0})
//	err = c.Set(ctx, "rank/0/addr", []byte("10.0.0.1:41234"))
//	addr, err := c.Wait(ctx, "rank/1/addr")
//
// Keys stand under (job, attempt) and never meet those of another job or attempt.
// An attempt that was retired is refused from then on (ErrStaleAttempt), so nothing
// of it reaches the next one.
//
// Every wait has a deadline: the context's own, else Options.Timeout. A server that
// dies, freezes or is cut off turns every pending call into ErrServerLost.
//
// The store is for small values (MaxValue); tensors never travel through it. The
// token keeps strangers and stray jobs out. It is sent in the clear, as the tensors
// are: the network between the hosts is taken to be a private one.
package store

//go:generate protoc --go_out=. --go_opt=paths=source_relative --go-grpc_out=. --go-grpc_opt=paths=source_relative storepb/store.proto

import (
	"fmt"
	"unicode/utf8"
)

const (
	// MaxValue is the size in bytes of the largest value that the store takes.
	MaxValue = 4 << 20
	// MaxKey is the length in bytes of the longest key, prefix or job name.
	MaxKey = 1024

	// maxMessage leaves room for key, scope and framing beside the largest value.
	maxMessage = MaxValue + 64<<10

	// protocol is raised whenever an older peer could misread a newer one.
	protocol = 1

	tokenKey = "gorun-token-bin" // the suffix lets gRPC carry any byte
)

// checkName refuses what cannot travel as a proto string, or is absurdly long.
func checkName(what, name string) error {
	if len(name) > MaxKey {
		return fmt.Errorf("%s of %d bytes, the longest allowed has %d", what, len(name), MaxKey)
	}
	if !utf8.ValidString(name) {
		return fmt.Errorf("%s %q is not valid UTF-8", what, name)
	}
	return nil
}

func checkKey(key string) error {
	if key == "" {
		return fmt.Errorf("empty key")
	}
	return checkName("key", key)
}
