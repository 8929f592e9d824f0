/* Messages between a program's libraries and the NIC process (rnic.spec.attach). */
#ifndef RNIC_ATTACH_H
#define RNIC_ATTACH_H

#include <stddef.h>
#include <stdint.h>

enum { MESSAGE_MAX = 65536, FDS_MAX = 8 };

struct reply {
	uint32_t kind, token, error;
	uint8_t body[MESSAGE_MAX];
	size_t bytes; /* of the body */
	int fds[FDS_MAX];
	int fd_count;
};

/* One message and its answer. The answer's descriptors are the caller's unless an error is returned. */
int exchange(int socket, uint32_t kind, uint32_t token, const void *body, size_t bytes, const int *fds, int fd_count,
	     struct reply *reply);
void close_fds(struct reply *reply);
/* Passes on the words that a refusal came with. */
void tell(const struct reply *reply);
struct rnic_context;
int nic_hairpin(struct rnic_context *context, uint32_t number, uint64_t cookie_at, struct reply *reply);
/* Connects and greets. Returns the socket, or -1 with errno. */
int nic_connect(uint32_t *devices, int *pid);

#endif
