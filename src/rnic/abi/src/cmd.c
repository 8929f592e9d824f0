/*
 * Commands to the device, and other messages over an opened context's connection.
 *
 * Messages are those of rnic.spec.attach. A command's inbox and outbox are part of the message.
 */
#define _GNU_SOURCE
#include "cmd.h"

#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "compiler.h"
#include "context.h"
#include "errors.h"
#include "explain.h"
#include "io/nocancel.h"

/* Send a message of an opened context and wait for its answer. */
int nic_request(struct rnic_context *context, uint32_t kind, const void *body, size_t bytes, const int *fds,
		int fd_count, struct rpc_reply *reply)
{
	int error;

	if (context->dead)
		return EIO;
	if (context->slot)
		return driver_request(context->slot, kind, body, bytes, fds, fd_count, reply);
	if (!own_fd_valid(&context->socket)) {
		nic_lost(context);
		return EIO;
	}
	pthread_mutex_lock(&context->command_lock);
	error = rpc_call(context->socket.fd, kind, ++context->token, body, bytes, fds, fd_count, reply);
	pthread_mutex_unlock(&context->command_lock);
	return error;
}

static pthread_mutex_t saying = PTHREAD_MUTEX_INITIALIZER;

/* Stop a device whose descriptors the program has closed: the program may have reused their numbers. */
void nic_lost(struct rnic_context *context)
{
	uint64_t one = 1;
	int before = nocancel_begin(); /* the caller may hold the device's lock */

	pthread_mutex_lock(&saying);
	if (!context->dead) {
		log_error("this program has closed descriptors of device %s, which is dead now: close only your own",
			  context->verbs.context.device->name);
		context->fatal = true;
		context->dead = true;
		if (own_fd_valid(&context->socket))
			shutdown(context->socket.fd, SHUT_RDWR); /* wakes the threads that wait */
		if (context->async.file.fd.fd >= 0 && own_fd_valid_exact(&context->async.file.fired) &&
		    write(context->async.file.fired.fd, &one, sizeof one) < 0)
			log_error("event descriptor %d does not take a write", context->async.file.fired.fd);
	}
	pthread_mutex_unlock(&saying);
	nocancel_end(before);
}

/* Return whether the NIC process is gone. Loops that wait for it check this periodically. */
bool nic_gone(struct rnic_context *context)
{
	struct pollfd poller = { .fd = context->socket.fd, .events = 0 };
	int before;

	if (context->dead)
		return true;
	if (!own_fd_valid(&context->socket) || !own_fd_valid(&context->wake_fd)) {
		nic_lost(context);
		return true;
	}
	before = nocancel_begin(); /* the caller may hold the device's lock */
	if (poll(&poller, 1, 0) == 1 && poller.revents & (POLLHUP | POLLERR)) {
		/* Report once, even if two threads notice at the same time. */
		pthread_mutex_lock(&saying);
		if (!context->dead)
			log_error("NIC process %d has gone: device %s is dead", context->nic_pid,
				  context->verbs.context.device->name);
		context->dead = true;
		pthread_mutex_unlock(&saying);
	}
	nocancel_end(before);
	return context->dead;
}

/* ---- commands */

static int errno_of_status(uint32_t status)
{
	if (status & RNIC_CMD_ST_ERRNO)
		return (int)(status & (RNIC_CMD_ST_ERRNO - 1));
	switch (status) {
	case RNIC_CMD_ST_OK:
		return 0;
	case RNIC_CMD_ST_BAD_OP:
		return EOPNOTSUPP;
	case RNIC_CMD_ST_BAD_SYS_STATE:
		return ENODEV;
	case RNIC_CMD_ST_RESOURCE_BUSY:
		return EBUSY;
	case RNIC_CMD_ST_EXCEED_LIM:
		return ENOMEM;
	case RNIC_CMD_ST_INTERNAL_ERR:
		return EIO;
	default:
		return EINVAL;
	}
}

/* Read the next command's answer from a message. Returns its status as an errno, EPROTO if it is missing. */
static int read_command_reply(struct command *command, const struct rpc_reply *reply, size_t *at)
{
	uint32_t status, bytes;
	const uint8_t *record = reply->body + *at;

	if (reply->bytes - *at < RNIC_COMMAND_REPLY_SIZE)
		return EPROTO;
	memcpy(&status, record + RNIC_COMMAND_REPLY_STATUS_AT, 4);
	memcpy(&bytes, record + RNIC_COMMAND_REPLY_OUTBOX_BYTES_AT, 4);
	memcpy(&command->out_param, record + RNIC_COMMAND_REPLY_OUT_PARAM_AT, 8);
	*at += RNIC_COMMAND_REPLY_SIZE;
	if (bytes > reply->bytes - *at)
		bytes = (uint32_t)(reply->bytes - *at);
	if (command->outbox && status == RNIC_CMD_ST_OK) {
		memset(command->outbox, 0, command->outbox_bytes);
		memcpy(command->outbox, reply->body + *at,
		       bytes < command->outbox_bytes ? bytes : command->outbox_bytes);
	} else if (status != RNIC_CMD_ST_OK && explaining) {
		explain_refusal(reply->body + *at, bytes);
	}
	*at += bytes;
	return errno_of_status(status);
}

