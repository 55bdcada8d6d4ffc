# shellcheck shell=dash
# What .ci/rdma runs in the guest: the transport's own tests, each fault among them, the
# matrix of all collectives, a job of two processes, whose losses are those of the same
# job over TCP, a benchmark, and what gorun doctor says of the devices.
set -e
export GORUN_REQUIRE=rdma GORUN_RDMA_GUEST=1 GORUN_TOKEN=guest

# shows FILE PATTERN... fails where a pattern is not in the file, which it prints.
shows() {
  file=$1
  shift
  for pattern; do
    grep -qE "$pattern" "$file" || { cat "$file"; echo "it does not say: $pattern"; return 1; }
  done
}

timeout 150 ./rdma.test -test.timeout 140s -test.run 'OnDevices|Fault'
if [ -s fakecuda.so ]; then # a machine without gcc has no fake GPUs
  export GORUN_REQUIRE=rdma,gcc GORUN_TEST_FAKE_CUDA=$PWD/fakecuda.so
fi
timeout 240 ./comm.test -test.timeout 230s -test.v -test.run RDMA
for transport in tcp rdma; do
  timeout 100 ./gorun --nproc 2 --set train.max_steps=8 --set eval.every=0 --set checkpoint.every=0 --set comm.transport=$transport --set output=/tmp/$transport train.yaml
  sed -n 's/.*"step":\([0-9]*\),.*"loss":\([0-9.e+-]*\),.*/\1 \2/p' /tmp/$transport/metrics.jsonl >/tmp/$transport.losses
done
cat /tmp/rdma.losses
[ -s /tmp/rdma.losses ]
cmp /tmp/tcp.losses /tmp/rdma.losses

# A benchmark fails where a result is wrong. Each rank has a device of its own.
timeout 100 ./gorun bench allreduce --nproc 2 --transport rdma -b 4K -e 1M -f 16 -n 3 -w 1 -c 2 --tune off >/tmp/bench 2>/tmp/bench.log ||
  { cat /tmp/bench.log; exit 1; }
cat /tmp/bench
shows /tmp/bench.log 'comm: RDMA port .*rank=0 host=guest port=rxa:1 path=unknown' 'comm: RDMA port .*rank=1 host=guest port=rxb:1 path=unknown'
shows /tmp/bench '2 verified$' '^# transport rdma \(--transport rdma\)' '^ +1048576 .* 0$' \
  '^# rdma by rxa port 1, GID ::ffff:192\.168\.82\.1 \(RoCE v2, index [0-9]+\), MTU 4096: rank 0$' \
  '^# rdma by rxb port 1, GID ::ffff:192\.168\.82\.2 \(RoCE v2, index [0-9]+\), MTU 4096: rank 1$'

# doctor A B is gorun doctor on two hosts, which both are this one: node 0 has the devices
# A, node 1 has B, and "" is all. Its exit status counts findings, which need not be of RDMA.
doctor() {
  NCCL_IB_HCA=$2 timeout 100 ./gorun doctor --nnodes 2 --node-rank 1 --rdzv 127.0.0.1:29400 >/dev/null 2>&1 &
  NCCL_IB_HCA=$1 timeout 100 ./gorun doctor --nnodes 2 --node-rank 0 --rdzv 127.0.0.1:29400 -v >/tmp/doctor 2>&1 || true
  wait $! || true
  sed -n '/\[rdma\]/,/^$/p; /^pings over RDMA/,/^$/p' /tmp/doctor
}

# Every pair of ports exchanges data both ways.
doctor "" ""
for port in rxa:1 rxb:1; do
  shows /tmp/doctor "^  guest \(node 0\) $port to guest \(node 1\) $port: [0-9.]+ us$" "^  guest \(node 1\) $port to guest \(node 0\) $port: [0-9.]+ us$"
done
if grep -E '^(ERROR|WARNING) \[rdma\]' /tmp/doctor; then exit 1; fi

# Ports that are active, and between which all packets are lost, once the addresses' owners
# are known. The device gives up soon.
ip neigh replace 192.168.82.2 lladdr "$(cat /sys/class/net/vb/address)" dev va nud permanent
ip neigh replace 192.168.82.1 lladdr "$(cat /sys/class/net/va/address)" dev vb nud permanent
export NCCL_IB_TIMEOUT=10 NCCL_IB_RETRY_CNT=1
tc qdisc add dev va root netem loss 100%
doctor rxa rxb
tc qdisc del dev va root
shows /tmp/doctor '^ERROR \[rdma\] guest \(node 0\) rxa:1 to guest \(node 1\): rxa:1 cannot exchange data with rxb:1 of guest \(node 1\) over RDMA' \
  '^ERROR \[rdma\] guest \(node 1\) rxb:1 to guest \(node 0\): rxb:1 cannot exchange data with rxa:1 of guest \(node 0\) over RDMA' \
  '^  seen: .*the peer does not answer.*\(completion status 12'
