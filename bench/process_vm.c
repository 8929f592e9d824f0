/*
 * Baseline of shared-memory loopback: sequential process_vm_readv calls of BYTES from another process's memory.
 *
 *     process_vm BYTES COUNT     prints GB/s
 */
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static double now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

int main(int argc, char **argv)
{
	size_t bytes = argc > 1 ? strtoul(argv[1], NULL, 0) : 1 << 20,
	       count = argc > 2 ? strtoul(argv[2], NULL, 0) : 1000;
	int flags = MAP_PRIVATE | MAP_ANONYMOUS;
	char *from = mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
	char *to = mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
	pid_t parent = getpid(), child;
	int ready[2];
	char byte = 0;

	if (from == MAP_FAILED || to == MAP_FAILED || pipe(ready))
		return 1;
	memset(to, 1, bytes);
	child = fork();
	if (!child) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		prctl(PR_SET_PTRACER, parent);
		memset(from, 2, bytes); /* allocate its pages */
		if (write(ready[1], &byte, 1) != 1)
			return 1;
		pause();
		return 0;
	}
	if (child < 0 || read(ready[0], &byte, 1) != 1)
		return 1;
	struct iovec here = { to, bytes }, there = { from, bytes };
	double began = 0;
	for (size_t i = 0; i < count + count / 10; i++) {
		if (i == count / 10)
			began = now(); /* the first iterations warmed the caches */
		if (process_vm_readv(child, &here, 1, &there, 1, 0) != (ssize_t)bytes) {
			perror("process_vm_readv");
			kill(child, SIGKILL);
			return 1;
		}
	}
	double seconds = now() - began;
	kill(child, SIGKILL);
	waitpid(child, NULL, 0);
	if (to[bytes - 1] != 2)
		return 1;
	printf("%.3f GB/s\n", (double)bytes * (double)count / seconds / 1e9);
	return 0;
}
