/* librdmacm: the connection to the connection manager, requests over it, and the devices that it leads to. */
#define _GNU_SOURCE
#include "rdmacm.h"

#include <stdio.h>
#include <unistd.h>

#include "attach.h"
#include "io/nocancel.h"

static pthread_mutex_t wire_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t devices_lock = PTHREAD_MUTEX_INITIALIZER;
static int channel_socket = -1;
static uint32_t token;
static struct rpc_reply *reply;
static struct cm_device *devices;

void refused(int error)
{
	static atomic_flag said = ATOMIC_FLAG_INIT;

	if (!atomic_flag_test_and_set(&said))
		complain("what the README names as absent is not supported by this librdmacm: %s",
			 strerror(error));
	errno = error;
}

/* ---- fork: nothing of the parent's works in the child, which begins anew */

static void before_fork(void)
{
	pthread_mutex_lock(&devices_lock);
	pthread_mutex_lock(&wire_lock);
}

static void parent_after_fork(void)
{
	pthread_mutex_unlock(&wire_lock);
	pthread_mutex_unlock(&devices_lock);
}

static void child_after_fork(void)
{
	if (channel_socket >= 0)
		close(channel_socket); /* it would keep the parent's connections after its death */
	channel_socket = -1;
	devices = NULL;
	pthread_mutex_init(&wire_lock, NULL);
	pthread_mutex_init(&devices_lock, NULL);
}

__attribute__((constructor)) static void watch_forks(void)
{
	pthread_atfork(before_fork, parent_after_fork, child_after_fork);
}

/* ---- requests */

void cm_begin(struct cm_said *said, uint32_t op, const struct cm_id *id)
{
	memset(said, 0, sizeof *said);
	said->fd = -1; /* and no records behind the first */
	put32(said, RNIC_CM_REQUEST_OP_AT, op);
	put32(said, RNIC_CM_REQUEST_ID_AT, id ? id->number : 0);
}

void cm_private(struct cm_said *said, const void *data, size_t bytes)
{
	if (!data)
		bytes = 0;
	put32(said, RNIC_CM_REQUEST_PRIVATE_BYTES_AT, (uint32_t)bytes);
	if (bytes)
		memcpy(said->request + RNIC_CM_REQUEST_PRIVATE_AT, data, bytes);
}

static int ask_locked(struct cm_said *said)
{
	int error = rpc_call(channel_socket, RNIC_MSG_CM, ++token, said->request, sizeof said->request, NULL, 0, reply);

	if (error)
		return error;
	memcpy(said->record, reply->body, reply->bytes < sizeof said->record ? reply->bytes : sizeof said->record);
	if (reply->bytes >= 2 * sizeof said->record) {
		said->more_count = reply->bytes / sizeof said->record - 1;
		said->more = malloc(said->more_count * sizeof said->record);
		if (!said->more) /* they would be lost */
			return ENOMEM;
		memcpy(said->more, reply->body + sizeof said->record, said->more_count * sizeof said->record);
	}
	said->fd = reply->fd_count ? reply->fds[0] : -1;
	for (int i = 1; i < reply->fd_count; i++)
		close(reply->fds[i]);
	return 0;
}

/* Says which devices this program may use: as many names at a time as a request holds. */
static int say_devices(const char *names)
{
	uint32_t more = 0;
	int error;

	do {
		size_t bytes = strlen(names);
		struct cm_said said;

		if (bytes > sizeof said.request - RNIC_CM_REQUEST_PRIVATE_AT)
			bytes = sizeof said.request - RNIC_CM_REQUEST_PRIVATE_AT;
		while (names[bytes] && names[bytes] != ',' && bytes)
			bytes--;
		if (names[bytes] && !bytes)
			return ENAMETOOLONG;
		cm_begin(&said, RNIC_CM_OPEN, NULL);
		cm_private(&said, names, bytes);
		put32(&said, RNIC_CM_REQUEST_FLAGS_AT, more);
		error = ask_locked(&said);
		more = RNIC_CM_MORE;
		names += bytes;
		while (*names == ',')
			names++;
	} while (!error && *names);
	return error;
}

