/* Sums of 1 MiB of floats over all ranks: prints how long each took on rank 0. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

enum { COUNT = 1 << 18, ROUNDS = 5 };

int main(int argc, char **argv)
{
	float *mine = malloc(COUNT * sizeof *mine), *sum = malloc(COUNT * sizeof *sum);
	int rank, ranks, wrong = 0;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	for (int i = 0; i < COUNT; i++)
		mine[i] = (float)(rank + i % 7);
	for (int round = 0; round < ROUNDS; round++) {
		double begun = MPI_Wtime();
		MPI_Allreduce(mine, sum, COUNT, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
		if (!rank)
			printf("all-reduce %d: %.1f ms\n", round, (MPI_Wtime() - begun) * 1e3);
		for (int i = 0; i < COUNT; i++)
			wrong |= sum[i] != (float)(ranks * (ranks - 1) / 2 + ranks * (i % 7));
	}
	if (wrong)
		printf("rank %d: wrong sum\n", rank);
	MPI_Finalize();
	return wrong;
}
