package comm

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/gorun-dev/gorun/comm/transport/rdma"
	"github.com/gorun-dev/gorun/comm/transport/rdma/verbs"
	"github.com/gorun-dev/gorun/runtime/cuda"
	"github.com/gorun-dev/gorun/runtime/device"
	"github.com/gorun-dev/gorun/runtime/topology"
)

// Store is where ranks find each other: comm/store's Client, or anything like it
// that all ranks of the group share. Wait blocks until the key exists or ctx ends.
// CompareAndSet with a nil old stores only where the key does not exist, and
// returns what is there afterwards.
type Store interface {
	Set(ctx context.Context, key string, value []byte) error
	Get(ctx context.Context, key string) ([]byte, error)
	Wait(ctx context.Context, key string) ([]byte, error)
	Add(ctx context.Context, key string, delta int64) (int64, error)
	CompareAndSet(ctx context.Context, key string, old, new []byte) (current []byte, swapped bool, err error)
}

// Options describe a rank of a group. Those marked with * must be the same on all
// ranks; New compares them.
type Options struct {
	Rank, Size int // *Size
	Store      Store
	// Name tells groups of one store apart; "world" where empty. *
	Name string
	// Host names this rank's host in errors; the host name where empty.
	Host string
	// Timeout bounds every call from the moment when it starts to run. 0 means 10
	// minutes. It has to allow for the time that one rank may be behind another.
	Timeout time.Duration
	// Transport is auto (empty), shm, tcp, rdma or local. auto takes shm within a host,
	// and between hosts rdma where every rank has a port that is fit for it, else tcp;
	// local is for Local alone. *
	Transport string
	// RDMA is how that is used. What it leaves open NCCL's variables say: see
	// rdma.Settings.
	RDMA rdma.Settings
	// Interface is the network interface, or the address of this host, that tcp
	// uses. Empty: whichever routes to the peer.
	Interface string
	// Ports are those on which tcp may listen, as 40000-40100; a rank takes one for
	// every group that it is in, and one more where GPU memory goes through the host's.
	// Empty: any free one.
	Ports string
	// Chunk is the size in bytes of the largest message. 0 means 1 MiB. Shared memory
	// has pieces of its own. *
	Chunk int
	// Conns is the number of tcp connections to a peer. 0 means 1 within a host and 2
	// between hosts. *
	Conns int
	// Algo is used by the collectives that have it; the others take the cheapest.
	// Shared memory has one alone, and twolevel needs several hosts. Kernels, InPlace,
	// CopyEngines and NCCL are of memory of GPUs of one host. *
	Algo Algorithm
	// Tune says whether joining measures where collectives have a choice of algorithms, on
	// links and between the GPUs of a host, which takes about 0.2 s each, once: the figures
	// are kept in the user's cache. off, and auto (empty) in a group of Local, choose by typical figures. *
	Tune string
	// Device is the GPU whose memory the group moves beside the host's. nil, or the CPU:
	// the host's alone. It must stay open until the group is closed. *
	Device device.Device
	// Engine moves the memory of Device: ring, which is the project's own; nccl; or auto
	// (empty), which takes NCCL, and ring beside it within a host, for what that is better
	// at. ring, and auto where NCCL cannot be had, go from GPU to GPU within a host whose
	// GPUs reach each other's memory (comm/dma), else by GPUDirect where network cards
	// reach it: 16 slots of 2 MiB in the GPU's memory, and links of their own; else, and for
	// calls that GPUDirect has not, through pinned memory of the hosts and Transport: four
	// slots of 4 MiB a rank, and links of their own too. Where there is no
	// engine, calls on that memory fail with an error that says why. The host's memory has
	// one engine, ring. *
	Engine string
	// MaxCTAs is the most thread blocks that a collective's kernel may take from the GPU,
	// for the multiprocessors that they occupy are lost to computation. 0: as the engines
	// like. *
	MaxCTAs int
	// TopoFile describes this host to NCCL, in its own XML format, where what it finds
	// by itself is wrong or hidden; gorun topo --xml writes one. It goes before
	// NCCL_TOPO_FILE, is read and checked here, and has to be set in the first group of
	// the process. Empty: NCCL looks for itself.
	TopoFile string
	// Check compares each call on GPU memory with the other ranks', through the store,
	// before it is made, and where in memory from Alloc one lies that others read or write
	// there.
	// Without it nobody does: ranks that call different things wait until Timeout, or
	// compute wrong sums. It is for finding such faults, and costs a round trip and an
	// entry in the store a call. Host memory needs no such check. *
	Check bool
	// Logger gets the choices that were made, at debug level, and what NCCL has chosen,
	// at info level. nil: slog.Default.
	Logger *slog.Logger

	gpu     *cuda.Device // Device, where it is a GPU
	hostKey string       // where memory is shared; tests make one host several
	netKey  string       // where loopback is shared
	hub     *hub         // wires ranks of one process
	tuned   *tuned       // what the group that this one is a part of has measured
	release func() error // releases what came with the options
	nccl    *variables   // NCCL's, as the group goes by them
	verbs   *verbs.API   // libibverbs, where it is another than the system's
	sys     string       // what the RDMA transport takes for /sys; empty: that
	near    *rdma.Near   // the ports that are near to this rank, once they were looked for
}

