/* The connection manager's ABI (librdmacm 1.0 to 1.3) as programs use it, written from its documentation. */
#ifndef RNIC_RDMACM_ABI_H
#define RNIC_RDMACM_ABI_H

#include <netinet/in.h>
#include <sys/socket.h>

#include "verbs_abi.h"

enum {
	RDMA_CM_EVENT_ADDR_RESOLVED,
	RDMA_CM_EVENT_ADDR_ERROR,
	RDMA_CM_EVENT_ROUTE_RESOLVED,
	RDMA_CM_EVENT_ROUTE_ERROR,
	RDMA_CM_EVENT_CONNECT_REQUEST,
	RDMA_CM_EVENT_CONNECT_RESPONSE,
	RDMA_CM_EVENT_CONNECT_ERROR,
	RDMA_CM_EVENT_UNREACHABLE,
	RDMA_CM_EVENT_REJECTED,
	RDMA_CM_EVENT_ESTABLISHED,
	RDMA_CM_EVENT_DISCONNECTED,
	RDMA_CM_EVENT_DEVICE_REMOVAL,
	RDMA_CM_EVENT_MULTICAST_JOIN,
	RDMA_CM_EVENT_MULTICAST_ERROR,
	RDMA_CM_EVENT_ADDR_CHANGE,
	RDMA_CM_EVENT_TIMEWAIT_EXIT,
};

enum { RDMA_PS_IPOIB = 0x0002, RDMA_PS_TCP = 0x0106, RDMA_PS_UDP = 0x0111, RDMA_PS_IB = 0x013F };
enum { RDMA_MAX_RESP_RES = 0xFF, RDMA_MAX_INIT_DEPTH = 0xFF };
enum { RAI_PASSIVE = 1, RAI_NUMERICHOST = 2, RAI_NOROUTE = 4, RAI_FAMILY = 8 };
enum { RDMA_OPTION_ID, RDMA_OPTION_IB };
enum { RDMA_OPTION_ID_TOS, RDMA_OPTION_ID_REUSEADDR, RDMA_OPTION_ID_AFONLY, RDMA_OPTION_ID_ACK_TIMEOUT };
enum { RDMA_OPTION_IB_PATH = 1 };
enum { RDMA_CM_JOIN_MC_ATTR_ADDRESS = 1, RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS = 2 };
enum { RDMA_UDP_QKEY = 0x01234567 };

struct ibv_sa_path_rec {
	union ibv_gid dgid, sgid;
	uint16_t dlid, slid; /* big-endian */
	int raw_traffic;
	uint32_t flow_label; /* big-endian */
	uint8_t hop_limit, traffic_class;
	int reversible;
	uint8_t numb_path;
	uint16_t pkey; /* big-endian */
	uint8_t sl, mtu_selector, mtu, rate_selector, rate, packet_life_time_selector, packet_life_time, preference;
};

struct rdma_ib_addr {
	union ibv_gid sgid, dgid;
	uint16_t pkey;
};

struct rdma_addr {
	union {
		struct sockaddr src_addr;
		struct sockaddr_in src_sin;
		struct sockaddr_in6 src_sin6;
		struct sockaddr_storage src_storage;
	};
	union {
		struct sockaddr dst_addr;
		struct sockaddr_in dst_sin;
		struct sockaddr_in6 dst_sin6;
		struct sockaddr_storage dst_storage;
	};
	union {
		struct rdma_ib_addr ibaddr;
	} addr;
};

struct rdma_route {
	struct rdma_addr addr;
	struct ibv_sa_path_rec *path_rec;
	int num_paths;
};

struct rdma_event_channel {
	int fd;
};

struct rdma_cm_event;

struct rdma_cm_id {
	struct ibv_context *verbs;
	struct rdma_event_channel *channel;
	void *context;
	struct ibv_qp *qp;
	struct rdma_route route;
	int ps;
	uint8_t port_num;
	struct rdma_cm_event *event;
	struct ibv_comp_channel *send_cq_channel;
	struct ibv_cq *send_cq;
	struct ibv_comp_channel *recv_cq_channel;
	struct ibv_cq *recv_cq;
	struct ibv_srq *srq;
	struct ibv_pd *pd;
	int qp_type;
};

struct rdma_conn_param {
	const void *private_data;
	uint8_t private_data_len, responder_resources, initiator_depth, flow_control, retry_count, rnr_retry_count;
	uint8_t srq;
	uint32_t qp_num;
};

struct rdma_ud_param {
	const void *private_data;
	uint8_t private_data_len;
	struct ibv_ah_attr ah_attr;
	uint32_t qp_num, qkey;
};

