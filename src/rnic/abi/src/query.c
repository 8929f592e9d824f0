/* Queries of a device, its port, and its tables of GIDs and P_Keys. */
#include "query.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <stdio.h>
#include <string.h>

#include "cmd.h"
#include "compiler.h"
#include "context.h"
#include "dm.h"
#include "errors.h"
#include "gid.h"
#include "io/clock.h"
#include "rnic_reasons.h"

enum { MAX_MCAST_GROUPS = 1 << 12, MAX_AH = 1 << 16, ACK_DELAY = 15, CLOCK_KHZ = 1000000 };

EXPORT int ibv_query_device(struct ibv_context *verbs, struct ibv_device_attr *attr)
{
	struct rnic_context *context = context_of(verbs);
	uint8_t adapter[RNIC_ADAPTER_SIZE];
	uint64_t version;
	int error = nic_command(context, RNIC_CMD_QUERY_ADAPTER, 0, 0, NULL, 0, adapter, sizeof adapter, NULL);

	/* a forked child has the parent's last values: programs query an inherited device there */
	if (error && context->forked && context->adapter_read) {
		memcpy(adapter, context->adapter, sizeof adapter);
		error = 0;
	}
	if (error)
		return fail(error);
	pthread_mutex_lock(&context->lock);
	memcpy(context->adapter, adapter, sizeof adapter);
	context->adapter_read = true;
	pthread_mutex_unlock(&context->lock);
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
	attr->device_cap_flags = IBV_DEVICE_XRC | IBV_DEVICE_MEM_WINDOW | IBV_DEVICE_MEM_WINDOW_TYPE_2B |
				 IBV_DEVICE_CURR_QP_STATE_MOD | IBV_DEVICE_RC_RNR_NAK_GEN | IBV_DEVICE_SYS_IMAGE_GUID;
	attr->max_sge = attr->max_sge_rd = (int)dev_lim(context, RNIC_DEV_LIM_MAX_SGE);
	attr->max_cq = 1 << dev_lim(context, RNIC_DEV_LIM_LOG_MAX_CQS);
	attr->max_cqe = (1 << dev_lim(context, RNIC_DEV_LIM_LOG_MAX_CQ_SZ)) - 1;
	attr->max_mr = attr->max_mw = (int)dev_lim(context, RNIC_DEV_LIM_MAX_MPTS);
	attr->max_pd = 1 << dev_lim(context, RNIC_DEV_LIM_LOG_MAX_PDS);
	attr->max_qp_rd_atom = attr->max_qp_init_rd_atom = (int)dev_lim(context, RNIC_DEV_LIM_MAX_RD_ATOMIC);
	attr->max_res_rd_atom = attr->max_qp_rd_atom * attr->max_qp;
	attr->atomic_cap = IBV_ATOMIC_HCA; /* atomic among requests to this device, not with the program's own stores */
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

/* Operations on on-demand regions over reliable services. */
enum {
	ODP_RELIABLE = IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_WRITE | IBV_ODP_SUPPORT_READ | IBV_ODP_SUPPORT_ATOMIC |
	IBV_ODP_SUPPORT_SRQ_RECV | IBV_ODP_SUPPORT_FLUSH | IBV_ODP_SUPPORT_ATOMIC_WRITE
};

int rnic_query_device_ex(struct ibv_context *verbs, const struct ibv_query_device_ex_input *input,
			 struct ibv_device_attr_ex *attr, size_t bytes)
{
	struct ibv_device_attr_ex full = { .phys_port_cnt_ex = 1 };
	uint32_t comp_mask = 0;
	int error;

	if (input)
		memcpy(&comp_mask, input, sizeof comp_mask);
	if (comp_mask)
		return why_not_supported(EINVAL, "ibv_query_device_ex", "a bit of comp_mask", "give 0");
	if (bytes < sizeof attr->orig_attr)
		return EOPNOTSUPP;
	error = ibv_query_device(verbs, &full.orig_attr);
	if (error)
		return error;
	full.device_cap_flags_ex = full.orig_attr.device_cap_flags | IBV_DEVICE_FLUSH_GLOBAL | IBV_DEVICE_ATOMIC_WRITE;
	full.odp_caps.general_caps = IBV_ODP_SUPPORT | IBV_ODP_SUPPORT_IMPLICIT;
	full.odp_caps.rc = ODP_RELIABLE | IBV_ODP_SUPPORT_RECV;
	full.odp_caps.uc = IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_RECV | IBV_ODP_SUPPORT_WRITE |
			   IBV_ODP_SUPPORT_SRQ_RECV;
	full.odp_caps.ud = IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_RECV | IBV_ODP_SUPPORT_SRQ_RECV;
	full.xrc_odp_caps = ODP_RELIABLE;
	full.max_dm_size = DM_BYTES;
	full.hca_core_clock = CLOCK_KHZ;
	full.completion_timestamp_mask = UINT64_MAX;
	memset(attr, 0, bytes);
	memcpy(attr, &full, bytes < sizeof full ? bytes : sizeof full);
	return 0;
}

int rnic_query_rt_values(struct ibv_context *verbs UNUSED, struct ibv_values_ex *values)
{
	if (values->comp_mask & ~(uint32_t)IBV_VALUES_MASK_RAW_CLOCK)
		return EOPNOTSUPP;
	values->comp_mask = IBV_VALUES_MASK_RAW_CLOCK;
	values->raw_clock = (struct timespec){ .tv_nsec = (long)clock_now() };
	return 0;
}

/* Reload values that may change while a device is open: the port's state, the GID and P_Key tables. */
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

static bool has_port(const struct rnic_context *context, uint32_t port)
{
	return port >= 1 && port <= dev_lim(context, RNIC_DEV_LIM_NUM_PORTS);
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
		.active_width = (uint8_t)dev_lim(context, RNIC_DEV_LIM_ACTIVE_WIDTH),
		.active_speed = (uint8_t)dev_lim(context, RNIC_DEV_LIM_ACTIVE_SPEED),
		.phys_state = IBV_PORT_PHYS_LINK_UP,
		.link_layer = IBV_LINK_LAYER_ETHERNET,
	};

	if (context->dead || error)
		return EIO;
	if (full.state == RNIC_PORT_DOWN) /* in INIT and ARMED the link is up */
		full.phys_state = IBV_PORT_PHYS_DISABLED;
	if (!has_port(context, port))
		return why_port_number(EINVAL, "ibv_query_port", port);
	memset(attr, 0, bytes);
	memcpy(attr, &full, bytes < sizeof full ? bytes : sizeof full);
	return 0;
}

