/*
 * The NIC process: its socket, messages, window of registers, and memory shared with it.
 *
 * Messages are those of rnic.spec.attach. A connection is one opened context; closing it, in whatever way, destroys
 * everything that the context owned.
 */
#define _GNU_SOURCE
#include "attach.h"
#include "io/nocancel.h"
#include "rnic.h"

#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

/* The devices as a list that ends in NULL. Returns how many, or -1 with errno. */
int nic_list(int socket, struct rnic_device ***list)
{
	struct rpc_reply *reply = malloc(sizeof *reply);
	int error = reply ? rpc_call(socket, RNIC_MSG_LIST, 2, NULL, 0, NULL, 0, reply) : ENOMEM;
	size_t count = 0;

	if (error)
		goto out;
	count = reply->bytes / RNIC_LIST_RECORD_SIZE;
	*list = calloc(count + 1, sizeof **list);
	if (!*list) {
		error = ENOMEM;
		goto out;
	}
	for (size_t i = 0; i < count; i++) {
		const uint8_t *record = reply->body + i * RNIC_LIST_RECORD_SIZE;
		struct rnic_device *device = calloc(1, sizeof *device);
		struct ibv_device *verbs = &device->verbs;
		const char *digits;
		int index;

		if (!device) {
			while (i-- > 0)
				free((*list)[i]);
			free(*list);
			error = ENOMEM;
			goto out;
		}
		device->references = 1;
		memcpy(device->gid.raw, record + RNIC_LIST_RECORD_GID_AT, 16);
		memcpy(&device->guid, record + RNIC_LIST_RECORD_GUID_AT, 8);
		memcpy(verbs->name, record + RNIC_LIST_RECORD_NAME_AT, 16);
		verbs->name[15] = 0;
		digits = verbs->name + strcspn(verbs->name, "0123456789");
		index = *digits ? atoi(digits) : (int)i;
		verbs->node_type = IBV_NODE_CA;
		verbs->transport_type = IBV_TRANSPORT_IB;
		snprintf(verbs->dev_name, sizeof verbs->dev_name, "uverbs%d", index);
		snprintf(verbs->dev_path, sizeof verbs->dev_path, "/sys/class/infiniband_verbs/uverbs%d", index);
		snprintf(verbs->ibdev_path, sizeof verbs->ibdev_path, "/sys/class/infiniband/%.16s", verbs->name);
		(*list)[i] = device;
	}
out:
	free(reply);
	if (error) {
		errno = error;
		return -1;
	}
	return (int)count;
}

/* A message of an opened context. */
static int ask(struct rnic_context *context, uint32_t kind, const void *body, size_t bytes, const int *fds, int fd_count,
	       struct rpc_reply *reply)
{
	int error;

	if (context->dead)
		return EIO;
	if (context->slot)
		return driver_request(context->slot, kind, body, bytes, fds, fd_count, reply);
	pthread_mutex_lock(&context->command_lock);
	error = rpc_call(context->socket, kind, ++context->token, body, bytes, fds, fd_count, reply);
	pthread_mutex_unlock(&context->command_lock);
	return error;
}

