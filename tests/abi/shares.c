/* A thread polls in vain and on, with a lock held that the main thread wants, too: shares TIMES. All on one core. */
#define _GNU_SOURCE
#include <infiniband/verbs.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>

static pthread_spinlock_t lock;
static volatile int stop;
static struct ibv_cq *cq;

static void *progress(void *unused)
{
	struct ibv_wc wc;

	while (!stop) {
		pthread_spin_lock(&lock);
		ibv_poll_cq(cq, 1, &wc);
		pthread_spin_unlock(&lock);
		for (volatile int i = 0; i < 200; i++)
			;
	}
	return unused;
}

int main(int argc, char **argv)
{
	int times = argc > 1 ? atoi(argv[1]) : 0;
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *context = list && list[0] ? ibv_open_device(list[0]) : NULL;
	pthread_t thread;
	cpu_set_t one;

	CPU_ZERO(&one);
	CPU_SET(sched_getcpu(), &one);
	if (!context || !(cq = ibv_create_cq(context, 4, NULL, NULL, 0)) || sched_setaffinity(0, sizeof one, &one))
		return 1;
	pthread_spin_init(&lock, PTHREAD_PROCESS_PRIVATE);
	if (pthread_create(&thread, NULL, progress, NULL))
		return 1;
	for (int i = 0; i < times; i++) {
		sched_yield();
		pthread_spin_lock(&lock);
		pthread_spin_unlock(&lock);
	}
	printf("%d times\n", times);
	stop = 1;
	return pthread_join(thread, NULL);
}
