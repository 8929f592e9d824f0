/* Requests to the connection manager in the NIC process, over one connection for each process. */
#define _GNU_SOURCE
#include "rdmacm_rpc.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "attach.h"
#include "compiler.h"
#include "errors.h"
#include "io/nocancel.h"
#include "io/own_fd.h"
#include "rdmacm_id.h"
#include "rnic_reasons.h"
#include "stubs.h"

static pthread_mutex_t rpc_lock = PTHREAD_MUTEX_INITIALIZER;
static struct own_fd channel_socket = { .fd = -1 };
static uint32_t token;
static struct rpc_reply *reply;

/* ---- fork: the child starts over */

static void before_fork(void)
{
	pthread_mutex_lock(&rpc_lock);
}

static void parent_after_fork(void)
{
	pthread_mutex_unlock(&rpc_lock);
}

static void child_after_fork(void)
{
	own_fd_close_inherited(&channel_socket); /* it would keep the parent's connections after its death */
	pthread_mutex_init(&rpc_lock, NULL);
}

__attribute__((constructor)) static void watch_forks(void)
{
	pthread_atfork(before_fork, parent_after_fork, child_after_fork);
}

/* ---- requests */

void cm_rpc_init(struct cm_rpc *rpc, uint32_t op, const struct cm_id *id)
{
	memset(rpc, 0, sizeof *rpc);
	rpc->fd = -1; /* and no further records */
	cm_put32(rpc, RNIC_CM_REQUEST_OP_AT, op);
	cm_put32(rpc, RNIC_CM_REQUEST_ID_AT, id ? id->number : 0);
}

void cm_rpc_private_data(struct cm_rpc *rpc, const void *data, size_t bytes)
{
	if (!data)
		bytes = 0;
	cm_put32(rpc, RNIC_CM_REQUEST_PRIVATE_BYTES_AT, (uint32_t)bytes);
	if (bytes)
		memcpy(rpc->request + RNIC_CM_REQUEST_PRIVATE_AT, data, bytes);
}

/* Print the NIC process's reason for refusing a request. */
static void __attribute__((cold)) explain_cm_refusal(const struct cm_rpc *rpc, int error)
{
	static const char *const verbs[] = {
		[RNIC_CM_BIND] = "rdma_bind_addr",
		[RNIC_CM_RESOLVE_ADDR] = "rdma_resolve_addr",
		[RNIC_CM_RESOLVE_ROUTE] = "rdma_resolve_route",
		[RNIC_CM_LISTEN] = "rdma_listen",
		[RNIC_CM_CONNECT] = "rdma_connect",
		[RNIC_CM_ACCEPT] = "rdma_accept",
		[RNIC_CM_REJECT] = "rdma_reject",
		[RNIC_CM_ESTABLISH] = "rdma_establish",
		[RNIC_CM_DISCONNECT] = "rdma_disconnect",
		[RNIC_CM_JOIN] = "rdma_join_multicast",
		[RNIC_CM_LEAVE] = "rdma_leave_multicast",
		[RNIC_CM_CREATE] = "rdma_create_id",
		[RNIC_CM_MIGRATE] = "rdma_migrate_id",
	};
	uint32_t op;
	const char *verb;
	char text[256];

	if (!reply->error || !reply->bytes)
		return;
	memcpy(&op, rpc->request + RNIC_CM_REQUEST_OP_AT, sizeof op);
	verb = op < COUNT(verbs) && verbs[op] ? verbs[op] : "rdma_cm";
	snprintf(text, sizeof text, "%.*s", (int)reply->bytes, (const char *)reply->body);
	why_cm_refused(error, verb, text);
}

