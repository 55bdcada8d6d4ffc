#!/bin/sh
# A job that is no training at all: each rank takes its share of the files that are
# given, and rank 0 alone reads stdin.
#
#     ls *.go | gorun --nproc 2 -- sh job.sh *.go
set -eu
i=0
for file in "$@"; do
    if [ $((i % WORLD_SIZE)) -eq "$RANK" ]; then
        echo "rank $RANK: $(wc -l <"$file") lines in $file"
    fi
    i=$((i + 1))
done
if [ "$RANK" = 0 ]; then
    echo "rank 0: $(wc -l) lines on stdin"
fi