/* Connects where this process has no connection yet. */
static int connect_locked(void)
{
	const char *names = getenv("RNIC_DEVICE");
	int error;

	if (channel_socket >= 0)
		return 0;
	if (!reply)
		reply = malloc(sizeof *reply);
	if (!reply)
		return ENOMEM;
	channel_socket = nic_connect(NULL, NULL);
	if (channel_socket < 0)
		return ENODEV;
	error = say_devices(names ? names : "");
	if (error) {
		if (error == ENOSYS || error == EOPNOTSUPP)
			complain("the NIC process is an older one, without connection management: end it and start again");
		close(channel_socket);
		channel_socket = -1;
	}
	return error;
}

int cm_ask(struct cm_said *said)
{
	int error, before = nocancel_begin(); /* connecting has places where a thread may be cancelled */

	pthread_mutex_lock(&wire_lock);
	error = connect_locked();
	if (!error)
		error = ask_locked(said);
	pthread_mutex_unlock(&wire_lock);
	nocancel_end(before);
	return error;
}

int cm_request(const struct cm_id *id, uint32_t op, struct cm_said *said)
{
	cm_begin(said, op, id);
	return cm_ask(said);
}

int cm_simple(const struct cm_id *id, uint32_t op)
{
	struct cm_said said;

	return cm_request(id, op, &said);
}

/* ---- devices: opened once, for as long as the process lives */

static struct cm_device *open_device(struct ibv_device *found)
{
	struct cm_device *device = calloc(1, sizeof *device);
	struct ibv_device_attr attr = { 0 };

	if (!device)
		return NULL;
	device->verbs = ibv_open_device(found);
	if (!device->verbs || ibv_query_gid(device->verbs, 1, 0, &device->gid) ||
	    ibv_query_device(device->verbs, &attr)) {
		if (device->verbs)
			ibv_close_device(device->verbs);
		free(device);
		return NULL;
	}
	device->most_resources = attr.max_qp_rd_atom > 0xFF ? 0xFF : (uint8_t)attr.max_qp_rd_atom;
	return device;
}

/* Opens the devices that are not open yet, behind those that are. */
static void look_for_devices(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);

	for (size_t i = 0; list && list[i]; i++) {
		struct cm_device **at = &devices;

		while (*at && strcmp((*at)->verbs->device->name, list[i]->name) != 0)
			at = &(*at)->next;
		if (!*at)
			*at = open_device(list[i]);
	}
	if (list)
		ibv_free_device_list(list);
}

struct cm_device *cm_devices(void)
{
	pthread_mutex_lock(&devices_lock);
	if (!devices)
		look_for_devices();
	pthread_mutex_unlock(&devices_lock);
	return devices;
}

static struct cm_device *device_at(const union ibv_gid *gid)
{
	for (struct cm_device *device = devices; device; device = device->next)
		if (memcmp(&device->gid, gid, sizeof *gid) == 0)
			return device;
	return NULL;
}

/* ``anew``: one that came after the others is looked for. */
struct cm_device *cm_device_at(const union ibv_gid *gid, bool anew)
{
	struct cm_device *device;

	pthread_mutex_lock(&devices_lock);
	device = device_at(gid);
	if (!device && (anew || !devices)) {
		look_for_devices();
		device = device_at(gid);
	}
	pthread_mutex_unlock(&devices_lock);
	return device;
}

/* The protection domain of IDs whose program brings none. */
struct ibv_pd *cm_device_pd(struct cm_device *device)
{
	pthread_mutex_lock(&devices_lock);
	if (!device->pd)
		device->pd = ibv_alloc_pd(device->verbs);
	pthread_mutex_unlock(&devices_lock);
	return device->pd;
}

EXPORT struct ibv_context **rdma_get_devices(int *count)
{
	struct ibv_context **list;
	size_t number = 0;

	for (struct cm_device *device = cm_devices(); device; device = device->next)
		number++;
	list = number ? calloc(number + 1, sizeof *list) : NULL;
	if (count)
		*count = list ? (int)number : 0;
	if (!list)
		return fail_null(number ? ENOMEM : ENODEV);
	number = 0;
	for (struct cm_device *device = cm_devices(); device; device = device->next)
		list[number++] = device->verbs;
	return list;
}

EXPORT void rdma_free_devices(struct ibv_context **list)
{
	free(list);
}
