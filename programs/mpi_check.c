/*
 * Check an MPI library: a ring, a sum over all ranks, and one-sided puts, gets and atomics, each with its data checked.
 * Rank 0 then prints how many bytes the devices' counters report as sent. Exit status 1: data was wrong, or fewer bytes
 * went over the device than the ring alone moves.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "device_bytes.h"

enum { RING_WORDS = 1 << 16, ROUNDS = 3, LOOK_US = 100000, MOST_LOOKS = 200 };

static int wrong;

static void expect(int good, const char *what, int rank)
{
	if (good)
		return;
	printf("rank %d: %s: wrong data\n", rank, what);
	wrong = 1;
}

static void ring(int rank, int ranks)
{
	int *words = malloc(RING_WORDS * sizeof *words), next = (rank + 1) % ranks, before = (rank + ranks - 1) % ranks;

	for (int i = 0; i < RING_WORDS; i++)
		words[i] = rank * 7 + i;
	for (int round = 1; round <= ROUNDS; round++) {
		MPI_Sendrecv_replace(words, RING_WORDS, MPI_INT, next, 1, before, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		for (int i = 0, from = (rank + ranks * ROUNDS - round) % ranks; i < RING_WORDS; i++)
			if (words[i] != from * 7 + i) {
				expect(0, "ring", rank);
				break;
			}
	}
	free(words);
}

static void sum(int rank, int ranks)
{
	long long mine[1024], all[1024];

	for (int i = 0; i < 1024; i++)
		mine[i] = (long long)(rank + 1) * i;
	MPI_Allreduce(mine, all, 1024, MPI_LONG_LONG, MPI_SUM, MPI_COMM_WORLD);
	for (int i = 0; i < 1024; i++)
		expect(all[i] == (long long)ranks * (ranks + 1) / 2 * i, "all-reduce", rank);
}

static void one_sided(int rank, int ranks)
{
	enum { WORDS = 4096 };
	long long *shared, *got = malloc(WORDS * sizeof *got), one = 1, before;
	int next = (rank + 1) % ranks;
	MPI_Win window;

	MPI_Win_allocate(2 * WORDS * sizeof *shared, sizeof *shared, MPI_INFO_NULL, MPI_COMM_WORLD, &shared, &window);
	memset(shared, 0, 2 * WORDS * sizeof *shared);
	MPI_Win_fence(0, window);
	for (int i = 0; i < WORDS; i++)
		got[i] = rank * 1000000ll + i;
	MPI_Put(got, WORDS, MPI_LONG_LONG, next, 0, WORDS, MPI_LONG_LONG, window);
	MPI_Win_fence(0, window);
	for (int i = 0; i < WORDS; i++)
		expect(shared[i] == (rank + ranks - 1) % ranks * 1000000ll + i, "put", rank);
	MPI_Win_fence(0, window);
	memset(got, 0xFF, WORDS * sizeof *got);
	MPI_Get(got, WORDS, MPI_LONG_LONG, next, 0, WORDS, MPI_LONG_LONG, window);
	MPI_Win_fence(0, window);
	for (int i = 0; i < WORDS; i++)
		expect(got[i] == rank * 1000000ll + i, "get", rank);
	MPI_Accumulate(&one, 1, MPI_LONG_LONG, 0, WORDS, 1, MPI_LONG_LONG, MPI_SUM, window);
	MPI_Win_fence(0, window);
	expect(rank != 0 || shared[WORDS] == ranks, "accumulate", rank);
	MPI_Win_fence(0, window);
	MPI_Win_lock_all(0, window);
	MPI_Fetch_and_op(&one, &before, MPI_LONG_LONG, 0, WORDS + 1, MPI_SUM, window);
	MPI_Win_flush_all(window);
	MPI_Win_unlock_all(window);
	MPI_Barrier(MPI_COMM_WORLD);
	MPI_Win_lock(MPI_LOCK_SHARED, 0, 0, window);
	MPI_Get(got, 1, MPI_LONG_LONG, 0, WORDS + 1, 1, MPI_LONG_LONG, window);
	MPI_Win_unlock(0, window);
	expect(before >= 0 && before < ranks && got[0] == ranks, "fetch and add", rank);
	MPI_Win_free(&window);
	free(got);
}

int main(int argc, char **argv)
{
	unsigned long long before, moved, least;
	int rank, ranks, any;

	before = sent_bytes();
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	ring(rank, ranks);
	sum(rank, ranks);
	one_sided(rank, ranks);
	MPI_Allreduce(&wrong, &any, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
	if (rank == 0) {
		least = (unsigned long long)ranks * ROUNDS * RING_WORDS * sizeof(int);
		moved = 0;
		for (int i = 0; i < MOST_LOOKS && moved < least;
		     i++) { /* counters are up to a quarter of a second old */
			usleep(LOOK_US);
			moved = sent_bytes() - before;
		}
		printf("%d ranks, ring, all-reduce, RMA: data %s; %llu bytes went over the device\n", ranks,
		       any ? "WRONG" : "right", moved);
		if (moved < least)
			any = 1;
	}
	MPI_Bcast(&any, 1, MPI_INT, 0, MPI_COMM_WORLD);
	MPI_Finalize();
	return any;
}
