/* Messages from a program to its NIC process, and their replies (rnic.spec.attach). Linux only. */
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

/* Send one message and receive its reply: 0, or the error number, EIO if the NIC process has gone. The caller owns the
 * reply's descriptors unless an error is returned; then `error` and the text in the body explain the refusal. */
int rpc_call(int socket, uint32_t kind, uint32_t token, const void *body, size_t bytes, const int *fds, int fd_count,
	     struct rpc_reply *reply);
void close_fds(struct rpc_reply *reply);

#endif
