/* How often a program that polls many completion queues in vain yields: yields QUEUES ROUNDS. */
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>

static unsigned long yields;

int sched_yield(void)
{
	yields++;
	return 0;
}

int main(int argc, char **argv)
{
	int queues = argc > 2 ? atoi(argv[1]) : 0, rounds = argc > 2 ? atoi(argv[2]) : 0;
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *context = list && list[0] ? ibv_open_device(list[0]) : NULL;
	struct ibv_cq **cqs = calloc((size_t)queues + 1, sizeof *cqs);
	struct ibv_wc wc;

	for (int i = 0; context && i < queues; i++)
		if (!(cqs[i] = ibv_create_cq(context, 4, NULL, NULL, 0)))
			return 1;
	yields = 0;
	for (int round = 0; context && round < rounds; round++)
		for (int i = 0; i < queues; i++)
			if (ibv_poll_cq(cqs[i], 1, &wc))
				return 1;
	printf("%lu\n", yields);
	return !context;
}