/* Run commands in one message, until one fails. Returns its status as an errno; `*done` counts those before it. */
int nic_commands(struct rnic_context *context, struct command *list, size_t count, size_t *done)
{
	uint8_t message[2 * RNIC_COMMAND_SIZE + 1024] = { 0 };
	size_t bytes = 0, at = 0, finished = 0;
	struct rpc_reply *reply;
	int error;

	for (size_t i = 0; i < count; i++) {
		uint8_t *record = message + bytes;

		if (list[i].inbox_bytes > sizeof message ||
		    bytes + RNIC_COMMAND_SIZE + list[i].inbox_bytes > sizeof message)
			return EINVAL;
		memcpy(record + RNIC_COMMAND_OP_AT, &list[i].op, 2);
		memcpy(record + RNIC_COMMAND_OP_MODIFIER_AT, &list[i].op_modifier, 2);
		memcpy(record + RNIC_COMMAND_IN_MODIFIER_AT, &list[i].in_modifier, 4);
		memcpy(record + RNIC_COMMAND_INBOX_BYTES_AT, &list[i].inbox_bytes, 4);
		if (list[i].inbox_bytes)
			memcpy(record + RNIC_COMMAND_SIZE, list[i].inbox, list[i].inbox_bytes);
		bytes += RNIC_COMMAND_SIZE + list[i].inbox_bytes;
	}
	reply = malloc(sizeof *reply);
	if (!reply)
		return ENOMEM;
	reply->error = 0;
	error = nic_request(context, RNIC_MSG_COMMAND, message, bytes, NULL, 0, reply);
	while (!error && finished < count) {
		error = read_command_reply(&list[finished], reply, &at);
		finished += !error;
	}
	if (done)
		*done = finished;
	free(reply);
	return error;
}

/* Run one command. The outbox gets what fits. */
int nic_command(struct rnic_context *context, uint16_t op, uint16_t op_modifier, uint32_t in_modifier,
		const void *inbox, uint32_t inbox_bytes, void *outbox, uint32_t outbox_bytes, uint64_t *out_param)
{
	struct command command = { .op = op,
				   .op_modifier = op_modifier,
				   .in_modifier = in_modifier,
				   .inbox = inbox,
				   .inbox_bytes = inbox_bytes,
				   .outbox = outbox,
				   .outbox_bytes = outbox_bytes };
	int error = nic_commands(context, &command, 1, NULL);

	if (!error && out_param)
		*out_param = command.out_param;
	return error;
}

int nic_allocate(struct rnic_context *context, uint32_t kind, uint32_t *number)
{
	uint64_t out = 0;
	int error = nic_command(context, RNIC_CMD_ALLOC_RES, 0, kind, NULL, 0, NULL, 0, &out);

	*number = (uint32_t)out;
	return error;
}

void nic_free(struct rnic_context *context, uint32_t kind, uint32_t number)
{
	nic_command(context, RNIC_CMD_FREE_RES, (uint16_t)kind, number, NULL, 0, NULL, 0, NULL);
}

/* Allocate a queue's number and its block of registers. */
int nic_allocate_queue(struct rnic_context *context, uint32_t kind, uint32_t *number, uint32_t *block)
{
	struct command both[] = { { .op = RNIC_CMD_ALLOC_RES, .in_modifier = kind },
				  { .op = RNIC_CMD_ALLOC_RES, .in_modifier = RNIC_CMD_RES_UAR_BLOCK } };
	size_t done = 0;
	int error = nic_commands(context, both, COUNT(both), &done);

	*number = (uint32_t)both[0].out_param;
	*block = (uint32_t)both[1].out_param;
	if (error && done)
		nic_free(context, kind, *number);
	return error;
}

void nic_free_queue(struct rnic_context *context, uint32_t kind, uint32_t number, uint32_t block)
{
	struct command both[] = {
		{ .op = RNIC_CMD_FREE_RES, .op_modifier = RNIC_CMD_RES_UAR_BLOCK, .in_modifier = block },
		{ .op = RNIC_CMD_FREE_RES, .op_modifier = (uint16_t)kind, .in_modifier = number }
	};

	nic_commands(context, both, COUNT(both), NULL);
}

/* ---- descriptors */

/* Return the eventfd that an event queue's vector signals, or -1 with errno. */
int nic_vector(struct rnic_context *context, uint32_t vector)
{
	struct rpc_reply *reply = malloc(sizeof *reply);
	int error = reply ? nic_request(context, RNIC_MSG_VECTOR, &vector, sizeof vector, NULL, 0, reply) : ENOMEM;
	int fd = -1;

	if (!error && reply->fd_count == 1) {
		fd = reply->fds[0];
		/* Programs set O_NONBLOCK themselves if reads of it must not wait. */
		fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_NONBLOCK);
	} else if (!error) {
		close_fds(reply);
		error = EPROTO;
	}
	free(reply);
	if (error)
		errno = error;
	return fd;
}

/* Have the NIC process map a file that this program has mapped at `base`. */
int nic_share(struct rnic_context *context, void *base, size_t bytes, int fd)
{
	uint8_t message[RNIC_SHARE_SIZE] = { 0 };
	uint64_t va = (uintptr_t)base, length = bytes;
	uint32_t writable = 1;
	struct rpc_reply *reply = malloc(sizeof *reply);
	int error;

	memcpy(message + RNIC_SHARE_VA_AT, &va, 8);
	memcpy(message + RNIC_SHARE_BYTES_AT, &length, 8);
	memcpy(message + RNIC_SHARE_WRITABLE_AT, &writable, 4);
	error = reply ? nic_request(context, RNIC_MSG_SHARE, message, sizeof message, &fd, 1, reply) : ENOMEM;
	free(reply);
	return error;
}
