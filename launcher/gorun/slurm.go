package main

import (
	"fmt"
	"os"
	"strconv"
)

// slurmNodeRank reads the node's rank from Slurm's environment; 0 without Slurm.
func slurmNodeRank() (int, error) {
	v, ok := os.LookupEnv("SLURM_NODEID")
	if !ok {
		return 0, nil
	}
	rank, err := strconv.Atoi(v)
	if err != nil {
		return 0, fmt.Errorf("SLURM_NODEID=%q is no number; give --node-rank", v)
	}
	return rank, nil
}
