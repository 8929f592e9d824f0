/* Commands to the device, and other messages over an opened context's connection. */
#ifndef RNIC_CMD_H
#define RNIC_CMD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "bypass/rpc.h"

struct rnic_context;

struct command {
	uint16_t op, op_modifier;
	uint32_t in_modifier;
	const void *inbox;
	uint32_t inbox_bytes;
	void *outbox;
	uint32_t outbox_bytes;
	uint64_t out_param; /* of the answer */
};

int nic_request(struct rnic_context *context, uint32_t kind, const void *body, size_t bytes, const int *fds,
		int fd_count, struct rpc_reply *reply);
void nic_lost(struct rnic_context *context);
bool nic_gone(struct rnic_context *context);

int nic_commands(struct rnic_context *context, struct command *list, size_t count, size_t *done);
int nic_command(struct rnic_context *context, uint16_t op, uint16_t op_modifier, uint32_t in_modifier,
		const void *inbox, uint32_t inbox_bytes, void *outbox, uint32_t outbox_bytes, uint64_t *out_param);
int nic_allocate(struct rnic_context *context, uint32_t kind, uint32_t *number);
void nic_free(struct rnic_context *context, uint32_t kind, uint32_t number);
int nic_allocate_queue(struct rnic_context *context, uint32_t kind, uint32_t *number, uint32_t *block);
void nic_free_queue(struct rnic_context *context, uint32_t kind, uint32_t number, uint32_t block);

int nic_vector(struct rnic_context *context, uint32_t vector);
int nic_share(struct rnic_context *context, void *base, size_t bytes, int fd);

#endif
