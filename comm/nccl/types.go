package nccl

import (
	"fmt"

	"github.com/gorun-dev/gorun/comm/transport"
	"github.com/gorun-dev/gorun/runtime/dtype"
)

// typeOf is NCCL's number of an element type. These are part of its ABI.
func typeOf(dt dtype.DType) (uintptr, error) {
	switch dt {
	case dtype.U8:
		return 1, nil
	case dtype.I32:
		return 2, nil
	case dtype.I64:
		return 4, nil
	case dtype.F16:
		return 6, nil
	case dtype.F32:
		return 7, nil
	case dtype.F64:
		return 8, nil
	case dtype.BF16:
		return 9, nil
	}
	return 0, fmt.Errorf("NCCL has no elements of type %s", dt)
}

// opOf is NCCL's number of an operation.
func opOf(op transport.Op) (uintptr, error) {
	switch op {
	case transport.Sum:
		return 0, nil
	case transport.Prod:
		return 1, nil
	case transport.Max:
		return 2, nil
	case transport.Min:
		return 3, nil
	case transport.Avg:
		return 4, nil
	}
	return 0, fmt.Errorf("NCCL has no operation %s", op)
}
