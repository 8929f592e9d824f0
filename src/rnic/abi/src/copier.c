/*
 * Copy memory for a NIC process that may not access this program's memory: not dumpable, yama, seccomp.
 *
 * A thread answers copy requests of the NIC process over a socket pair, one at a time. The kernel copies between the
 * program's memory and the socket, so an address that is not mapped, or is read-only, is an EFAULT and not a signal.
 */
#define _GNU_SOURCE
#include "copier.h"

#include <inttypes.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "context.h"
#include "errors.h"

struct copier {
	pthread_t thread;
	struct own_fd socket;
	_Atomic uint32_t number; /* of the thread, 0 until it runs */
};

/* Check in this process's own map that the whole range can be read, or written. */
static int check_range(uint64_t va, uint64_t bytes, bool writable)
{
	FILE *maps = fopen("/proc/self/maps", "re");
	uint64_t start, end, need = va;
	char rights[5], line[512];
	int error = EFAULT;

	if (!maps) {
		error = errno;
		log_error("/proc/self/maps cannot be read (%s): without it no memory can be registered",
			  strerror(error));
		return error;
	}
	while (error && fgets(line, sizeof line, maps)) {
		if (sscanf(line, "%" SCNx64 "-%" SCNx64 " %4s", &start, &end, rights) != 3 || end <= need)
			continue; /* the rest of a long line */
		if (start > need || rights[0] != 'r' || (writable && rights[1] != 'w'))
			break;
		need = end;
		if (need - va >= bytes)
			error = 0;
	}
	fclose(maps);
	return error;
}

/* Send a reply header and the bytes at `va` in one message. */
static int send_from(int socket, uint64_t va, size_t bytes)
{
	uint32_t good = 0;
	struct iovec parts[2] = { { &good, sizeof good }, { (void *)(uintptr_t)va, bytes } };
	struct msghdr message = { .msg_iov = parts, .msg_iovlen = 2 };

	return sendmsg(socket, &message, MSG_NOSIGNAL) < 0 ? errno : 0;
}

/* Receive the data of the waiting message to `va`. The message is consumed even if that fails. */
static int receive_to(int socket, uint64_t va, size_t bytes)
{
	uint8_t head[RNIC_COPY_SIZE];
	struct iovec parts[2] = { { head, sizeof head }, { (void *)(uintptr_t)va, bytes } };
	struct msghdr message = { .msg_iov = parts, .msg_iovlen = 2 };
	ssize_t got = recvmsg(socket, &message, 0);

	if (got < 0)
		return errno;
	return (size_t)got == sizeof head + bytes ? 0 : EINVAL;
}

static void drop_message(int socket)
{
	uint8_t byte;

	while (recv(socket, &byte, sizeof byte, 0) < 0 && errno == EINTR)
		;
}

static void *serve_copies(void *argument)
{
	struct copier *copier = argument;
	int socket = copier->socket.fd;
	uint8_t head[RNIC_COPY_SIZE];

	copier->number = (uint32_t)syscall(SYS_gettid); /* gettid came with glibc 2.30 */

	for (;;) {
		ssize_t got = recv(socket, head, sizeof head, MSG_PEEK);
		uint64_t va, bytes;
		uint32_t kind;
		int error;

		if (got < 0 && errno == EINTR)
			continue;
		if (got < (ssize_t)sizeof head || !own_fd_valid(&copier->socket))
			return NULL; /* the NIC process, or this context, has closed */
		memcpy(&va, head + RNIC_COPY_VA_AT, sizeof va);
		memcpy(&bytes, head + RNIC_COPY_BYTES_AT, sizeof bytes);
		memcpy(&kind, head + RNIC_COPY_KIND_AT, sizeof kind);
		if (kind == RNIC_COPY_WRITE && bytes <= RNIC_MAX_COPY) {
			error = receive_to(socket, va, bytes);
		} else {
			drop_message(socket);
			if (kind == RNIC_COPY_READ && bytes <= RNIC_MAX_COPY)
				error = send_from(socket, va, bytes);
			else if (kind == RNIC_COPY_CHECK || kind == RNIC_COPY_CHECK_WRITE)
				error = check_range(va, bytes, kind == RNIC_COPY_CHECK_WRITE);
			else
				error = EINVAL;
			if (kind == RNIC_COPY_READ && !error)
				continue;
		}
		if (send(socket, &(uint32_t){ (uint32_t)error }, sizeof(uint32_t), MSG_NOSIGNAL) < 0)
			return NULL;
	}
}

/* Start the thread. The NIC process gets the other end of its socket; the caller closes it. */
int copier_start(struct rnic_context *context, int *peer, uint32_t *number)
{
	struct copier *copier = calloc(1, sizeof *copier);
	sigset_t all, before;
	int ends[2], error;

	if (!copier)
		return ENOMEM;
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) < 0) {
		error = errno;
		free(copier);
		return error;
	}
	own_fd_take(&copier->socket, ends[0], OWN_FD_PRIVATE);
	sigfillset(&all); /* signals go to the program's own threads */
	pthread_sigmask(SIG_SETMASK, &all, &before);
	error = pthread_create(&copier->thread, NULL, serve_copies, copier);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (error) {
		own_fd_close(&copier->socket);
		close(ends[1]);
		free(copier);
		return error;
	}
	while (!copier->number)
		sched_yield();
	*number = copier->number;
	context->copier = copier;
	*peer = ends[1];
	return 0;
}

void copier_stop(struct rnic_context *context)
{
	struct copier *copier = context->copier;

	if (!copier)
		return;
	context->copier = NULL;
	if (own_fd_valid(&copier->socket))
		shutdown(copier->socket.fd, SHUT_RDWR);
	pthread_join(copier->thread, NULL);
	own_fd_close(&copier->socket);
	free(copier);
}

/* Close the socket in a forked child: the thread is the parent's. */
void copier_after_fork(struct rnic_context *context)
{
	struct copier *copier = context->copier;

	if (!copier)
		return;
	context->copier = NULL;
	own_fd_close_inherited(&copier->socket);
	free(copier);
}
