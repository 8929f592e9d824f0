/*
 * The NIC process: its devices, and a context's connection with its window of registers.
 *
 * A connection is one opened context; closing it in any way destroys everything that the context owned.
 */
#define _GNU_SOURCE
#include "nic.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "attach.h"
#include "cmd.h"
#include "context.h"
#include "copier.h"
#include "device.h"
#include "errors.h"
#include "explain.h"

/* List the devices in an array that ends in NULL. Returns how many, or -1 with errno. */
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
		uint32_t index;

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
		memcpy(&index, record + RNIC_LIST_RECORD_INDEX_AT, 4);
		verbs->node_type = IBV_NODE_CA;
		verbs->transport_type = IBV_TRANSPORT_IB;
		snprintf(verbs->dev_name, sizeof verbs->dev_name, "uverbs%u", index);
		snprintf(verbs->dev_path, sizeof verbs->dev_path, "/sys/class/infiniband_verbs/uverbs%u", index);
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

/* ---- the window of registers */

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
	if (block_bytes != RNIC_REG_BLOCK_BYTES || rung + count > bytes ||
	    blocks + (uint64_t)count * block_bytes > bytes)
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

/* Read a variable of the environment as a flag, with a default if it is unset or empty. */
static bool env_flag(const char *name, bool fallback)
{
	const char *value = getenv(name);

	return value && *value ? strcmp(value, "0") != 0 : fallback;
}

static int is_nic_gone(void *self)
{
	return nic_gone(self);
}

static void lose_nic(void *self)
{
	nic_lost(self);
}

/* Read RNIC_LOOK_US: the longest spin time in microseconds before a wait for an event sleeps. */
static void set_spin_time(struct rnic_context *context)
{
	const char *value = getenv("RNIC_LOOK_US");
	unsigned long number, max = 1000000;

	if (!value || !*value)
		return;
	number = strtoul(value, NULL, 10);
	driver_set_spin(context->slot, 1000 * (number < max ? number : max));
}

/* Open the driver of the slot that came with an answer to OPEN. Returns 0 or the error number. */
static int open_driver(struct rnic_context *context, const struct rpc_reply *reply)
{
	struct driver_setup setup = { .socket = context->socket,
				      .blocks = context->blocks,
				      .answer = reply->body + RNIC_OPEN_REPLY_SIZE,
				      .fds = reply->fds + 2,
				      .is_gone = is_nic_gone,
				      .lost = lose_nic,
				      .self = context };
	int error = driver_open(&setup, &context->slot);

	if (error == EPROTO)
		log_error(
			"NIC process %d keeps its state as another version of rnic does: end it, or unset RNIC_BYPASS",
			context->nic_pid);
	if (!error)
		set_spin_time(context);
	if (error || !env_flag("RNIC_SHM", env_flag("RNIC_HAIRPIN", true)) /* `rnic exec --no-shm` clears it */)
		return error;
	error = driver_enable_shm_loopback(context->slot);
	if (error)
		log_error("there is no loopback inside the NIC (%s): packets go by the wire", strerror(error));
	return 0;
}

/* Report once why the NIC process runs the data path although this program requested to run it. */
static void say_why_not(const struct rpc_reply *reply)
{
	static atomic_flag said = ATOMIC_FLAG_INIT;
	int bytes = (int)reply->bytes - RNIC_OPEN_REPLY_SIZE;

	if (bytes > 0 && !atomic_flag_test_and_set(&said))
		log_error("the NIC process runs this program's data path, which is slower: %.*s", bytes,
			  (const char *)reply->body + RNIC_OPEN_REPLY_SIZE);
}

/* Open a device on a new connection, with or without a slot. Sets `*unfit` if this process cannot use the
 * slot. */
