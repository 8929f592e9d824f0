/* Devices and contexts: list, open, close, queries, and what a fork does to them. */
#include "attach.h"
#include "rnic.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <stdio.h>
#include <unistd.h>

enum { ATTRIBUTE_BYTES = 64, MAX_MCAST_GROUPS = 1 << 12, MAX_AH = 1 << 16, ACK_DELAY = 15, YIELD_AFTER = 100 };

static struct rnic_context *contexts;
static pthread_mutex_t contexts_lock = PTHREAD_MUTEX_INITIALIZER;

static uint32_t dev_lim(const struct rnic_context *context, unsigned at, unsigned unit, unsigned lsb, unsigned width)
{
	return (uint32_t)rnic_get_be(context->limits, at, unit, lsb, width);
}

/* ---- fork: the child keeps the memory, and nothing of it works there; it opens devices anew */

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
		context->dead = true;
		/* An inherited socket would keep the parent's context open after its death. */
		if (context->socket >= 0)
			close(context->socket);
		context->socket = -1;
		copier_forget(context);
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
	return 0; /* registered memory is reached by its address: copy-on-write does no harm */
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
static bool wanted(const char *name)
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
	if (found < 0) { /* as where the kernel has no RDMA at all */
		if (count)
			*count = 0;
		return fail_null(ENOSYS);
	}
	for (int i = 0, kept = 0; i < found; i++) {
		struct rnic_device *device = list[i];

		list[i] = NULL;
		if (wanted(device->verbs.name))
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
	.open_xrcd = rnic_open_xrcd,
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

static int make_tables(struct rnic_context *context)
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
		RNIC_EVENT_COMM_EST, RNIC_EVENT_SQ_DRAINED, RNIC_EVENT_CQ_ERROR, RNIC_EVENT_WQ_CATAS_ERROR,
		RNIC_EVENT_LOCAL_CATAS_ERROR, RNIC_EVENT_PORT_CHANGE, RNIC_EVENT_WQ_INVAL_REQ_ERROR, RNIC_EVENT_WQ_ACCESS_ERROR,
		RNIC_EVENT_SRQ_CATAS_ERROR, RNIC_EVENT_SRQ_LAST_WQE, RNIC_EVENT_SRQ_LIMIT,
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
	rings_close(context);
	free(context->qps);
	free(context->cqs);
	free(context->srqs);
	pthread_mutex_destroy(&context->lock);
	pthread_mutex_destroy(&context->command_lock);
	free(context);
}

/* RNIC_YIELD_AFTER says after how many empty polls in a row to yield, in all threads; a number that no program reaches: never. */
static void set_yields(struct rnic_context *context)
{
	const char *said = getenv("RNIC_YIELD_AFTER");
	unsigned long number = YIELD_AFTER;

	context->opener = pthread_self();
	context->yields_always = said && *said;
	if (context->yields_always)
		number = strtoul(said, NULL, 10);
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
	context->socket = context->wake_fd = -1;
	set_yields(context);
	context->async.fd = -1;
	pthread_mutex_init(&context->lock, NULL);
	pthread_mutex_init(&context->command_lock, NULL);
	pthread_mutex_init(&context->verbs.context.mutex, NULL);
	rings_open(context);
	error = nic_open(context, verbs->name);
	if (!error)
		error = nic_command(context, RNIC_CMD_QUERY_DEV_LIM, 0, 0, NULL, 0, context->limits,
				    sizeof context->limits, NULL);
	if (!error)
		error = make_tables(context);
	if (!error)
		error = event_queue_open(context, &context->async);
	if (!error)
		error = map_async_events(context);
	if (error) {
		free_context(context);
		return fail_null(error);
	}
	context->verbs.context.async_fd = context->async.fd;
	/* Programs that pass a context on duplicate this one; there is nothing behind it to be imported. */
	context->verbs.context.cmd_fd = open("/dev/null", O_RDWR | O_CLOEXEC);
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
	if (verbs->cmd_fd >= 0)
		close(verbs->cmd_fd);
	put_device((struct rnic_device *)verbs->device);
	free_context(context);
	return 0;
}

/* ---- queries */

