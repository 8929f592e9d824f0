/* The devices of librdmacm: opened once, for as long as the process lives. */
#include "rdmacm_devices.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "compiler.h"
#include "errors.h"
#include "rdmacm_abi.h"

static pthread_mutex_t devices_lock = PTHREAD_MUTEX_INITIALIZER;
static struct cm_device *devices;

/* ---- fork: the child starts over */

static void before_fork(void)
{
	pthread_mutex_lock(&devices_lock);
}

static void parent_after_fork(void)
{
	pthread_mutex_unlock(&devices_lock);
}

static void child_after_fork(void)
{
	devices = NULL;
	pthread_mutex_init(&devices_lock, NULL);
}

__attribute__((constructor)) static void watch_forks(void)
{
	pthread_atfork(before_fork, parent_after_fork, child_after_fork);
}

/* ---- devices */

static struct cm_device *open_device(struct ibv_device *found)
{
	struct cm_device *device = calloc(1, sizeof *device);
	struct ibv_device_attr attr = { 0 };

	if (!device)
		return NULL;
	device->verbs = ibv_open_device(found);
	if (!device->verbs || ibv_query_gid(device->verbs, 1, rnic_own_gid_index(device->verbs), &device->gid) ||
	    ibv_query_device(device->verbs, &attr)) {
		if (device->verbs)
			ibv_close_device(device->verbs);
		free(device);
		return NULL;
	}
	device->max_rd_atomic = attr.max_qp_rd_atom > 0xFF ? 0xFF : (uint8_t)attr.max_qp_rd_atom;
	return device;
}

/* Open the devices that are not open yet and append them. */
static void scan_devices(void)
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
		scan_devices();
	pthread_mutex_unlock(&devices_lock);
	return devices;
}

static struct cm_device *find_device(const union ibv_gid *gid)
{
	for (struct cm_device *device = devices; device; device = device->next)
		if (memcmp(&device->gid, gid, sizeof *gid) == 0)
			return device;
	return NULL;
}

struct cm_device *cm_device_by_gid(const union ibv_gid *gid, bool anew)
{
	struct cm_device *device;

	pthread_mutex_lock(&devices_lock);
	device = find_device(gid);
	if (!device && (anew || !devices)) {
		scan_devices();
		device = find_device(gid);
	}
	pthread_mutex_unlock(&devices_lock);
	return device;
}

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
