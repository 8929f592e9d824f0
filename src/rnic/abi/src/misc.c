/* Names, rates, and calls that a device without a kernel answers simply. */
#include "rnic.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <unistd.h>

EXPORT const char *ibv_node_type_str(int type)
{
	static const char *const names[] = { "unknown", "InfiniBand channel adapter", "InfiniBand switch",
					     "InfiniBand router", "iWARP NIC", "usNIC", "usNIC UDP", "unspecified" };

	return type >= 1 && (size_t)type < COUNT(names) ? names[type] : names[0];
}

EXPORT const char *ibv_port_state_str(int state)
{
	static const char *const names[] = { "no state change (NOP)", "down", "init", "armed", "active",
					     "active defer" };

	return state >= 0 && (size_t)state < COUNT(names) ? names[state] : "unknown";
}

EXPORT const char *ibv_event_type_str(int type)
{
	static const char *const names[] = {
		"CQ error", "local work queue catastrophic error", "invalid request local work queue error",
		"local access violation work queue error", "communication established", "send queue drained",
		"path migrated", "path migration request error", "local catastrophic error", "port active",
		"port error", "LID change", "P_Key change", "SM change", "SRQ catastrophic error", "SRQ limit reached",
		"last WQE reached", "client reregistration", "GID table change", "WQ fatal",
	};

	return type >= 0 && (size_t)type < COUNT(names) ? names[type] : "unknown";
}

EXPORT const char *ibv_wc_status_str(int status)
{
	static const char *const names[] = {
		"success", "local length error", "local QP operation error", "local EE context operation error",
		"local protection error", "Work Request Flushed Error", "memory management operation error",
		"bad response error", "local access error", "remote invalid request error", "remote access error",
		"remote operation error", "transport retry counter exceeded", "RNR retry counter exceeded",
		"local RDD violation error", "remote invalid RD request", "aborted error", "invalid EE context number",
		"invalid EE context state", "fatal error", "response timeout error", "general error", "TM error",
		"TM software rendezvous",
	};

	return status >= 0 && (size_t)status < COUNT(names) ? names[status] : "unknown";
}

/* ---- static rates (IBA 14.2.5.6): code, multiple of 2.5 Gb/s, Mb/s */

static const struct {
	int code, multiple, mbps;
} rates[] = {
	{ 2, 1, 2500 },	    { 3, 4, 10000 },	{ 4, 12, 30000 },   { 5, 2, 5000 },	 { 6, 8, 20000 },   { 7, 16, 40000 },
	{ 8, 24, 60000 },   { 9, 32, 80000 },	{ 10, 48, 120000 }, { 11, -1, 14062 },	 { 12, -1, 56250 }, { 13, -1, 112500 },
	{ 14, -1, 168750 }, { 15, -1, 25781 },	{ 16, -1, 103125 }, { 17, -1, 206250 },	 { 18, -1, 309375 },
	{ 19, 11, 28125 },  { 20, 20, 50000 },	{ 21, 160, 400000 }, { 22, 240, 600000 },
};

EXPORT int ibv_rate_to_mult(int rate)
{
	for (size_t i = 0; i < COUNT(rates); i++)
		if (rates[i].code == rate)
			return rates[i].multiple;
	return -1;
}

EXPORT int mult_to_ibv_rate(int multiple)
{
	for (size_t i = 0; i < COUNT(rates); i++)
		if (multiple > 0 && rates[i].multiple == multiple)
			return rates[i].code;
	return 0;
}

EXPORT int ibv_rate_to_mbps(int rate)
{
	for (size_t i = 0; i < COUNT(rates); i++)
		if (rates[i].code == rate)
			return rates[i].mbps;
	return -1;
}

EXPORT int mbps_to_ibv_rate(int mbps)
{
	for (size_t i = 0; i < COUNT(rates); i++)
		if (rates[i].mbps == mbps)
			return rates[i].code;
	return 0;
}

/* ---- sysfs: what is under there depends on whether the program is shown device paths */

EXPORT const char *ibv_get_sysfs_path(void)
{
	return "/sys";
}

/* The file's text without its newline. Returns its length, or -1 with errno. */
static int read_line(const char *path, char *buffer, size_t size)
{
	int file = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t got;

	if (file < 0)
		return -1;
	got = read(file, buffer, size);
	close(file);
	if (got <= 0)
		return -1;
	if (buffer[got - 1] == '\n')
		buffer[--got] = 0;
	else if ((size_t)got < size)
		buffer[got] = 0;
	else
		return fail(E2BIG), -1;
	return (int)got;
}

EXPORT int ibv_read_sysfs_file(const char *directory, const char *file, char *buffer, size_t size)
{
	char path[PATH_MAX];

	if (snprintf(path, sizeof path, "%s/%s", directory, file) >= (int)sizeof path)
		return fail(ENAMETOOLONG), -1;
	return read_line(path, buffer, size);
}

