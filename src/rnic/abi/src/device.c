/* Devices and contexts: list, open, close, and fork handling. */
#include "device.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "advise.h"
#include "attach.h"
#include "cmd.h"
#include "compiler.h"
#include "context.h"
#include "copier.h"
#include "cq.h"
#include "dm.h"
#include "errors.h"
#include "mr.h"
#include "mw.h"
#include "nic.h"
#include "on_command.h"
#include "pd.h"
#include "post.h"
#include "qp.h"
#include "query.h"
#include "srq.h"
#include "xrc.h"

enum { YIELD_AFTER = 100 };

static struct rnic_context *contexts;
static pthread_mutex_t contexts_lock = PTHREAD_MUTEX_INITIALIZER;

/* ---- fork: inherited contexts are dead in the child, which opens devices anew */

static void before_fork(void)
{
	pthread_mutex_lock(&contexts_lock);
}

static void parent_after_fork(void)
{
	pthread_mutex_unlock(&contexts_lock);
}

static void child_after_fork(void)
{
	for (struct rnic_context *context = contexts; context; context = context->next) {
		context->dead = context->forked = true;
		/* An inherited socket would keep the parent's context open after its death. */
		own_fd_close_inherited(&context->socket);
		copier_after_fork(context);
	}
	contexts = NULL;
	pthread_mutex_init(&contexts_lock, NULL);
}

__attribute__((constructor)) static void watch_forks(void)
{
	pthread_atfork(before_fork, parent_after_fork, child_after_fork);
}

EXPORT int ibv_fork_init(void)
{
	return 0; /* registered memory is reached by virtual address: copy-on-write does no harm */
}

EXPORT int ibv_is_fork_initialized(void)
{
	return IBV_FORK_UNNEEDED;
}

EXPORT int ibv_dontfork_range(void *base UNUSED, size_t size UNUSED)
{
	return 0;
}

EXPORT int ibv_dofork_range(void *base UNUSED, size_t size UNUSED)
{
	return 0;
}

/* ---- the list */

static void put_device(struct rnic_device *device)
{
	if (__atomic_sub_fetch(&device->references, 1, __ATOMIC_ACQ_REL) == 0)
		free(device);
}

/* RNIC_DEVICE, which `rnic exec` sets, names the devices of this program among those of the NIC process. */
static bool is_named(const char *name)
{
	const char *names = getenv("RNIC_DEVICE");
	size_t length = strlen(name);

	if (!names || !*names)
		return true;
	while (*names) {
		size_t end = strcspn(names, ",");

		if (end == length && memcmp(names, name, length) == 0)
			return true;
		names += end + (names[end] == ',');
	}
	return false;
}

EXPORT struct ibv_device **ibv_get_device_list(int *count)
{
	struct rnic_device **list = NULL;
	int found = -1, socket = nic_connect(NULL, NULL);

	if (socket >= 0) {
		found = nic_list(socket, &list);
		close(socket);
	}
	if (found < 0) { /* as on a kernel without RDMA */
		if (count)
			*count = 0;
		return fail_null(ENOSYS);
	}
	for (int i = 0, kept = 0; i < found; i++) {
		struct rnic_device *device = list[i];

		list[i] = NULL;
		if (is_named(device->verbs.name))
			list[kept++] = device;
		else
			put_device(device);
		if (i + 1 == found)
			found = kept;
	}
	if (count)
		*count = found;
	return (struct ibv_device **)(void *)list;
}

EXPORT void ibv_free_device_list(struct ibv_device **list)
{
	for (size_t i = 0; list[i]; i++)
		put_device((struct rnic_device *)list[i]);
	free(list);
}

EXPORT const char *ibv_get_device_name(struct ibv_device *device)
{
	return device->name;
}

EXPORT be64_t ibv_get_device_guid(struct ibv_device *device)
{
	return ((struct rnic_device *)device)->guid;
}

EXPORT int ibv_get_device_index(struct ibv_device *device)
{
	return atoi(device->dev_name + strcspn(device->dev_name, "0123456789"));
}

/* ---- contexts */

static const struct verbs_context operations = {
	.query_port = rnic_query_port,
	.advise_mr = rnic_advise_mr,
	.reg_dm_mr = rnic_reg_dm_mr,
	.alloc_dm = rnic_alloc_dm,
	.free_dm = rnic_free_dm,
	.alloc_parent_domain = rnic_alloc_parent_domain,
	.dealloc_td = rnic_dealloc_td,
	.alloc_td = rnic_alloc_td,
	.alloc_null_mr = rnic_alloc_null_mr,
	.query_rt_values = rnic_query_rt_values,
	.create_cq_ex = rnic_create_cq_ex,
	.query_device_ex = rnic_query_device_ex,
	.create_qp_ex = rnic_create_qp_ex,
	.get_srq_num = rnic_get_srq_num,
	.create_srq_ex = rnic_create_srq_ex,
	.open_qp = rnic_open_qp,
	.open_xrcd = rnic_open_xrcd,
	.close_xrcd = rnic_close_xrcd,
	.sz = sizeof(struct verbs_context),
	.context = {
		.ops = {
			.alloc_mw = rnic_alloc_mw,
			.bind_mw = rnic_bind_mw,
			.dealloc_mw = rnic_dealloc_mw,
			.poll_cq = rnic_poll_cq,
			.req_notify_cq = rnic_req_notify_cq,
			.post_srq_recv = rnic_post_srq_recv,
			.post_send = rnic_post_send,
			.post_recv = rnic_post_recv,
		},
		.cmd_fd = -1,
		.num_comp_vectors = 1,
		.abi_compat = VERBS_ABI_IS_EXTENDED,
	},
};

