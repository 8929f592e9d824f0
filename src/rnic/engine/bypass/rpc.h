/* Messages between a program and its NIC process (rnic.spec.attach): one, and its answer. Linux alone. */
#ifndef RNIC_ENGINE_EXCHANGE_H
#define RNIC_ENGINE_EXCHANGE_H

#include <stddef.h>
#include <stdint.h>

#define EXCHANGE_BYTES 65536u
#define EXCHANGE_FDS 8

struct answer {
	uint32_t kind, token, error;
	uint8_t body[EXCHANGE_BYTES];
	size_t bytes; /* of the body */
	int fds[EXCHANGE_FDS];
	int fd_count;
};

/* 0, or the error number, EIO where nobody answers any more. The answer's descriptors are the caller's unless an error is
 * returned; `error` and the body's words say then what was refused. */
int exchange(int socket, uint32_t kind, uint32_t token, const void *body, size_t bytes, const int *fds, int fd_count,
	     struct answer *answer);
void close_fds(struct answer *answer);

#endif
