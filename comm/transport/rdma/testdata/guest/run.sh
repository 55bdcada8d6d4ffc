# What .ci/rdma runs in the guest: the transport's own tests, each fault among them, the
# matrix of all collectives, and a job of two processes, whose losses are those of the
# same job over TCP.
set -e
export GORUN_REQUIRE=rdma GORUN_RDMA_GUEST=1
timeout 150 ./rdma.test -test.timeout 140s -test.run 'OnDevices|Fault'
timeout 150 ./comm.test -test.timeout 140s -test.run RDMA
for transport in tcp rdma; do
  timeout 100 ./gorun --nproc 2 --set train.max_steps=8 --set eval.every=0 --set checkpoint.every=0 --set comm.transport=$transport --set output=/tmp/$transport train.yaml
  sed -n 's/.*"step":\([0-9]*\),.*"loss":\([0-9.e+-]*\),.*/\1 \2/p' /tmp/$transport/metrics.jsonl >/tmp/$transport.losses
done
cat /tmp/rdma.losses
[ -s /tmp/rdma.losses ]
cmp /tmp/tcp.losses /tmp/rdma.losses