static int alloc_tables(struct rnic_context *context)
{
	uint32_t queues = 1u << dev_lim(context, RNIC_DEV_LIM_LOG_MAX_QPS);
	uint32_t cqs = 1u << dev_lim(context, RNIC_DEV_LIM_LOG_MAX_CQS);
	uint32_t srqs = 1u << dev_lim(context, RNIC_DEV_LIM_LOG_MAX_SRQS);

	context->qps = calloc(queues, sizeof *context->qps);
	context->cqs = calloc(cqs, sizeof *context->cqs);
	context->srqs = calloc(srqs, sizeof *context->srqs);
	context->qp_mask = queues - 1;
	context->cq_mask = cqs - 1;
	context->srq_mask = srqs - 1;
	return context->qps && context->cqs && context->srqs ? 0 : ENOMEM;
}

static int map_async_events(struct rnic_context *context)
{
	static const uint8_t types[] = {
		RNIC_EVENT_COMM_EST,	       RNIC_EVENT_SQ_DRAINED,	     RNIC_EVENT_CQ_ERROR,
		RNIC_EVENT_WQ_CATAS_ERROR,     RNIC_EVENT_LOCAL_CATAS_ERROR, RNIC_EVENT_PORT_CHANGE,
		RNIC_EVENT_WQ_INVAL_REQ_ERROR, RNIC_EVENT_WQ_ACCESS_ERROR,   RNIC_EVENT_SRQ_CATAS_ERROR,
		RNIC_EVENT_SRQ_LAST_WQE,       RNIC_EVENT_SRQ_LIMIT,
	};
	uint8_t mask[8];
	uint64_t bits = 0;

	for (size_t i = 0; i < COUNT(types); i++)
		bits |= 1ull << types[i];
	rnic_put_be(mask, 0, 8, 0, 64, bits);
	return nic_command(context, RNIC_CMD_MAP_EQ, 0, context->async.number, mask, sizeof mask, NULL, 0, NULL);
}

static void free_context(struct rnic_context *context)
{
	nic_close(context);
	ring_store_close(context);
	on_command_close(context);
	free(context->qps);
	free(context->cqs);
	free(context->srqs);
	pthread_mutex_destroy(&context->lock);
	pthread_mutex_destroy(&context->command_lock);
	free(context);
}

/* Read RNIC_YIELD_AFTER: consecutive empty polls before any thread yields. A huge number means never. */
static void init_yielding(struct rnic_context *context)
{
	const char *value = getenv("RNIC_YIELD_AFTER");
	unsigned long number = YIELD_AFTER;

	context->opener = pthread_self();
	context->yields_always = value && *value;
	if (context->yields_always)
		number = strtoul(value, NULL, 10);
	context->yield_after = number < UINT32_MAX ? (uint32_t)number : UINT32_MAX;
}

EXPORT struct ibv_context *ibv_open_device(struct ibv_device *verbs)
{
	struct rnic_device *device = (struct rnic_device *)verbs;
	struct rnic_context *context = calloc(1, sizeof *context);
	int error;

	if (!context)
		return NULL;
	context->verbs = operations;
	context->verbs.context.device = verbs;
	context->socket.fd = context->wake_fd.fd = context->cmd_fd.fd = -1;
	init_yielding(context);
	context->async.file.fd.fd = -1;
	pthread_mutex_init(&context->lock, NULL);
	pthread_mutex_init(&context->command_lock, NULL);
	pthread_mutex_init(&context->verbs.context.mutex, NULL);
	ring_store_open(context);
	error = nic_open(context, verbs->name);
	if (!error)
		error = nic_command(context, RNIC_CMD_QUERY_DEV_LIM, 0, 0, NULL, 0, context->limits,
				    sizeof context->limits, NULL);
	if (!error)
		error = on_command_open(context);
	if (!error)
		error = alloc_tables(context);
	if (!error)
		error = event_queue_open(context, &context->async);
	if (!error)
		error = map_async_events(context);
	if (error) {
		free_context(context);
		return fail_null(error);
	}
	context->verbs.context.async_fd = context->async.file.fd.fd;
	/* Programs that pass a context on duplicate this descriptor; importing it is not supported. */
	own_fd_take(&context->cmd_fd, open("/dev/null", O_RDWR | O_CLOEXEC), OWN_FD_SHARED);
	context->verbs.context.cmd_fd = context->cmd_fd.fd;
	__atomic_add_fetch(&device->references, 1, __ATOMIC_RELAXED);
	pthread_mutex_lock(&contexts_lock);
	context->next = contexts;
	contexts = context;
	pthread_mutex_unlock(&contexts_lock);
	return &context->verbs.context;
}

EXPORT int ibv_close_device(struct ibv_context *verbs)
{
	struct rnic_context *context = context_of(verbs);

	pthread_mutex_lock(&contexts_lock);
	for (struct rnic_context **at = &contexts; *at; at = &(*at)->next) {
		if (*at == context) {
			*at = context->next;
			break;
		}
	}
	pthread_mutex_unlock(&contexts_lock);
	event_queue_close(context, &context->async);
	own_fd_close(&context->cmd_fd);
	put_device((struct rnic_device *)verbs->device);
	free_context(context);
	return 0;
}