static int call_locked(struct cm_rpc *rpc)
{
	int error =
		rpc_call(channel_socket.fd, RNIC_MSG_CM, ++token, rpc->request, sizeof rpc->request, NULL, 0, reply);

	if (error) {
		if (explaining)
			explain_cm_refusal(rpc, error);
		return error;
	}
	memcpy(rpc->record, reply->body, reply->bytes < sizeof rpc->record ? reply->bytes : sizeof rpc->record);
	if (reply->bytes >= 2 * sizeof rpc->record) {
		rpc->more_count = reply->bytes / sizeof rpc->record - 1;
		rpc->more = malloc(rpc->more_count * sizeof rpc->record);
		if (!rpc->more) /* they would be lost */
			return ENOMEM;
		memcpy(rpc->more, reply->body + sizeof rpc->record, rpc->more_count * sizeof rpc->record);
	}
	rpc->fd = reply->fd_count ? reply->fds[0] : -1;
	for (int i = 1; i < reply->fd_count; i++)
		close(reply->fds[i]);
	return 0;
}

/* Send the names of the devices that this program may use, in as many requests as needed. */
static int name_devices(const char *names)
{
	uint32_t more = 0;
	int error;

	do {
		size_t bytes = strlen(names);
		struct cm_rpc rpc;

		if (bytes > sizeof rpc.request - RNIC_CM_REQUEST_PRIVATE_AT)
			bytes = sizeof rpc.request - RNIC_CM_REQUEST_PRIVATE_AT;
		while (names[bytes] && names[bytes] != ',' && bytes)
			bytes--;
		if (names[bytes] && !bytes)
			return ENAMETOOLONG;
		cm_rpc_init(&rpc, RNIC_CM_OPEN, NULL);
		cm_rpc_private_data(&rpc, names, bytes);
		cm_put32(&rpc, RNIC_CM_REQUEST_FLAGS_AT, more);
		error = call_locked(&rpc);
		more = RNIC_CM_MORE;
		names += bytes;
		while (*names == ',')
			names++;
	} while (!error && *names);
	return error;
}

/* Connect, unless this process has a connection. */
static int connect_locked(void)
{
	static atomic_flag said = ATOMIC_FLAG_INIT;
	const char *names = getenv("RNIC_DEVICE");
	int error;

	if (!own_fd_valid(&channel_socket)) {
		if (!atomic_flag_test_and_set(&said))
			log_error("this program has closed the connection manager's descriptor: close only your own");
		return EIO;
	}
	if (channel_socket.fd >= 0)
		return 0;
	if (!reply)
		reply = malloc(sizeof *reply);
	if (!reply)
		return ENOMEM;
	own_fd_take(&channel_socket, nic_connect(NULL, NULL), OWN_FD_PRIVATE);
	if (channel_socket.fd < 0)
		return ENODEV;
	error = name_devices(names ? names : "");
	if (error) {
		if (error == ENOSYS || error == EOPNOTSUPP)
			log_error(
				"the NIC process is an older one, without connection management: end it and start again");
		own_fd_close(&channel_socket);
	}
	return error;
}

int cm_rpc_call(struct cm_rpc *rpc)
{
	int error, before = nocancel_begin(); /* connecting has cancellation points */

	pthread_mutex_lock(&rpc_lock);
	error = connect_locked();
	if (!error)
		error = call_locked(rpc);
	pthread_mutex_unlock(&rpc_lock);
	nocancel_end(before);
	return error;
}

int cm_request(const struct cm_id *id, uint32_t op, struct cm_rpc *rpc)
{
	cm_rpc_init(rpc, op, id);
	return cm_rpc_call(rpc);
}

int cm_simple_request(const struct cm_id *id, uint32_t op)
{
	struct cm_rpc rpc;

	return cm_request(id, op, &rpc);
}

/* Set errno, and log the first refusal. All generated stubs call this. */
void refused(int error)
{
	static atomic_flag said = ATOMIC_FLAG_INIT;

	if (!atomic_flag_test_and_set(&said))
		log_error("rnic's librdmacm does not support this function: %s", strerror(error));
	errno = error;
}
