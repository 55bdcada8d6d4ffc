/* All-reduce by Open MPI alone, for peers.py, which calls it by

       mpirun ... PROGRAM BYTES CALLS WARMUP [BYTES CALLS WARMUP ...]

   and says how it measures. Rank 0 prints the median of the calls for each size:
   {"Open MPI, C": {"BYTES": microseconds, ...}, "Open MPI, C in place": {...}}

       mpicc -O2 -o /tmp/openmpi docs/benchmarks/openmpi.c
*/

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static long now(void) {
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000L + t.tv_nsec;
}

static void fill(float *v, int n, float x) {
	for (int i = 0; i < n; i++)
		v[i] = x;
}

static int ascending(const void *a, const void *b) {
	long x = *(const long *)a, y = *(const long *)b;
	return (x > y) - (x < y);
}

static void *memory(size_t bytes) {
	void *v = malloc(bytes);
	if (v == NULL) {
		fprintf(stderr, "no memory for %zu bytes\n", bytes);
		MPI_Abort(MPI_COMM_WORLD, 1);
	}
	return v;
}

/* The median over the calls of the slowest rank's time, in microseconds. */
static double measure(int n, int calls, int warmup, int in_place) {
	float *dst = memory(n * sizeof *dst), *src = in_place ? dst : memory(n * sizeof *src);
	long *took = memory(calls * sizeof *took);
	int ranks;
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	fill(dst, n, 0);
	for (int i = -warmup; i < calls; i++) {
		fill(src, n, 1);
		MPI_Barrier(MPI_COMM_WORLD);
		long start = now();
		MPI_Allreduce(in_place ? MPI_IN_PLACE : src, dst, n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
		long end = now();
		if (i >= 0)
			took[i] = end - start;
	}
	for (int i = 0; i < n; i++)
		if (dst[i] != ranks) {
			fprintf(stderr, "wrong sum %g at %d of %d, want %d\n", dst[i], i, n, ranks);
			MPI_Abort(MPI_COMM_WORLD, 1);
		}
	MPI_Allreduce(MPI_IN_PLACE, took, calls, MPI_LONG, MPI_MAX, MPI_COMM_WORLD);
	qsort(took, calls, sizeof *took, ascending);
	double median = (took[calls / 2] + took[(calls - 1) / 2]) / 2e3;
	free(took);
	if (!in_place)
		free(src);
	free(dst);
	return median;
}

int main(int argc, char **argv) {
	int rank;
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	for (int in_place = 0; in_place < 2; in_place++) {
		if (rank == 0)
			printf("%s\"Open MPI, C%s\": {", in_place ? "}, " : "{", in_place ? " in place" : "");
		for (int i = 1; i + 2 < argc; i += 3) {
			double us = measure(atoi(argv[i]) / 4, atoi(argv[i + 1]), atoi(argv[i + 2]), in_place);
			if (rank == 0)
				printf("%s\"%s\": %.3f", i > 1 ? ", " : "", argv[i], us);
		}
	}
	if (rank == 0)
		printf("}}\n");
	MPI_Finalize();
	return 0;
}