EXPORT int ibv_query_device(struct ibv_context *verbs, struct ibv_device_attr *attr)
{
	struct rnic_context *context = context_of(verbs);
	uint8_t adapter[RNIC_ADAPTER_SIZE];
	uint64_t version;
	int error = nic_command(context, RNIC_CMD_QUERY_ADAPTER, 0, 0, NULL, 0, adapter, sizeof adapter, NULL);

	if (error)
		return fail(error);
	memset(attr, 0, sizeof *attr);
	version = rnic_get_be(adapter, RNIC_ADAPTER_FW_VER);
	snprintf(attr->fw_ver, sizeof attr->fw_ver, "%u.%u.%u", (unsigned)(version >> 32 & 0xFFFF),
		 (unsigned)(version >> 16 & 0xFFFF), (unsigned)(version & 0xFFFF));
	memcpy(&attr->node_guid, context->limits + RNIC_DEV_LIM_GUID_AT, 8);
	attr->sys_image_guid = attr->node_guid;
	attr->max_mr_size = 1ull << 63;
	attr->page_size_cap = ~0ull << dev_lim(context, RNIC_DEV_LIM_LOG_PAGE_SZ);
	attr->vendor_id = (uint32_t)rnic_get_be(adapter, RNIC_ADAPTER_VENDOR_ID);
	attr->vendor_part_id = (uint32_t)rnic_get_be(adapter, RNIC_ADAPTER_DEVICE_ID);
	attr->hw_ver = (uint32_t)rnic_get_be(adapter, RNIC_ADAPTER_REVISION);
	attr->max_qp = 1 << dev_lim(context, RNIC_DEV_LIM_LOG_MAX_QPS);
	attr->max_qp_wr = (1 << dev_lim(context, RNIC_DEV_LIM_LOG_MAX_QP_SZ)) - 1;
	attr->device_cap_flags = IBV_DEVICE_MEM_WINDOW | IBV_DEVICE_MEM_WINDOW_TYPE_2B | IBV_DEVICE_CURR_QP_STATE_MOD |
				 IBV_DEVICE_RC_RNR_NAK_GEN | IBV_DEVICE_SYS_IMAGE_GUID;
	attr->max_sge = attr->max_sge_rd = (int)dev_lim(context, RNIC_DEV_LIM_MAX_SGE);
	attr->max_cq = 1 << dev_lim(context, RNIC_DEV_LIM_LOG_MAX_CQS);
	attr->max_cqe = (1 << dev_lim(context, RNIC_DEV_LIM_LOG_MAX_CQ_SZ)) - 1;
	attr->max_mr = attr->max_mw = (int)dev_lim(context, RNIC_DEV_LIM_MAX_MPTS);
	attr->max_pd = 1 << dev_lim(context, RNIC_DEV_LIM_LOG_MAX_PDS);
	attr->max_qp_rd_atom = attr->max_qp_init_rd_atom = (int)dev_lim(context, RNIC_DEV_LIM_MAX_RD_ATOMIC);
	attr->max_res_rd_atom = attr->max_qp_rd_atom * attr->max_qp;
	attr->atomic_cap = IBV_ATOMIC_HCA; /* atomic towards others of this device, not towards the program's own stores */
	attr->max_mcast_grp = MAX_MCAST_GROUPS;
	attr->max_mcast_qp_attach = (int)dev_lim(context, RNIC_DEV_LIM_MAX_GROUP_QPS);
	attr->max_total_mcast_qp_attach = attr->max_mcast_grp * attr->max_mcast_qp_attach;
	attr->max_ah = MAX_AH;
	attr->max_srq = 1 << dev_lim(context, RNIC_DEV_LIM_LOG_MAX_SRQS);
	attr->max_srq_wr = (1 << dev_lim(context, RNIC_DEV_LIM_LOG_MAX_SRQ_SZ)) - 1;
	attr->max_srq_sge = attr->max_sge;
	attr->max_pkeys = (uint16_t)dev_lim(context, RNIC_DEV_LIM_PKEY_COUNT);
	attr->local_ca_ack_delay = ACK_DELAY;
	attr->phys_port_cnt = (uint8_t)dev_lim(context, RNIC_DEV_LIM_NUM_PORTS);
	return 0;
}

enum { CLOCK_KHZ = 1000000 };

int rnic_query_device_ex(struct ibv_context *verbs, const struct ibv_query_device_ex_input *input,
			 struct ibv_device_attr_ex *attr, size_t bytes)
{
	struct ibv_device_attr_ex full = { .phys_port_cnt_ex = 1 };
	uint32_t comp_mask = 0;
	int error;

