package nccl

import (
	"testing"
)

// Lines as releases of NCCL print them.
func TestReadPath(t *testing.T) {
	for name, c := range map[string]struct{ log, want string }{
		"2.28, NVLink, two processes": {`
h:7:9 [0] NCCL INFO NVLS multicast support is not available on dev 0 (NVLS_NCHANNELS 0)
h:7:9 [0] NCCL INFO Pattern 4, crossNic 0, nChannels 12, bw 24.000000/24.000000, type NVL/PIX, sameChannels 1
h:7:9 [0] NCCL INFO Pattern 1, crossNic 0, nChannels 12, bw 48.000000/24.000000, type NVL/PIX, sameChannels 1
h:7:9 [0] NCCL INFO 24 coll channels, 24 collnet channels, 0 nvls channels, 32 p2p channels, 32 p2p channels per peer
h:7:9 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM
h:7:9 [0] NCCL INFO Channel 01/0 : 0[0] -> 1[1] via P2P/CUMEM/read
`, "NVLink (P2P/CUMEM), 24 channels"},
		"2.28, NVLink with a switch that sums, one process": {`
h:7:9 [1] NCCL INFO NVLS multicast support is available on dev 1 (NVLS_NCHANNELS 16)
h:7:9 [1] NCCL INFO Pattern 4, crossNic 0, nChannels 12, bw 24.000000/24.000000, type NVL/PIX, sameChannels 1
h:7:9 [1] NCCL INFO 24 coll channels, 24 collnet channels, 16 nvls channels, 32 p2p channels, 32 p2p channels per peer
h:7:9 [1] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/direct pointer
`, "NVLink (P2P/direct pointer), NVLS, 24 channels"},
		"2.14, PCIe": {`
h:7:9 [0] NCCL INFO Pattern 4, crossNic 0, nChannels 2, bw 12.000000/12.000000, type PHB/PIX, sameChannels 1
h:7:9 [0] NCCL INFO Channel 00/0 : 0[1a000] -> 1[1b000] via P2P/IPC
h:7:9 [0] NCCL INFO 2 coll channels, 2 p2p channels, 2 p2p channels per peer
`, "PCIe PHB (P2P/IPC), 2 channels"},
		"through host memory": {`
h:7:9 [0] NCCL INFO Pattern 4, crossNic 0, nChannels 2, bw 12.000000/12.000000, type SYS/PIX, sameChannels 1
h:7:9 [0] NCCL INFO 2 coll channels, 2 collnet channels, 0 nvls channels, 2 p2p channels, 2 p2p channels per peer
h:7:9 [0] NCCL INFO Channel 00 : 0[0] -> 1[1] via SHM/direct/direct
`, "host memory (SHM/direct/direct), 2 channels"},
		"two hosts": {`
h:7:9 [0] NCCL INFO Pattern 4, crossNic 0, nChannels 8, bw 48.000000/48.000000, type NVL/PXN, sameChannels 0
h:7:9 [0] NCCL INFO 8 coll channels, 8 collnet channels, 0 nvls channels, 8 p2p channels, 8 p2p channels per peer
h:7:9 [0] NCCL INFO Channel 00/0 : 3[3] -> 0[0] [receive] via NET/IB/2/GDRDMA
h:7:9 [0] NCCL INFO Channel 01/0 : 0[0] -> 3[3] [send] via NET/IB/11(1)/GDRDMA
h:7:9 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM
h:7:9 [0] NCCL INFO Channel 00/0 : 1[1] -> 2[2] via SHM/direct/direct
`, "InfiniBand or RoCE (NET/IB/GDRDMA), NVLink (P2P/CUMEM), 8 channels"},
		"sockets": {`
h:7:9 [0] NCCL INFO Channel 00/0 : 1[0] -> 0[0] [receive] via NET/Socket/0
`, "sockets (NET/Socket)"},
		"nothing known": {"h:7:9 [0] NCCL INFO cudaDriverVersion 13000\n", "no links logged"},
	} {
		if got := readPath(c.log, 0).String(); got != c.want {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
	}
}

func TestVersions(t *testing.T) {
	for code, want := range map[int]string{2708: "2.7.8", 21403: "2.14.3", 22803: "2.28.3", 23203: "2.32.3"} {
		if got := versionOf(code); got.String() != want {
			t.Errorf("%d is %s, want %s", code, got, want)
		}
	}
	v := Version{2, 23, 4}
	if !v.AtLeast(2, 23) || v.AtLeast(2, 24) || v.AtLeast(3, 0) || !v.AtLeast(1, 99) || v.code() != 22304 {
		t.Error(v)
	}
}
