# What .ci/rdma runs in the guest: the transport's own tests, the matrix of all
# collectives, and a job of two processes, whose losses are those of the same job over TCP.
set -e
export GORUN_REQUIRE=rdma
timeout 100 ./rdma.test -test.timeout 90s
timeout 100 ./comm.test -test.timeout 90s -test.run RDMA