	if (input)
		memcpy(&comp_mask, input, sizeof comp_mask);
	if (comp_mask)
		return EINVAL;
	if (bytes < sizeof attr->orig_attr)
		return EOPNOTSUPP;
	error = ibv_query_device(verbs, &full.orig_attr);
	if (error)
		return error;
	full.device_cap_flags_ex = full.orig_attr.device_cap_flags;
	full.hca_core_clock = CLOCK_KHZ;
	full.completion_timestamp_mask = UINT64_MAX;
	memset(attr, 0, bytes);
	memcpy(attr, &full, bytes < sizeof full ? bytes : sizeof full);
	return 0;
}

/* The NIC process's clock, which is the system's: counted in nanoseconds, as adapters count the ticks of theirs. */
uint64_t device_clock(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

int rnic_query_rt_values(struct ibv_context *verbs UNUSED, struct ibv_values_ex *values)
{
	if (values->comp_mask & ~(uint32_t)IBV_VALUES_MASK_RAW_CLOCK)
		return EOPNOTSUPP;
	values->comp_mask = IBV_VALUES_MASK_RAW_CLOCK;
	values->raw_clock = (struct timespec){ .tv_nsec = (long)device_clock() };
	return 0;
}

/* What may change while a device is open: the port's state, the GID and P_Key tables. */
static int refresh_limits(struct rnic_context *context)
{
	uint8_t now[sizeof context->limits];
	int error = nic_command(context, RNIC_CMD_QUERY_DEV_LIM, 0, 0, NULL, 0, now, sizeof now, NULL);

	if (!error) {
		pthread_mutex_lock(&context->lock);
		memcpy(context->limits, now, sizeof now);
		pthread_mutex_unlock(&context->lock);
	}
	return error;
}

int rnic_query_port(struct ibv_context *verbs, uint8_t port, struct ibv_port_attr *attr, size_t bytes)
{
	struct rnic_context *context = context_of(verbs);
	int error = refresh_limits(context);
	struct ibv_port_attr full = {
		.state = (int)dev_lim(context, RNIC_DEV_LIM_PORT_STATE),
		.max_mtu = (int)dev_lim(context, RNIC_DEV_LIM_MAX_MTU),
		.active_mtu = (int)dev_lim(context, RNIC_DEV_LIM_ACTIVE_MTU),
		.gid_tbl_len = (int)dev_lim(context, RNIC_DEV_LIM_GID_COUNT),
		.port_cap_flags = IBV_PORT_CM_SUP | IBV_PORT_IP_BASED_GIDS,
		.max_msg_sz = 1u << dev_lim(context, RNIC_DEV_LIM_LOG_MAX_MSG),
		.pkey_tbl_len = (uint16_t)dev_lim(context, RNIC_DEV_LIM_PKEY_COUNT),
		.max_vl_num = 1,
		.active_width = 1, /* 1X */
		.active_speed = 4, /* 10 Gb/s: a figure has to be given */
		.phys_state = IBV_PORT_PHYS_LINK_UP,
		.link_layer = IBV_LINK_LAYER_ETHERNET,
	};

	if (context->dead || error)
		return EIO;
	if (full.state != IBV_PORT_ACTIVE)
		full.phys_state = IBV_PORT_PHYS_DISABLED;
	if (port < 1 || port > dev_lim(context, RNIC_DEV_LIM_NUM_PORTS))
		return EINVAL;
	memset(attr, 0, bytes);
	memcpy(attr, &full, bytes < sizeof full ? bytes : sizeof full);
	return 0;
}

EXPORT int ibv_query_port(struct ibv_context *verbs, uint8_t port, struct ibv_port_attr *attr)
{
	int error = rnic_query_port(verbs, port, attr, COMPAT_PORT_ATTR_BYTES);

	return error ? fail(error) : 0;
}

static bool has_gid(const struct rnic_context *context, uint32_t port, uint32_t index)
{
	return port >= 1 && port <= dev_lim(context, RNIC_DEV_LIM_NUM_PORTS) &&
	       index < dev_lim(context, RNIC_DEV_LIM_GID_COUNT);
}

static const uint8_t *gid_at(const struct rnic_context *context, uint32_t index)
{
	return context->limits + RNIC_DEV_LIM_GID0_AT + 16 * index;
}

EXPORT int ibv_query_gid(struct ibv_context *verbs, uint8_t port, int index, union ibv_gid *gid)
{
	struct rnic_context *context = context_of(verbs);

	refresh_limits(context);
	if (index < 0 || !has_gid(context, port, (uint32_t)index)) {
		errno = EINVAL;
		return -1;
	}
	memcpy(gid->raw, gid_at(context, (uint32_t)index), 16);
	return 0;
}

EXPORT int ibv_query_gid_type(struct ibv_context *verbs, uint8_t port, unsigned int index, int *type)
{
	if (!has_gid(context_of(verbs), port, index)) {
		errno = EINVAL;
		return -1;
	}
	*type = IBV_GID_TYPE_SYSFS_ROCE_V2;
	return 0;
}

/* The interface that has a GID's address; 0 where none says so. */
static uint32_t interface_of(const uint8_t *gid)
{
	bool ipv4 = is_ipv4(gid);
	struct ifaddrs *list;
	uint32_t index = 0;

	if (getifaddrs(&list) < 0)
		return 0;
	for (struct ifaddrs *each = list; each && !index; each = each->ifa_next) {
		struct sockaddr_in ip;
		struct sockaddr_in6 ip6;

		if (!each->ifa_addr)
			continue;
		if (ipv4 && each->ifa_addr->sa_family == AF_INET) {
			memcpy(&ip, each->ifa_addr, sizeof ip);
			if (memcmp(&ip.sin_addr, gid + 12, 4) == 0 || (each->ifa_flags & IFF_LOOPBACK && gid[12] == 127))
				index = if_nametoindex(each->ifa_name);
		} else if (!ipv4 && each->ifa_addr->sa_family == AF_INET6) {
			memcpy(&ip6, each->ifa_addr, sizeof ip6);
			if (memcmp(&ip6.sin6_addr, gid, 16) == 0)
				index = if_nametoindex(each->ifa_name);
		}
	}
	freeifaddrs(list);
	return index;
}

static void fill_gid(const struct rnic_context *context, uint32_t index, struct ibv_gid_entry *entry)
{
	memcpy(entry->gid.raw, gid_at(context, index), 16);
	entry->gid_index = index;
	entry->port_num = 1;
	entry->gid_type = IBV_GID_TYPE_ROCE_V2;
	entry->ndev_ifindex = interface_of(entry->gid.raw);
}

EXPORT int _ibv_query_gid_ex(struct ibv_context *verbs, uint32_t port, uint32_t index, struct ibv_gid_entry *entry,
			     uint32_t flags, size_t bytes)
{
	struct ibv_gid_entry full;

	refresh_limits(context_of(verbs));
	if (flags || !has_gid(context_of(verbs), port, index))
		return fail(flags ? EOPNOTSUPP : EINVAL);
	fill_gid(context_of(verbs), index, &full);
	memset(entry, 0, bytes);
	memcpy(entry, &full, bytes < sizeof full ? bytes : sizeof full);
	return 0;
}

EXPORT ssize_t _ibv_query_gid_table(struct ibv_context *verbs, struct ibv_gid_entry *entries, size_t most, uint32_t flags,
				    size_t bytes)
{
	struct rnic_context *context = context_of(verbs);
	size_t count;

	refresh_limits(context);
	count = dev_lim(context, RNIC_DEV_LIM_GID_COUNT);
	if (flags)
		return -EOPNOTSUPP;
	if (most < count || bytes < sizeof *entries)
		return -EINVAL;
	for (size_t i = 0; i < count; i++) {
		struct ibv_gid_entry full;

		fill_gid(context, (uint32_t)i, &full);
		memset((char *)entries + i * bytes, 0, bytes);
		memcpy((char *)entries + i * bytes, &full, sizeof full);
	}
	return (ssize_t)count;
}

EXPORT int ibv_query_pkey(struct ibv_context *verbs, uint8_t port, int index, be16_t *pkey)
{
	struct rnic_context *context = context_of(verbs);

	refresh_limits(context);
	if (port < 1 || port > dev_lim(context, RNIC_DEV_LIM_NUM_PORTS) || index < 0 ||
	    (uint32_t)index >= dev_lim(context, RNIC_DEV_LIM_PKEY_COUNT)) {
		errno = EINVAL;
		return -1;
	}
	memcpy(pkey, context->limits + RNIC_DEV_LIM_PKEY0_AT + 2 * index, 2);
	return 0;
}

EXPORT int ibv_get_pkey_index(struct ibv_context *verbs, uint8_t port, be16_t pkey)
{
	for (int index = 0;; index++) {
		be16_t found;

		if (ibv_query_pkey(verbs, port, index, &found))
			return -1;
		if (found == pkey)
			return index;
	}
}