// complete checks o and fills in its defaults.
func (o *Options) complete() error {
	if o.Size < 1 || o.Rank < 0 || o.Rank >= o.Size {
		return fmt.Errorf("comm: rank %d of %d: want a rank from 0 to size-1", o.Rank, o.Size)
	}
	if o.Store == nil {
		return fmt.Errorf("comm: rank %d: Options.Store is nil; ranks find each other there", o.Rank)
	}
	if o.Name == "" {
		o.Name = "world"
	}
	if o.Host == "" {
		name, err := os.Hostname()
		if err != nil {
			return fmt.Errorf("comm: rank %d: no host name (set Options.Host): %w", o.Rank, err)
		}
		o.Host = name
	}
	if o.Timeout == 0 {
		o.Timeout = 10 * time.Minute
	}
	if o.Timeout < 0 {
		return fmt.Errorf("comm: timeout %s is negative", o.Timeout)
	}
	switch o.Transport {
	case "":
		o.Transport = "auto"
	case "auto", "shm", "tcp", "rdma":
	case "local":
		if o.hub == nil {
			return fmt.Errorf(`comm: transport "local" joins goroutines of one process: use comm.Local`)
		}
	default:
		return fmt.Errorf("comm: unknown transport %q: want auto, shm, tcp or rdma", o.Transport)
	}
	if err := o.readVariables(); err != nil {
		return fmt.Errorf("comm: rank %d on %s: %w", o.Rank, o.Host, err)
	}
	if o.hub == nil && (o.Transport == "rdma" || o.Transport == "auto") {
		var err error
		if o.RDMA, err = o.RDMA.FromEnvironment(os.Getenv); err != nil {
			return fmt.Errorf("comm: rank %d on %s: %w", o.Rank, o.Host, err)
		}
	}
	if o.Chunk == 0 {
		o.Chunk = 1 << 20
	}
	if o.Chunk < leastChunk {
		return fmt.Errorf("comm: chunk of %d bytes: want at least 64", o.Chunk)
	}
	if o.Conns < 0 || o.Conns > 64 {
		return fmt.Errorf("comm: %d connections a peer: want 1 to 64, or 0 for the default", o.Conns)
	}
	if _, err := ParseAlgorithm(string(o.Algo)); err != nil {
		return fmt.Errorf("comm: %w", err)
	}
	if _, _, err := ParsePorts(o.Ports); err != nil {
		return fmt.Errorf("comm: %w", err)
	}
	switch o.Tune {
	case "":
		o.Tune = "auto"
		if o.hub != nil {
			o.Tune = "off"
		}
	case "auto", "off":
	default:
		return fmt.Errorf("comm: tune %q: want auto or off", o.Tune)
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if err := o.completeGPU(); err != nil {
		return fmt.Errorf("comm: rank %d on %s: %w", o.Rank, o.Host, err)
	}
	if o.release == nil {
		o.release = func() error { return nil }
	}
	memory, net, err := hostKeys()
	if err != nil {
		return fmt.Errorf("comm: rank %d on %s: %w", o.Rank, o.Host, err)
	}
	if o.hostKey == "" {
		o.hostKey = memory
	}
	o.netKey = net
	return nil
}

// completeGPU is complete for what concerns GPU memory.
func (o *Options) completeGPU() error {
	var ok bool
	switch {
	case o.Device == nil || o.Device.Kind() == device.CPU:
	default:
		if o.gpu, ok = o.Device.(*cuda.Device); !ok {
			return fmt.Errorf("cannot move memory of %s, a %T", o.Device, o.Device)
		}
	}
	switch o.Engine {
	case "":
		o.Engine = "auto"
	case "auto", "ring":
	case "nccl":
		if o.gpu == nil {
			return fmt.Errorf("engine nccl moves GPU memory, and Options.Device is no GPU: take auto, or give the rank its GPU")
		}
	default:
		return fmt.Errorf("unknown engine %q: want auto, ring or nccl", o.Engine)
	}
	if o.MaxCTAs < 0 {
		return fmt.Errorf("at most %d thread blocks: want 1 or more, or 0 for the default", o.MaxCTAs)
	}
	if o.TopoFile != "" {
		if _, err := topology.ReadFile(o.TopoFile); err != nil {
			return fmt.Errorf("comm.topo_file: %w: write one by gorun topo --xml", err)
		}
	}
	return nil
}

// ParsePorts reads an option: 40000-40100 is a range of ports, 40000 a single one.
// Empty gives 0 and 0, any free port.
func ParsePorts(s string) (first, last int, err error) {
	if s == "" {
		return 0, 0, nil
	}
	low, high, isRange := strings.Cut(s, "-")
	if !isRange {
		high = low
	}
	first, e1 := strconv.Atoi(low)
	last, e2 := strconv.Atoi(high)
	if e1 != nil || e2 != nil || first < 1 || last > 65535 || first > last {
		return 0, 0, fmt.Errorf("ports %q: want a range within 1 to 65535, such as 40000-40100", s)
	}
	return first, last, nil
}

// agreed is the options that all ranks must share, as they are compared.
func (o *Options) agreed() string {
	s := fmt.Sprintf("size %d, transport %s, chunk %d, conns %d, algo %q, tune %s", o.Size, o.Transport, o.Chunk, o.Conns, o.Algo, o.Tune)
	if v := o.nccl; v.minChannels+v.maxChannels > 0 || v.algo != "" {
		s += fmt.Sprintf(", NCCL_MIN_NCHANNELS %d, NCCL_MAX_NCHANNELS %d, NCCL_ALGO %q (0 and \"\": not set)", v.minChannels, v.maxChannels, v.algo)
	}
	if o.gpu != nil {
		s += fmt.Sprintf(", a GPU, engine %s, max CTAs %d, check %v", o.Engine, o.MaxCTAs, o.Check)
	}
	return s
}
