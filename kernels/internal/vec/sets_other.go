//go:build !amd64

package vec

func sets() []*set { return []*set{plain} }
