package bench

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/gorun-dev/gorun/runtime/device"
)

const (
	mostUnit = 8 // bytes of the largest element
	matrices = 3 // of a product, in f32 on the CPU
)

// allocate makes the buffers, for all types and sizes.
func (r *runner) allocate() (err error) {
	src, dst := 0, 0
	for _, s := range r.o.specs(r.parsed, r.group.Size()) {
		if err := r.use(s); err != nil {
			return err
		}
		largest := r.sizes[len(r.sizes)-1]
		src, dst = max(src, r.srcBytes(largest)), max(dst, r.dstBytes(largest))
	}
	shift := r.o.Unaligned * mostUnit
	onHost := float64(src+shift) + float64(dst+shift) + matrices*float64(r.o.Overlap)*float64(r.o.Overlap)*4
	if r.dev.Kind() != device.CPU {
		onHost = float64(max(src, dst))
	}
	if err := r.fits(onHost); err != nil {
		return err
	}
	if r.src, err = r.alloc(src + shift); err != nil {
		return err
	}
	if r.dst, err = r.alloc(dst + shift); err != nil {
		return err
	}
	if r.dev.Kind() != device.CPU {
		r.stage, err = r.dev.AllocHost(max(src, dst))
	}
	return err
}

// fits refuses arrays that all memory of the host cannot hold, where each of its ranks
// takes so many bytes: Go would end the process with a dump.
func (r *runner) fits(bytes float64) error {
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return fmt.Errorf("this host's memory: %w", err)
	}
	has, here, ranks := float64(info.Totalram)*float64(info.Unit), r.group.Host(r.group.Rank()), 0
	for rank := range r.group.Size() {
		if r.group.Host(rank) == here {
			ranks++
		}
	}
	if needs := bytes * float64(ranks); needs > has {
		flags := "-e " + FormatSize(r.o.End)
		if r.o.Overlap > 0 {
			flags += fmt.Sprintf(" --overlap %d", r.o.Overlap)
		}
		return fmt.Errorf("%s: %d ranks on %s need %.1f GB for their arrays, and it has %.1f GB of memory: measure smaller ones, or with fewer ranks",
			flags, ranks, here, needs/1e9, has/1e9)
	}
	return nil
}

// alloc is collective for the arena.
func (r *runner) alloc(n int) (device.Buffer, error) {
	if r.o.Buffers == Arena {
		return r.group.Alloc(n)
	}
	b, err := r.dev.Alloc(n)
	if err == nil {
		r.private = append(r.private, b)
	}
	return b, err
}

func (r *runner) srcBytes(s size) int { return r.bytes(s, r.kind.manySrc) }
func (r *runner) dstBytes(s size) int { return r.bytes(s, r.kind.manyDst) }

func (r *runner) bytes(s size, parts bool) int {
	n := s.count * r.dt.Size()
	if parts {
		n *= r.group.Size()
	}
	return n
}

func (r *runner) placements() []placement {
	var all []placement
	if r.kind.outOfPlace {
		all = append(all, outOfPlace)
	}
	if r.kind.inPlace {
		all = append(all, inPlace)
	}
	return all
}

// buffers are the arguments of a call. In place the smaller one is this rank's
// part of the larger.
func (r *runner) buffers(pl placement, s size) (dst, src device.Buffer) {
	at := r.o.Unaligned * r.dt.Size()
	dst, src = r.dst.Slice(at, at+r.dstBytes(s)), r.src.Slice(at, at+r.srcBytes(s))
	if pl == outOfPlace {
		return dst, src
	}
	part := s.count * r.dt.Size()
	own := r.group.Rank() * part
	switch {
	case r.kind.manySrc:
		return src.Slice(own, own+part), src
	case r.kind.manyDst:
		return dst, dst.Slice(own, own+part)
	}
	return dst, dst
}

// write puts a block's content into b, behind the work on the stream.
func (r *runner) write(b device.Buffer, content block) error {
	if b.OnHost() {
		r.host.Do("write", func() error {
			content.fill(b.Bytes(), 0)
			return nil
		})
		return nil
	}
	at := r.stage.Slice(0, b.Len())
	if err := r.sync(); err != nil { // what was staged before has arrived
		return err
	}
	content.fill(at.Bytes(), 0)
	r.stream.Copy(b, at)
	return r.sync()
}

// read waits for the stream and returns what b holds, until the next write or read.
func (r *runner) read(b device.Buffer) ([]byte, error) {
	if b.OnHost() {
		return b.Bytes(), r.sync()
	}
	at := r.stage.Slice(0, b.Len())
	r.stream.Copy(at, b)
	return at.Bytes(), r.sync()
}
