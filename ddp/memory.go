package ddp

import "github.com/gorun-dev/gorun/runtime/arrays"

// memory is what a DDP does to gradients and weights where they lie.
type memory = arrays.Memory

type hostStream = arrays.HostStream
