//go:build !amd64

package vec

func simdPaths() []*path { return nil }