struct rdma_cm_event {
	struct rdma_cm_id *id, *listen_id;
	int event, status;
	union {
		struct rdma_conn_param conn;
		struct rdma_ud_param ud;
	} param;
};

struct rdma_addrinfo {
	int ai_flags, ai_family, ai_qp_type, ai_port_space;
	socklen_t ai_src_len, ai_dst_len;
	struct sockaddr *ai_src_addr, *ai_dst_addr;
	char *ai_src_canonname, *ai_dst_canonname;
	size_t ai_route_len;
	void *ai_route;
	size_t ai_connect_len;
	void *ai_connect;
	struct rdma_addrinfo *ai_next;
};

struct rdma_cm_join_mc_attr_ex {
	uint32_t comp_mask, join_flags;
	struct sockaddr *addr;
};

/* Exports that call each other. */
int rdma_ack_cm_event(struct rdma_cm_event *event);
int rdma_destroy_id(struct rdma_cm_id *id);
int rdma_bind_addr(struct rdma_cm_id *id, struct sockaddr *address);
int rdma_resolve_addr(struct rdma_cm_id *id, struct sockaddr *src, struct sockaddr *dst, int timeout_ms);
int rdma_resolve_route(struct rdma_cm_id *id, int timeout_ms);
int rdma_create_qp(struct rdma_cm_id *id, struct ibv_pd *pd, struct ibv_qp_init_attr *attr);
void rdma_destroy_qp(struct rdma_cm_id *id);
void rdma_destroy_srq(struct rdma_cm_id *id);
struct rdma_event_channel *rdma_create_event_channel(void);
void rdma_destroy_event_channel(struct rdma_event_channel *channel);
int rdma_create_id(struct rdma_event_channel *channel, struct rdma_cm_id **id, void *context, int space);
int rdma_get_cm_event(struct rdma_event_channel *channel, struct rdma_cm_event **event);
int rdma_migrate_id(struct rdma_cm_id *id, struct rdma_event_channel *channel);
int rdma_listen(struct rdma_cm_id *id, int backlog);
int rdma_connect(struct rdma_cm_id *id, struct rdma_conn_param *param);
int rdma_accept(struct rdma_cm_id *id, struct rdma_conn_param *param);
int rdma_reject(struct rdma_cm_id *id, const void *data, uint8_t bytes);
int rdma_disconnect(struct rdma_cm_id *id);
int rdma_set_option(struct rdma_cm_id *id, int level, int name, void *value, size_t bytes);

/* Functions of libibverbs that librdmacm calls. */
struct ibv_device **ibv_get_device_list(int *count);
void ibv_free_device_list(struct ibv_device **list);
struct ibv_context *ibv_open_device(struct ibv_device *device);
int ibv_close_device(struct ibv_context *context);
int ibv_query_device(struct ibv_context *context, struct ibv_device_attr *attr);
int ibv_query_gid(struct ibv_context *context, uint8_t port, int index, union ibv_gid *gid);
struct ibv_pd *ibv_alloc_pd(struct ibv_context *context);
struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *context);
int ibv_destroy_comp_channel(struct ibv_comp_channel *channel);
struct ibv_cq *ibv_create_cq(struct ibv_context *context, int cqe, void *cq_context, struct ibv_comp_channel *channel,
			     int vector);
int ibv_destroy_cq(struct ibv_cq *cq);
int ibv_get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **cq, void **context);
void ibv_ack_cq_events(struct ibv_cq *cq, unsigned int count);
struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t length, int access);
int ibv_dereg_mr(struct ibv_mr *mr);
struct ibv_ah *ibv_create_ah(struct ibv_pd *pd, struct ibv_ah_attr *attr);
int ibv_destroy_ah(struct ibv_ah *ah);
struct ibv_srq *ibv_create_srq(struct ibv_pd *pd, struct ibv_srq_init_attr *attr);
int ibv_destroy_srq(struct ibv_srq *srq);
struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr);
int ibv_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask);
int ibv_destroy_qp(struct ibv_qp *qp);
int ibv_attach_mcast(struct ibv_qp *qp, const union ibv_gid *gid, uint16_t lid);
int ibv_detach_mcast(struct ibv_qp *qp, const union ibv_gid *gid, uint16_t lid);

/* Two state changes in one message; only in this libibverbs. */
uint8_t rnic_own_gid_index(struct ibv_context *verbs);
int rnic_modify_qp_twice(struct ibv_qp *verbs, const struct ibv_qp_attr *const *attrs, const int *masks);

#endif