EXPORT int ibv_query_port(struct ibv_context *verbs, uint8_t port, struct ibv_port_attr *attr)
{
	int error = rnic_query_port(verbs, port, attr, COMPAT_PORT_ATTR_BYTES);

	return error ? fail(error) : 0;
}

/* Return 0 if a port has a GID of this index, else EINVAL, with the reason. */
static int check_gid(const struct rnic_context *context, const char *verb, uint32_t port, uint32_t index)
{
	uint32_t count = dev_lim(context, RNIC_DEV_LIM_GID_COUNT);

	if (!has_port(context, port))
		return why_port_number(EINVAL, verb, port);
	return index < count ? 0 : why_gid_index(EINVAL, verb, index, count - 1);
}

EXPORT int ibv_query_gid(struct ibv_context *verbs, uint8_t port, int index, union ibv_gid *gid)
{
	struct rnic_context *context = context_of(verbs);
	int error;

	refresh_limits(context);
	error = check_gid(context, "ibv_query_gid", port, (uint32_t)index); /* a negative index is a large one */
	if (error) {
		errno = error;
		return -1;
	}
	memcpy(gid->raw, gid_at(context, (uint32_t)index), 16);
	return 0;
}

EXPORT int ibv_query_gid_type(struct ibv_context *verbs, uint8_t port, unsigned int index, int *type)
{
	int error = check_gid(context_of(verbs), "ibv_query_gid_type", port, index);

	if (error) {
		errno = error;
		return -1;
	}
	*type = gid_is_v1(context_of(verbs), index) ? IBV_GID_TYPE_SYSFS_IB_ROCE_V1 : IBV_GID_TYPE_SYSFS_ROCE_V2;
	return 0;
}

