//go:build !amd64

package gemm

import "errors"

func openOwn() (Backend, error) {
	return nil, errors.New("gemm: the own backend is written for amd64 only")
}
