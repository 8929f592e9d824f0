/*
 * Check an OpenSHMEM library: puts, gets, atomics and a reduction over all ranks, each with its data checked. Rank 0 then
 * prints how many bytes the devices' counters report as sent. Exit status 1: data was wrong, or fewer bytes went over the
 * device than the puts alone move.
 */
#include <shmem.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "device_bytes.h"

enum { WORDS = 1 << 14, LOOK_US = 100000, MOST_LOOKS = 200 };

static long long put[WORDS], got[WORDS], counted, sums[2];
static long sync_words[SHMEM_REDUCE_SYNC_SIZE];
static long long work[SHMEM_REDUCE_MIN_WRKDATA_SIZE];
static int wrong;

static void expect(int good, const char *what)
{
	if (good || wrong)
		return;
	printf("rank %d: %s: wrong data\n", shmem_my_pe(), what);
	wrong = 1;
}

int main(void)
{
	unsigned long long before = sent_bytes(), least, sent = 0;
	int rank, ranks, next;

	shmem_init();
	rank = shmem_my_pe();
	ranks = shmem_n_pes();
	next = (rank + 1) % ranks;
	for (int i = 0; i < SHMEM_REDUCE_SYNC_SIZE; i++)
		sync_words[i] = SHMEM_SYNC_VALUE;
	for (int i = 0; i < WORDS; i++)
		got[i] = rank * 1000000ll + i;
	shmem_barrier_all();
	shmem_longlong_put(put, got, WORDS, next);
	shmem_barrier_all();
	for (int i = 0; i < WORDS; i++)
		expect(put[i] == (rank + ranks - 1) % ranks * 1000000ll + i, "put");
	memset(got, 0xff, sizeof got);
	shmem_longlong_get(got, put, WORDS, next);
	for (int i = 0; i < WORDS; i++)
		expect(got[i] == rank * 1000000ll + i, "get");
	for (int i = 0; i < 10; i++)
		shmem_longlong_atomic_fetch_add(&counted, 1, 0);
	sums[0] = rank + 1;
	shmem_barrier_all();
	expect(shmem_longlong_g(&counted, 0) == 10ll * ranks, "fetch and add");
	shmem_longlong_sum_to_all(sums + 1, sums, 1, 0, 0, ranks, work, sync_words);
	expect(sums[1] == ranks * (ranks + 1) / 2, "sum");
	shmem_barrier_all();
	least = (unsigned long long)ranks * sizeof put;
	/* sysfs counters are at most a quarter of a second old */
	for (int looks = 0; rank == 0 && sent < least && looks < MOST_LOOKS; looks++) {
		usleep(LOOK_US);
		sent = sent_bytes() - before;
	}
	if (rank == 0) {
		printf("%d ranks, put, get, fetch and add, sum: data right; %llu bytes went over the device\n", ranks,
		       sent);
		wrong |= sent < least;
	}
	shmem_barrier_all();
	shmem_finalize();
	return wrong;
}