/* Return the index of the network interface that has a GID's address, 0 if none has. */
static uint32_t gid_ifindex(const uint8_t *gid)
{
	bool ipv4 = gid_is_v4mapped(gid);
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
			if (memcmp(&ip.sin_addr, gid + 12, 4) == 0 ||
			    (each->ifa_flags & IFF_LOOPBACK && gid[12] == 127))
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

/* Return the index of the GID that packets are sent from, for librdmacm. */
EXPORT uint8_t rnic_own_gid_index(struct ibv_context *verbs)
{
	return (uint8_t)own_gid_index(context_of(verbs));
}

static void fill_gid_entry(const struct rnic_context *context, uint32_t index, struct ibv_gid_entry *entry)
{
	memcpy(entry->gid.raw, gid_at(context, index), 16);
	entry->gid_index = index;
	entry->port_num = 1;
	entry->gid_type = gid_is_v1(context, index) ? IBV_GID_TYPE_ROCE_V1 : IBV_GID_TYPE_ROCE_V2;
	/* The link-local GID matches no address of the machine: it is on the same interface. */
	entry->ndev_ifindex = gid_ifindex(gid_is_link_local(entry->gid.raw) ? own_gid(context) : entry->gid.raw);
}

EXPORT int _ibv_query_gid_ex(struct ibv_context *verbs, uint32_t port, uint32_t index, struct ibv_gid_entry *entry,
			     uint32_t flags, size_t bytes)
{
	static const char verb[] = "ibv_query_gid_ex";
	struct ibv_gid_entry full;
	int error;

	refresh_limits(context_of(verbs));
	error = flags ? why_not_supported(EOPNOTSUPP, verb, "a bit of flags", "give 0") :
			check_gid(context_of(verbs), verb, port, index);
	if (error)
		return fail(error);
	fill_gid_entry(context_of(verbs), index, &full);
	memset(entry, 0, bytes);
	memcpy(entry, &full, bytes < sizeof full ? bytes : sizeof full);
	return 0;
}

EXPORT ssize_t _ibv_query_gid_table(struct ibv_context *verbs, struct ibv_gid_entry *entries, size_t max_entries,
				    uint32_t flags, size_t bytes)
{
	struct rnic_context *context = context_of(verbs);
	size_t count;

	refresh_limits(context);
	count = dev_lim(context, RNIC_DEV_LIM_GID_COUNT);
	if (flags)
		return -EOPNOTSUPP;
	if (max_entries < count || bytes < sizeof *entries)
		return -EINVAL;
	for (size_t i = 0; i < count; i++) {
		struct ibv_gid_entry full;

		fill_gid_entry(context, (uint32_t)i, &full);
		memset((char *)entries + i * bytes, 0, bytes);
		memcpy((char *)entries + i * bytes, &full, sizeof full);
	}
	return (ssize_t)count;
}

EXPORT int ibv_query_pkey(struct ibv_context *verbs, uint8_t port, int index, be16_t *pkey)
{
	struct rnic_context *context = context_of(verbs);
	uint32_t count;

	refresh_limits(context);
	count = dev_lim(context, RNIC_DEV_LIM_PKEY_COUNT);
	if (!has_port(context, port)) {
		errno = why_port_number(EINVAL, "ibv_query_pkey", port);
		return -1;
	}
	if (index < 0 || (uint32_t)index >= count) {
		errno = why_pkey_index(EINVAL, "ibv_query_pkey", (uint32_t)index, count - 1);
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