static int try_open(struct rnic_context *context, const char *name, bool slot, bool *unfit)
{
	uint8_t message[RNIC_OPEN_SIZE] = { 0 };
	struct rpc_reply *reply = malloc(sizeof *reply);
	uint32_t copier = 0, mode = RNIC_DMA_PROC_MEM, page = (uint32_t)sysconf(_SC_PAGESIZE);
	const char *forced = getenv("RNIC_DMA"); /* "mem" or "copy" */
	int fd = -1, error;

	if (!reply)
		return ENOMEM;
	reply->error = 0;
	own_fd_take(&context->socket, nic_connect(NULL, &context->nic_pid), OWN_FD_PRIVATE);
	if (context->socket.fd < 0) {
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
		error = fd < 0 ? errno : nic_request(context, RNIC_MSG_OPEN, message, sizeof message, &fd, 1, reply);
		if (fd >= 0)
			close(fd);
		else if (forced)
			log_error(
				"/proc/self/mem cannot be opened (%s): unset RNIC_DMA, so that a thread copies instead",
				strerror(error));
	} else {
		error = EACCES;
	}
	/* If the NIC process may not use /proc/PID/mem (not dumpable, yama, seccomp, no /proc), let a thread here
	 * copy. */
	if ((error == EACCES || error == EPERM || error == ENOENT) && (!forced || strcmp(forced, "mem") != 0)) {
		reply->error = 0;
		mode = RNIC_DMA_COPIER | (slot ? RNIC_DMA_SLOT : 0); /* the NIC process logs why it gives no slot */
		memcpy(message + RNIC_OPEN_MODE_AT, &mode, 4);
		error = copier_start(context, &fd, &copier);
		if (!error) {
			memcpy(message + RNIC_OPEN_COPIER_AT, &copier, 4);
			error = nic_request(context, RNIC_MSG_OPEN, message, sizeof message, &fd, 1, reply);
			close(fd);
		}
	}
	if (error) {
		log_refusal(reply);
		goto out;
	}
	error = map_window(context, reply);
	if (error) {
		close_fds(reply);
		goto out;
	}
	close(reply->fds[0]);
	own_fd_take(&context->wake_fd, reply->fds[1], OWN_FD_PRIVATE);
	if (reply->fd_count == 2 + DRIVER_FDS && reply->bytes >= RNIC_OPEN_REPLY_SIZE + RNIC_OPEN_SLOT_SIZE)
		*unfit = (error = open_driver(context, reply)) != 0;
	else if (slot)
		say_why_not(reply);
out:
	free(reply);
	if (error)
		nic_close(context);
	return error;
}

/* Return whether valgrind runs this program: it runs one thread at a time, so a polling thread blocks the others. */
static bool is_under_valgrind(void)
{
	const char *preloaded = getenv("LD_PRELOAD");

	return preloaded && strstr(preloaded, "/vgpreload_");
}

/* Make the NIC process explain failed requests on this program's stderr. */
static void ask_for_reasons(struct rnic_context *context)
{
	struct rpc_reply *reply = malloc(sizeof *reply);
	int fd = STDERR_FILENO;

	if (reply && explain_has_stderr())
		nic_request(context, RNIC_MSG_EXPLAIN, NULL, 0, &fd, 1, reply);
	free(reply);
}

int nic_open(struct rnic_context *context, const char *name)
{
	bool unfit = false, slot = env_flag("RNIC_BYPASS", true) /* `rnic exec --no-bypass` clears it */;
	int error = try_open(context, name, slot && !is_under_valgrind(), &unfit);

	if (unfit) {
		log_error("this program cannot run the data path itself (%s): the NIC process does", strerror(error));
		error = try_open(context, name, false, &unfit);
	}
	if (!error && explaining)
		ask_for_reasons(context);
	return error;
}

void nic_close(struct rnic_context *context)
{
	if (context->slot)
		driver_close(context->slot);
	context->slot = NULL;
	own_fd_close(&context->socket);
	copier_stop(context);
	own_fd_close(&context->wake_fd);
	if (context->window)
		munmap(context->window, context->window_bytes);
	context->window = NULL;
}
