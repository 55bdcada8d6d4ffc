package nvrtc

import (
	"fmt"
	"log/slog"

	"github.com/gorun-dev/gorun/runtime/cuda"
)

// Module returns text compiled for d's GPU and loaded. The machine code comes
// from the cache on disk where it is, else from the compiler and then goes there.
// name stands in messages and in the kernels' errors.
func Module(d *cuda.Device, name, text string, options ...string) (*cuda.Module, error) {
	c, err := Load()
	if err != nil {
		return nil, fmt.Errorf("%s: kernels of %s: %w", d, name, err)
	}
	if major, minor, err := cuda.DriverVersion(); err != nil {
		return nil, err
	} else if c.major > major {
		return nil, fmt.Errorf("%s: NVRTC %d.%d (%s) makes kernels that the driver, of CUDA %d.%d, cannot load: install a newer driver, or with pip nvidia-cuda-nvrtc-cu%d",
			d, c.major, c.minor, c.path, major, minor, major)
	}
	cubin, err := c.Cached(name, text, Arch(d), options...)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", d, err)
	}
	return d.LoadModule(name, cubin)
}

// Arch is what kernels for d's GPU are compiled for: "sm_80". Hopper's own
// instructions need sm_90a.
func Arch(d *cuda.Device) string {
	major, minor := d.Arch()
	if major == 9 && minor == 0 {
		return "sm_90a"
	}
	return fmt.Sprintf("sm_%d%d", major, minor)
}

// Cached is Compile through the cache on disk. Warnings of the compiler go to the
// log.
func (c *Compiler) Cached(name, text, arch string, options ...string) ([]byte, error) {
	entry, err := entryFor(c.key(text, arch, options))
	if err != nil {
		slog.Warn("compiled kernels are not kept", "error", err)
	}
	if cubin := entry.read(name); cubin != nil {
		return cubin, nil
	}
	cubin, log, err := c.Compile(name, text, arch, options...)
	if err != nil {
		return nil, err
	}
	if log != "" {
		slog.Warn("the kernels' compiler warns", "kernels", name, "arch", arch, "log", log)
	}
	entry.write(name, cubin)
	return cubin, nil
}
