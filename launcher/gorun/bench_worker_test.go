package main

import (
	"bytes"
	"context"
	"log/slog"
	"testing"
)

// A group's log tells the port of RDMA that it takes, and its level stays what it was.
func TestPortLog(t *testing.T) {
	var out bytes.Buffer
	l := &portLog{Handler: slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelWarn, ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}})}
	log := slog.New(l)
	log.Debug("rdma: event", "port", "rxb port 1")
	log.Debug("rdma: joined", "rank", 0, "port", "rxa port 1, GID x")
	log.Log(context.Background(), slog.LevelWarn, "rdma: the port has gone down", "port", "rxc port 1")
	if l.port != "rxa port 1, GID x" {
		t.Errorf("kept %q", l.port)
	}
	if want := "level=WARN msg=\"rdma: the port has gone down\" port=\"rxc port 1\"\n"; out.String() != want {
		t.Errorf("logged %q, want %q", out.String(), want)
	}
}
