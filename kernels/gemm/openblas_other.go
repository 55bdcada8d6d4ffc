//go:build !(linux && (amd64 || arm64))

package gemm

import "errors"

func openOpenBLAS() (Backend, error) {
	return nil, errors.New("gemm: OpenBLAS is opened on linux/amd64 and linux/arm64 only")
}