EXPORT int ibv_read_ibdev_sysfs_file(char *buffer UNUSED, size_t size UNUSED, void *sysfs UNUSED,
				     const char *format UNUSED, ...)
{
	errno = ENOENT;
	return -1;
}

/* ---- drivers of other devices register themselves when they are loaded: there is nothing for them here */

EXPORT void verbs_register_driver_34(const void *operations UNUSED)
{
}

EXPORT void ibv_register_driver(const char *name UNUSED, void *init UNUSED)
{
}

EXPORT void __verbs_log(void *context UNUSED, uint32_t level UNUSED, const char *format UNUSED, ...)
{
}

EXPORT bool verbs_allow_disassociate_destroy;

/* ---- vendor options of the connection exchange: none */

EXPORT int ibv_query_ece(struct ibv_qp *qp UNUSED, struct ibv_ece *ece)
{
	memset(ece, 0, sizeof *ece);
	return EOPNOTSUPP;
}

EXPORT int ibv_set_ece(struct ibv_qp *qp UNUSED, struct ibv_ece *ece UNUSED)
{
	return EOPNOTSUPP;
}

/* Data may land in any order before its completion. */
EXPORT int ibv_query_qp_data_in_order(struct ibv_qp *qp UNUSED, int opcode UNUSED, uint32_t flags UNUSED)
{
	return 0;
}

/* ---- structures of the kernel's connection manager */

struct kernel_global_route {
	uint8_t dgid[16];
	uint32_t flow_label;
	uint8_t sgid_index, hop_limit, traffic_class, reserved;
};

struct kernel_ah_attr {
	struct kernel_global_route grh;
	uint16_t dlid, reserved;
	uint8_t sl, src_path_bits, static_rate, is_global, port_num, reserved2[3];
};

struct kernel_qp_attr {
	uint32_t qp_attr_mask, qp_state, cur_qp_state, path_mtu, path_mig_state;
	uint32_t qkey, rq_psn, sq_psn, dest_qp_num, qp_access_flags;
	struct kernel_ah_attr ah_attr, alt_ah_attr;
	uint32_t max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data;
	uint16_t pkey_index, alt_pkey_index;
	uint8_t en_sqd_async_notify, sq_draining, max_rd_atomic, max_dest_rd_atomic, min_rnr_timer, port_num;
	uint8_t timeout, retry_cnt, rnr_retry, alt_port_num, alt_timeout, reserved[5];
};

EXPORT void ibv_copy_ah_attr_from_kern(struct ibv_ah_attr *to, const struct kernel_ah_attr *from)
{
	memcpy(to->grh.dgid.raw, from->grh.dgid, sizeof from->grh.dgid);
	to->grh.flow_label = from->grh.flow_label;
	to->grh.sgid_index = from->grh.sgid_index;
	to->grh.hop_limit = from->grh.hop_limit;
	to->grh.traffic_class = from->grh.traffic_class;
	to->dlid = from->dlid;
	to->sl = from->sl;
	to->src_path_bits = from->src_path_bits;
	to->static_rate = from->static_rate;
	to->is_global = from->is_global;
	to->port_num = from->port_num;
}

EXPORT void ibv_copy_qp_attr_from_kern(struct ibv_qp_attr *to, const struct kernel_qp_attr *from)
{
	to->cur_qp_state = (int)from->cur_qp_state;
	to->path_mtu = (int)from->path_mtu;
	to->path_mig_state = (int)from->path_mig_state;
	to->qkey = from->qkey;
	to->rq_psn = from->rq_psn;
	to->sq_psn = from->sq_psn;
	to->dest_qp_num = from->dest_qp_num;
	to->qp_access_flags = from->qp_access_flags;
	to->cap = (struct ibv_qp_cap){ from->max_send_wr, from->max_recv_wr, from->max_send_sge, from->max_recv_sge,
				       from->max_inline_data };
	ibv_copy_ah_attr_from_kern(&to->ah_attr, &from->ah_attr);
	ibv_copy_ah_attr_from_kern(&to->alt_ah_attr, &from->alt_ah_attr);
	to->pkey_index = from->pkey_index;
	to->alt_pkey_index = from->alt_pkey_index;
	to->en_sqd_async_notify = from->en_sqd_async_notify;
	to->sq_draining = from->sq_draining;
	to->max_rd_atomic = from->max_rd_atomic;
	to->max_dest_rd_atomic = from->max_dest_rd_atomic;
	to->min_rnr_timer = from->min_rnr_timer;
	to->port_num = from->port_num;
	to->timeout = from->timeout;
	to->retry_cnt = from->retry_cnt;
	to->rnr_retry = from->rnr_retry;
	to->alt_port_num = from->alt_port_num;
	to->alt_timeout = from->alt_timeout;
}

/* What the generated functions that only refuse have in common. */
void refused(int error);
void refused(int error)
{
	errno = error;
}