static int errno_of(uint32_t status)
{
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

/* Takes one command's answer from those of a message; its status as an errno, EPROTO where there is none. */
static int take_answer(struct command *command, const struct rpc_reply *reply, size_t *at)
{
	uint32_t status, bytes;
	const uint8_t *said = reply->body + *at;

	if (reply->bytes - *at < RNIC_COMMAND_REPLY_SIZE)
		return EPROTO;
	memcpy(&status, said + RNIC_COMMAND_REPLY_STATUS_AT, 4);
	memcpy(&bytes, said + RNIC_COMMAND_REPLY_OUTBOX_BYTES_AT, 4);
	memcpy(&command->out_param, said + RNIC_COMMAND_REPLY_OUT_PARAM_AT, 8);
	*at += RNIC_COMMAND_REPLY_SIZE;
	if (bytes > reply->bytes - *at)
		bytes = (uint32_t)(reply->bytes - *at);
	if (command->outbox && status == RNIC_CMD_ST_OK) {
		memset(command->outbox, 0, command->outbox_bytes);
		memcpy(command->outbox, reply->body + *at, bytes < command->outbox_bytes ? bytes : command->outbox_bytes);
	}
	*at += bytes;
	return errno_of(status);
}

/* Commands of the device, one after the other until one fails: its status as an errno. `*done` counts those before it. */
int nic_commands(struct rnic_context *context, struct command *list, size_t count, size_t *done)
{
	uint8_t message[2 * RNIC_COMMAND_SIZE + 1024] = { 0 };
	size_t bytes = 0, at = 0, finished = 0;
	struct rpc_reply *reply;
	int error;

	for (size_t i = 0; i < count; i++) {
		uint8_t *said = message + bytes;

		if (list[i].inbox_bytes > sizeof message || bytes + RNIC_COMMAND_SIZE + list[i].inbox_bytes > sizeof message)
			return EINVAL;
		memcpy(said + RNIC_COMMAND_OP_AT, &list[i].op, 2);
		memcpy(said + RNIC_COMMAND_OP_MODIFIER_AT, &list[i].op_modifier, 2);
		memcpy(said + RNIC_COMMAND_IN_MODIFIER_AT, &list[i].in_modifier, 4);
		memcpy(said + RNIC_COMMAND_INBOX_BYTES_AT, &list[i].inbox_bytes, 4);
		if (list[i].inbox_bytes)
			memcpy(said + RNIC_COMMAND_SIZE, list[i].inbox, list[i].inbox_bytes);
		bytes += RNIC_COMMAND_SIZE + list[i].inbox_bytes;
	}
	reply = malloc(sizeof *reply);
	if (!reply)
		return ENOMEM;
	reply->error = 0;
	error = ask(context, RNIC_MSG_COMMAND, message, bytes, NULL, 0, reply);
	while (!error && finished < count) {
		error = take_answer(&list[finished], reply, &at);
		finished += !error;
	}
	if (done)
		*done = finished;
	free(reply);
	return error;
}

/* One command. The outbox gets what fits. */
int nic_command(struct rnic_context *context, uint16_t op, uint16_t op_modifier, uint32_t in_modifier,
		const void *inbox, uint32_t inbox_bytes, void *outbox, uint32_t outbox_bytes, uint64_t *out_param)
{
	struct command command = { .op = op, .op_modifier = op_modifier, .in_modifier = in_modifier, .inbox = inbox,
				   .inbox_bytes = inbox_bytes, .outbox = outbox, .outbox_bytes = outbox_bytes };
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

/* A queue's number, and the block of registers that it rings. */
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
	struct command both[] = { { .op = RNIC_CMD_FREE_RES, .op_modifier = RNIC_CMD_RES_UAR_BLOCK, .in_modifier = block },
				  { .op = RNIC_CMD_FREE_RES, .op_modifier = (uint16_t)kind, .in_modifier = number } };

	nic_commands(context, both, COUNT(both), NULL);
}

/* The descriptor that an event queue's vector fires, or -1 with errno. */
int nic_vector(struct rnic_context *context, uint32_t vector)
{
	struct rpc_reply *reply = malloc(sizeof *reply);
	int error = reply ? ask(context, RNIC_MSG_VECTOR, &vector, sizeof vector, NULL, 0, reply) : ENOMEM;
	int fd = -1;

	if (!error && reply->fd_count == 1) {
		fd = reply->fds[0];
		/* Programs say themselves whether their reads of it may wait. */
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

/* Whether the NIC process has gone; looked at now and then by who waits for it. */
bool nic_gone(struct rnic_context *context)
{
	static pthread_mutex_t saying = PTHREAD_MUTEX_INITIALIZER;
	struct pollfd poller = { .fd = context->socket, .events = 0 };
	int before;

	if (context->dead)
		return true;
	before = nocancel_begin(); /* whoever asks may hold the device's lock */
	if (poll(&poller, 1, 0) == 1 && poller.revents & (POLLHUP | POLLERR)) {
		/* Of two threads that see it one says so, and neither ends the program before that. */
		pthread_mutex_lock(&saying);
		if (!context->dead)
			complain("NIC process %d has gone: device %s is dead", context->nic_pid,
				 context->verbs.context.device->name);
		context->dead = true;
		pthread_mutex_unlock(&saying);
	}
	nocancel_end(before);
	return context->dead;
}

/* ---- memory shared with the NIC process */

/* The NIC process maps a file as this program has it mapped at base. */
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
	error = reply ? ask(context, RNIC_MSG_SHARE, message, sizeof message, &fd, 1, reply) : ENOMEM;
	free(reply);
	return error;
}

/* ---- the window */

/* Tell the NIC that a doorbell register of this block was stored to; `number` is its queue pair's, or 0. */
void nic_ring(struct rnic_context *context, uint32_t number, uint32_t block)
{
	if (!context->slot || !driver_ring(context->slot, number, block))
		driver_ring_doorbell(context->rung, context->asleep, context->wake_fd, block);
}

static int map_window(struct rnic_context *context, const struct rpc_reply *reply)
{
	uint64_t bytes, rung, blocks;
	uint32_t count, block_bytes;
	uint32_t magic, version;

	if (reply->bytes < RNIC_OPEN_REPLY_SIZE || (reply->fd_count != 2 && reply->fd_count != 2 + DRIVER_FDS))
		return EPROTO;
	memcpy(&count, reply->body + RNIC_OPEN_REPLY_BLOCKS_AT, 4);
	memcpy(&block_bytes, reply->body + RNIC_OPEN_REPLY_BLOCK_BYTES_AT, 4);
	memcpy(&bytes, reply->body + RNIC_OPEN_REPLY_WINDOW_BYTES_AT, 8);
	memcpy(&rung, reply->body + RNIC_OPEN_REPLY_RUNG_OFFSET_AT, 8);
	memcpy(&blocks, reply->body + RNIC_OPEN_REPLY_BLOCKS_OFFSET_AT, 8);
	if (block_bytes != RNIC_REG_BLOCK_BYTES || rung + count > bytes || blocks + (uint64_t)count * block_bytes > bytes)
		return EPROTO;
	context->window = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, reply->fds[0], 0);
	if (context->window == MAP_FAILED) {
		context->window = NULL;
		return errno;
	}
	context->window_bytes = bytes;
	memcpy(&magic, context->window + RNIC_WINDOW_MAGIC_AT, 4);
	memcpy(&version, context->window + RNIC_WINDOW_VERSION_AT, 4);
	if (magic != RNIC_ATTACH_MAGIC || version != RNIC_ATTACH_VERSION)
		return EPROTO;
	context->rung = (_Atomic uint8_t *)(context->window + rung);
	context->blocks = context->window + blocks;
	context->asleep = (_Atomic uint32_t *)(void *)(context->window + RNIC_WINDOW_ASLEEP_AT);
	return 0;
}

/* ---- the engine in this process */

/* Whether a variable of the environment says yes; `unsaid` where it says nothing. */
static bool wanted(const char *name, bool unsaid)
{
	const char *said = getenv(name);

	return said && *said ? strcmp(said, "0") != 0 : unsaid;
}

static int slot_is_gone(void *self)
{
	return nic_gone(self);
}

/* RNIC_LOOK_US says for how long who waits for an event looks on at most, when events come quickly, before he sleeps. */
static void look_on(struct rnic_context *context)
{
	const char *said = getenv("RNIC_LOOK_US");
	unsigned long number, most = 1000000;

	if (!said || !*said)
		return;
	number = strtoul(said, NULL, 10);
	driver_set_spin(context->slot, 1000 * (number < most ? number : most));
}

/* The slot that came with an answer to OPEN: 0 or the error number. */
static int take_slot(struct rnic_context *context, const struct rpc_reply *reply)
{
	struct driver_setup setup = { .socket = context->socket, .blocks = context->blocks,
				    .answer = reply->body + RNIC_OPEN_REPLY_SIZE, .fds = reply->fds + 2,
				    .is_gone = slot_is_gone, .self = context };
	int error = driver_open(&setup, &context->slot);

	if (error == EPROTO)
		complain("NIC process %d keeps its state as another version of rnic does: end it, or unset RNIC_BYPASS",
			 context->nic_pid);
	if (!error)
		look_on(context);
	if (error || !wanted("RNIC_HAIRPIN", true) /* `rnic exec --no-hairpin` clears it */)
		return error;
	error = driver_enable_shm_loopback(context->slot);
	if (error)
		complain("there is no loopback inside the NIC (%s): packets go by the wire", strerror(error));
	return 0;
}

/* Opens a device on a connection of its own, with a slot where `slot` says so; `*unfit`: this process could not use it. */
static int open_once(struct rnic_context *context, const char *name, bool slot, bool *unfit)
{
	uint8_t message[RNIC_OPEN_SIZE] = { 0 };
	struct rpc_reply *reply = malloc(sizeof *reply);
	uint32_t copier = 0, mode = RNIC_DMA_PROC_MEM, page = (uint32_t)sysconf(_SC_PAGESIZE);
	const char *forced = getenv("RNIC_DMA"); /* "mem" or "copy": the one way, or the other */
	int fd = -1, error;

	if (!reply)
		return ENOMEM;
	reply->error = 0;
	context->socket = nic_connect(NULL, &context->nic_pid);
	if (context->socket < 0) {
		error = errno;
		free(reply);
		return error;
	}
	memcpy(message + RNIC_OPEN_NAME_AT, name, strnlen(name, RNIC_OPEN_NAME_BYTES - 1));
	memcpy(message + RNIC_OPEN_PAGE_AT, &page, 4);
	if (slot || *unfit)
		mode |= slot ? RNIC_DMA_SLOT : RNIC_DMA_UNFIT;
	memcpy(message + RNIC_OPEN_MODE_AT, &mode, 4);
	if (!forced || strcmp(forced, "copy") != 0) {
		fd = open("/proc/self/mem", O_RDWR | O_CLOEXEC);
		error = fd < 0 ? errno : ask(context, RNIC_MSG_OPEN, message, sizeof message, &fd, 1, reply);
		if (fd >= 0)
			close(fd);
		else if (forced)
			complain("/proc/self/mem cannot be opened (%s): unset RNIC_DMA, so that a thread copies instead",
				 strerror(error));
	} else {
		error = EACCES;
	}
	/* Not dumpable, yama, seccomp, no /proc: then a thread of this program copies. */
	if ((error == EACCES || error == EPERM || error == ENOENT) && (!forced || strcmp(forced, "mem") != 0)) {
		reply->error = 0;
		mode = RNIC_DMA_COPIER | (slot ? RNIC_DMA_SLOT : 0); /* the NIC process says why there is none */
		memcpy(message + RNIC_OPEN_MODE_AT, &mode, 4);
		error = copier_start(context, &fd, &copier);
		if (!error) {
			memcpy(message + RNIC_OPEN_COPIER_AT, &copier, 4);
			error = ask(context, RNIC_MSG_OPEN, message, sizeof message, &fd, 1, reply);
			close(fd);
		}
	}
	if (error) {
		tell(reply);
		goto out;
	}
	error = map_window(context, reply);
	if (error) {
		close_fds(reply);
		goto out;
	}
	close(reply->fds[0]);
	context->wake_fd = reply->fds[1];
	if (reply->fd_count == 2 + DRIVER_FDS && reply->bytes >= RNIC_OPEN_REPLY_SIZE + RNIC_OPEN_SLOT_SIZE)
		*unfit = (error = take_slot(context, reply)) != 0;
out:
	free(reply);
	if (error)
		nic_close(context);
	return error;
}

int nic_open(struct rnic_context *context, const char *name)
{
	bool unfit = false;
	int error = open_once(context, name, wanted("RNIC_BYPASS", false) /* `rnic exec --bypass` sets it */, &unfit);

	if (!unfit)
		return error;
	complain("this program cannot run the data path itself (%s): the NIC process does", strerror(error));
	return open_once(context, name, false, &unfit);
}

void nic_close(struct rnic_context *context)
{
	if (context->slot)
		driver_close(context->slot);
	context->slot = NULL;
	if (context->socket >= 0)
		close(context->socket);
	context->socket = -1;
	copier_stop(context);
	if (context->wake_fd >= 0)
		close(context->wake_fd);
	context->wake_fd = -1;
	if (context->window)
		munmap(context->window, context->window_bytes);
	context->window = NULL;
}
