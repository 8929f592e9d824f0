/* Messages between a program and its NIC process (rnic.spec.attach): one, and its answer. Linux alone. */
#ifndef RNIC_ENGINE_RPC_H
#define RNIC_ENGINE_RPC_H

#include <stddef.h>
#include <stdint.h>

#define RPC_BYTES 65536u
#define RPC_FDS 8

struct rpc_reply {
	uint32_t kind, token, error;
	uint8_t body[RPC_BYTES];
	size_t bytes; /* of the body */
	int fds[RPC_FDS];
	int fd_count;
};

/* 0, or the error number, EIO where nobody answers any more. The answer's descriptors are the caller's unless an error is
 * returned; `error` and the body's words say then what was refused. */
int rpc_call(int socket, uint32_t kind, uint32_t token, const void *body, size_t bytes, const int *fds, int fd_count,
	     struct rpc_reply *answer);
void close_fds(struct rpc_reply *answer);

#endif
