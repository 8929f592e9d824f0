/*
 * The binary interface of libibverbs as its callers use it: structures, operation tables and numbers.
 *
 * Programs read and write these structures without asking the library (inline functions of their verbs.h),
 * so each member's offset is part of the interface. tests/abi compares every offset with the system's header.
 */
#ifndef RNIC_VERBS_ABI_H
#define RNIC_VERBS_ABI_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

typedef uint16_t be16_t;
typedef uint32_t be32_t;
typedef uint64_t be64_t;

union ibv_gid {
	uint8_t raw[16];
	struct {
		be64_t subnet_prefix, interface_id;
	} global;
};

enum { IBV_NODE_CA = 1, IBV_TRANSPORT_IB = 0 };
enum { IBV_GID_TYPE_ROCE_V1 = 1, IBV_GID_TYPE_ROCE_V2 = 2 };
enum { IBV_GID_TYPE_SYSFS_IB_ROCE_V1 = 0, IBV_GID_TYPE_SYSFS_ROCE_V2 = 1 };
enum { IBV_PORT_ACTIVE = 4, IBV_PORT_PHYS_DISABLED = 3, IBV_PORT_PHYS_LINK_UP = 5, IBV_LINK_LAYER_ETHERNET = 2 };
enum { IBV_PORT_CM_SUP = 1 << 16, IBV_PORT_IP_BASED_GIDS = 1 << 26 };
enum { IBV_ATOMIC_NONE, IBV_ATOMIC_HCA, IBV_ATOMIC_GLOB };
enum {
	IBV_QPT_RC = 2,
	IBV_QPT_UC = 3,
	IBV_QPT_UD = 4,
	IBV_QPT_RAW_PACKET = 8,
	IBV_QPT_XRC_SEND = 9,
	IBV_QPT_XRC_RECV = 10,
	IBV_QPT_DRIVER = 0xFF
};
enum { IBV_QPS_RESET, IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS, IBV_QPS_SQD, IBV_QPS_SQE, IBV_QPS_ERR, IBV_QPS_UNKNOWN };
enum { IBV_MW_TYPE_1 = 1, IBV_MW_TYPE_2 = 2 };
enum { IBV_SRQT_BASIC = 0, IBV_SRQT_XRC = 1 };

enum {
	IBV_DEVICE_BAD_QKEY_CNTR = 1 << 2,
	IBV_DEVICE_CURR_QP_STATE_MOD = 1 << 7,
	IBV_DEVICE_SYS_IMAGE_GUID = 1 << 11,
	IBV_DEVICE_RC_RNR_NAK_GEN = 1 << 12,
	IBV_DEVICE_MEM_WINDOW = 1 << 17,
	IBV_DEVICE_XRC = 1 << 20,
	IBV_DEVICE_MEM_WINDOW_TYPE_2B = 1 << 24,
};
#define IBV_DEVICE_FLUSH_GLOBAL (1ull << 38)
#define IBV_DEVICE_ATOMIC_WRITE (1ull << 40)

enum {
	IBV_ACCESS_LOCAL_WRITE = 1 << 0,
	IBV_ACCESS_REMOTE_WRITE = 1 << 1,
	IBV_ACCESS_REMOTE_READ = 1 << 2,
	IBV_ACCESS_REMOTE_ATOMIC = 1 << 3,
	IBV_ACCESS_MW_BIND = 1 << 4,
	IBV_ACCESS_ZERO_BASED = 1 << 5,
	IBV_ACCESS_ON_DEMAND = 1 << 6,
	IBV_ACCESS_HUGETLB = 1 << 7,
	IBV_ACCESS_FLUSH_GLOBAL = 1 << 8,
	IBV_ACCESS_FLUSH_PERSISTENT = 1 << 9,
	IBV_ACCESS_OPTIONAL_RANGE = 0x3FF00000, /* hints that a device may ignore */
};

enum {
	IBV_QP_STATE = 1 << 0,
	IBV_QP_CUR_STATE = 1 << 1,
	IBV_QP_EN_SQD_ASYNC_NOTIFY = 1 << 2,
	IBV_QP_ACCESS_FLAGS = 1 << 3,
	IBV_QP_PKEY_INDEX = 1 << 4,
	IBV_QP_PORT = 1 << 5,
	IBV_QP_QKEY = 1 << 6,
	IBV_QP_AV = 1 << 7,
	IBV_QP_PATH_MTU = 1 << 8,
	IBV_QP_TIMEOUT = 1 << 9,
	IBV_QP_RETRY_CNT = 1 << 10,
	IBV_QP_RNR_RETRY = 1 << 11,
	IBV_QP_RQ_PSN = 1 << 12,
	IBV_QP_MAX_QP_RD_ATOMIC = 1 << 13,
	IBV_QP_ALT_PATH = 1 << 14,
	IBV_QP_MIN_RNR_TIMER = 1 << 15,
	IBV_QP_SQ_PSN = 1 << 16,
	IBV_QP_MAX_DEST_RD_ATOMIC = 1 << 17,
	IBV_QP_PATH_MIG_STATE = 1 << 18,
	IBV_QP_CAP = 1 << 19,
	IBV_QP_DEST_QPN = 1 << 20,
	IBV_QP_RATE_LIMIT = 1 << 25,
};

enum {
	IBV_WR_RDMA_WRITE,
	IBV_WR_RDMA_WRITE_WITH_IMM,
	IBV_WR_SEND,
	IBV_WR_SEND_WITH_IMM,
	IBV_WR_RDMA_READ,
	IBV_WR_ATOMIC_CMP_AND_SWP,
	IBV_WR_ATOMIC_FETCH_AND_ADD,
	IBV_WR_LOCAL_INV,
	IBV_WR_BIND_MW,
	IBV_WR_SEND_WITH_INV,
	IBV_WR_FLUSH = 14,
	IBV_WR_ATOMIC_WRITE = 15,
};
enum { IBV_SEND_FENCE = 1, IBV_SEND_SIGNALED = 2, IBV_SEND_SOLICITED = 4, IBV_SEND_INLINE = 8 };

enum {
	IBV_WC_SUCCESS,
	IBV_WC_LOC_LEN_ERR,
	IBV_WC_LOC_QP_OP_ERR,
	IBV_WC_LOC_EEC_OP_ERR,
	IBV_WC_LOC_PROT_ERR,
	IBV_WC_WR_FLUSH_ERR,
	IBV_WC_MW_BIND_ERR,
	IBV_WC_BAD_RESP_ERR,
	IBV_WC_LOC_ACCESS_ERR,
	IBV_WC_REM_INV_REQ_ERR,
	IBV_WC_REM_ACCESS_ERR,
	IBV_WC_REM_OP_ERR,
	IBV_WC_RETRY_EXC_ERR,
	IBV_WC_RNR_RETRY_EXC_ERR,
	IBV_WC_LOC_RDD_VIOL_ERR,
	IBV_WC_REM_INV_RD_REQ_ERR,
	IBV_WC_REM_ABORT_ERR,
	IBV_WC_INV_EECN_ERR,
	IBV_WC_INV_EEC_STATE_ERR,
	IBV_WC_FATAL_ERR,
	IBV_WC_RESP_TIMEOUT_ERR,
	IBV_WC_GENERAL_ERR,
	IBV_WC_TM_ERR,
	IBV_WC_TM_RNDV_INCOMPLETE,
};
enum {
	IBV_WC_SEND,
	IBV_WC_RDMA_WRITE,
	IBV_WC_RDMA_READ,
	IBV_WC_COMP_SWAP,
	IBV_WC_FETCH_ADD,
	IBV_WC_BIND_MW,
	IBV_WC_LOCAL_INV,
	IBV_WC_FLUSH = 8,
	IBV_WC_ATOMIC_WRITE = 9,
	IBV_WC_RECV = 128,
	IBV_WC_RECV_RDMA_WITH_IMM,
};
enum { IBV_WC_GRH = 1, IBV_WC_WITH_IMM = 2, IBV_WC_WITH_INV = 8 };

enum {
	IBV_WC_EX_WITH_BYTE_LEN = 1 << 0,
	IBV_WC_EX_WITH_DLID_PATH_BITS = 1 << 6,
	IBV_WC_EX_STANDARD = 0x7F, /* byte length to path bits: the fields of a plain ibv_wc */
	IBV_WC_EX_WITH_COMPLETION_TIMESTAMP = 1 << 7,
	IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK = 1 << 11,
};
enum { IBV_CQ_INIT_ATTR_MASK_FLAGS = 1, IBV_CQ_INIT_ATTR_MASK_PD = 2 };
enum { IBV_CREATE_CQ_ATTR_SINGLE_THREADED = 1, IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN = 2 };

enum {
	IBV_QP_INIT_ATTR_PD = 1,
	IBV_QP_INIT_ATTR_XRCD = 2,
	IBV_QP_INIT_ATTR_CREATE_FLAGS = 4,
	IBV_QP_INIT_ATTR_SEND_OPS_FLAGS = 1 << 6
};
enum {
	IBV_QP_EX_WITH_RDMA_WRITE = 1 << 0,
	IBV_QP_EX_WITH_BIND_MW = 1 << 9,
	IBV_QP_EX_WITH_FLUSH = 1 << 11,
	IBV_QP_EX_WITH_ATOMIC_WRITE = 1 << 12,
};
enum { IBV_SRQ_INIT_ATTR_TYPE = 1, IBV_SRQ_INIT_ATTR_PD = 2, IBV_SRQ_INIT_ATTR_XRCD = 4, IBV_SRQ_INIT_ATTR_CQ = 8 };
enum { IBV_ADVISE_MR_ADVICE_PREFETCH, IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE, IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT };
enum { IBV_ADVISE_MR_FLAG_FLUSH = 1 };
enum { IBV_ODP_SUPPORT = 1, IBV_ODP_SUPPORT_IMPLICIT = 2 };
enum {
	IBV_ODP_SUPPORT_SEND = 1 << 0,
	IBV_ODP_SUPPORT_RECV = 1 << 1,
	IBV_ODP_SUPPORT_WRITE = 1 << 2,
	IBV_ODP_SUPPORT_READ = 1 << 3,
	IBV_ODP_SUPPORT_ATOMIC = 1 << 4,
	IBV_ODP_SUPPORT_SRQ_RECV = 1 << 5,
	IBV_ODP_SUPPORT_FLUSH = 1 << 6,
	IBV_ODP_SUPPORT_ATOMIC_WRITE = 1 << 7
};
enum { IBV_XRCD_INIT_ATTR_FD = 1, IBV_XRCD_INIT_ATTR_OFLAGS = 2 };
enum { IBV_QP_OPEN_ATTR_NUM = 1, IBV_QP_OPEN_ATTR_XRCD = 2, IBV_QP_OPEN_ATTR_CONTEXT = 4, IBV_QP_OPEN_ATTR_TYPE = 8 };
enum { IBV_SRQ_MAX_WR = 1, IBV_SRQ_LIMIT = 2 };
enum {
	IBV_REG_MR_MASK_IOVA = 1 << 0,
	IBV_REG_MR_MASK_ADDR = 1 << 1,
	IBV_REG_MR_MASK_FD = 1 << 2,
	IBV_REG_MR_MASK_FD_OFFSET = 1 << 3,
	IBV_REG_MR_MASK_BUF = 1 << 5,
};
enum { IBV_REREG_MR_CHANGE_TRANSLATION = 1, IBV_REREG_MR_CHANGE_PD = 2, IBV_REREG_MR_CHANGE_ACCESS = 4 };
enum { IBV_REREG_MR_ERR_INPUT = -1, IBV_REREG_MR_ERR_CMD = -4 };
enum { IBV_FORK_DISABLED, IBV_FORK_ENABLED, IBV_FORK_UNNEEDED };

enum {
	IBV_EVENT_CQ_ERR,
	IBV_EVENT_QP_FATAL,
	IBV_EVENT_QP_REQ_ERR,
	IBV_EVENT_QP_ACCESS_ERR,
	IBV_EVENT_COMM_EST,
	IBV_EVENT_SQ_DRAINED,
	IBV_EVENT_PATH_MIG,
	IBV_EVENT_PATH_MIG_ERR,
	IBV_EVENT_DEVICE_FATAL,
	IBV_EVENT_PORT_ACTIVE,
	IBV_EVENT_PORT_ERR,
	IBV_EVENT_LID_CHANGE,
	IBV_EVENT_PKEY_CHANGE,
	IBV_EVENT_SM_CHANGE,
	IBV_EVENT_SRQ_ERR,
	IBV_EVENT_SRQ_LIMIT_REACHED,
	IBV_EVENT_QP_LAST_WQE_REACHED,
	IBV_EVENT_CLIENT_REREGISTER,
	IBV_EVENT_GID_CHANGE,
	IBV_EVENT_WQ_FATAL,
};

struct ibv_context;
struct ibv_qp_ex;
struct ibv_cq_ex;

struct ibv_device {
	void *ops[2];
	int node_type, transport_type;
	char name[64], dev_name[64], dev_path[256], ibdev_path[256];
};

struct ibv_device_attr {
	char fw_ver[64];
	be64_t node_guid, sys_image_guid;
	uint64_t max_mr_size, page_size_cap;
	uint32_t vendor_id, vendor_part_id, hw_ver;
	int max_qp, max_qp_wr;
	unsigned int device_cap_flags;
	int max_sge, max_sge_rd, max_cq, max_cqe, max_mr, max_pd;
	int max_qp_rd_atom, max_ee_rd_atom, max_res_rd_atom, max_qp_init_rd_atom, max_ee_init_rd_atom;
	int atomic_cap;
	int max_ee, max_rdd, max_mw, max_raw_ipv6_qp, max_raw_ethy_qp;
	int max_mcast_grp, max_mcast_qp_attach, max_total_mcast_qp_attach;
	int max_ah, max_fmr, max_map_per_fmr, max_srq, max_srq_wr, max_srq_sge;
	uint16_t max_pkeys;
	uint8_t local_ca_ack_delay, phys_port_cnt;
};

struct ibv_device_attr_ex {
	struct ibv_device_attr orig_attr;
	uint32_t comp_mask;
	struct {
		uint64_t general_caps;
		uint32_t rc, uc, ud;
	} odp_caps;
	uint64_t completion_timestamp_mask, hca_core_clock, device_cap_flags_ex;
	struct {
		uint32_t max_tso, supported_qpts;
	} tso_caps;
	struct {
		uint32_t supported_qpts, max_rwq_indirection_tables, max_rwq_indirection_table_size;
		uint64_t rx_hash_fields_mask;
		uint8_t rx_hash_function;
	} rss_caps;
	uint32_t max_wq_type_rq;
	struct {
		uint32_t qp_rate_limit_min, qp_rate_limit_max, supported_qpts;
	} packet_pacing_caps;
	uint32_t raw_packet_caps;
	struct {
		uint32_t max_rndv_hdr_size, max_num_tags, flags, max_ops, max_sge;
	} tm_caps;
	struct {
		uint16_t max_cq_count, max_cq_period;
	} cq_mod_caps;
	uint64_t max_dm_size;
	struct {
		uint16_t fetch_add, swap, compare_swap;
	} pci_atomic_caps;
	uint32_t xrc_odp_caps, phys_port_cnt_ex;
};

struct ibv_query_device_ex_input;

struct ibv_port_attr {
	int state, max_mtu, active_mtu, gid_tbl_len;
	uint32_t port_cap_flags, max_msg_sz, bad_pkey_cntr, qkey_viol_cntr;
	uint16_t pkey_tbl_len, lid, sm_lid;
	uint8_t lmc, max_vl_num, sm_sl, subnet_timeout, init_type_reply, active_width, active_speed, phys_state;
	uint8_t link_layer, flags;
	uint16_t port_cap_flags2;
};
enum { COMPAT_PORT_ATTR_BYTES = offsetof(struct ibv_port_attr, port_cap_flags2) };

struct ibv_gid_entry {
	union ibv_gid gid;
	uint32_t gid_index, port_num, gid_type, ndev_ifindex;
};

struct ibv_pd {
	struct ibv_context *context;
	uint32_t handle;
};

struct ibv_td {
	struct ibv_context *context;
};

struct ibv_parent_domain_init_attr {
	struct ibv_pd *pd;
	struct ibv_td *td;
	uint32_t comp_mask;
	void *(*alloc)(struct ibv_pd *, void *, size_t, size_t, uint64_t);
	void (*free)(struct ibv_pd *, void *, void *, uint64_t);
	void *pd_context;
};

struct ibv_mr {
	struct ibv_context *context;
	struct ibv_pd *pd;
	void *addr;
	size_t length;
	uint32_t handle, lkey, rkey;
};

struct ibv_dm {
	struct ibv_context *context;
	int (*memcpy_to_dm)(struct ibv_dm *, uint64_t offset, const void *from, size_t length);
	int (*memcpy_from_dm)(void *to, struct ibv_dm *, uint64_t offset, size_t length);
	uint32_t comp_mask, handle;
};

struct ibv_alloc_dm_attr {
	size_t length;
	uint32_t log_align_req, comp_mask;
};

struct ibv_buf;

struct ibv_mr_init_attr {
	size_t length;
	int access;
	uint64_t comp_mask, iova;
	void *addr;
	int fd;
	uint64_t fd_offset;
	void *dmah;
	struct ibv_buf *buf;
};

struct ibv_mw {
	struct ibv_context *context;
	struct ibv_pd *pd;
	uint32_t rkey, handle;
	int type;
};

struct ibv_mw_bind_info {
	struct ibv_mr *mr;
	uint64_t addr, length;
	unsigned int mw_access_flags;
};

struct ibv_mw_bind {
	uint64_t wr_id;
	unsigned int send_flags;
	struct ibv_mw_bind_info bind_info;
};

struct ibv_global_route {
	union ibv_gid dgid;
	uint32_t flow_label;
	uint8_t sgid_index, hop_limit, traffic_class;
};

struct ibv_ah_attr {
	struct ibv_global_route grh;
	uint16_t dlid;
	uint8_t sl, src_path_bits, static_rate, is_global, port_num;
};

struct ibv_ah {
	struct ibv_context *context;
	struct ibv_pd *pd;
	uint32_t handle;
};

struct ibv_grh {
	be32_t version_tclass_flow;
	be16_t paylen;
	uint8_t next_hdr, hop_limit;
	union ibv_gid sgid, dgid;
};

struct ibv_comp_channel {
	struct ibv_context *context;
	int fd, refcnt;
};

#define CQ_MEMBERS \
	struct ibv_context *context; \
	struct ibv_comp_channel *channel; \
	void *cq_context; \
	uint32_t handle; \
	int cqe; \
	pthread_mutex_t mutex; \
	pthread_cond_t cond; \
	uint32_t comp_events_completed, async_events_completed;

struct ibv_cq {
	CQ_MEMBERS
};

struct ibv_poll_cq_attr {
	uint32_t comp_mask;
};

struct ibv_cq_ex {
	CQ_MEMBERS
	uint32_t comp_mask;
	int status;
	uint64_t wr_id;
	int (*start_poll)(struct ibv_cq_ex *, struct ibv_poll_cq_attr *);
	int (*next_poll)(struct ibv_cq_ex *);
	void (*end_poll)(struct ibv_cq_ex *);
	int (*read_opcode)(struct ibv_cq_ex *);
	uint32_t (*read_vendor_err)(struct ibv_cq_ex *);
	uint32_t (*read_byte_len)(struct ibv_cq_ex *);
	be32_t (*read_imm_data)(struct ibv_cq_ex *);
	uint32_t (*read_qp_num)(struct ibv_cq_ex *);
	uint32_t (*read_src_qp)(struct ibv_cq_ex *);
	unsigned int (*read_wc_flags)(struct ibv_cq_ex *);
	uint32_t (*read_slid)(struct ibv_cq_ex *);
	uint8_t (*read_sl)(struct ibv_cq_ex *);
	uint8_t (*read_dlid_path_bits)(struct ibv_cq_ex *);
	uint64_t (*read_completion_ts)(struct ibv_cq_ex *);
	uint16_t (*read_cvlan)(struct ibv_cq_ex *);
	uint32_t (*read_flow_tag)(struct ibv_cq_ex *);
	void (*read_tm_info)(struct ibv_cq_ex *, void *);
	uint64_t (*read_completion_wallclock_ns)(struct ibv_cq_ex *);
};

struct ibv_cq_init_attr_ex {
	uint32_t cqe;
	void *cq_context;
	struct ibv_comp_channel *channel;
	uint32_t comp_vector;
	uint64_t wc_flags;
	uint32_t comp_mask, flags;
	struct ibv_pd *parent_domain;
};

struct ibv_wc {
	uint64_t wr_id;
	int status, opcode;
	uint32_t vendor_err, byte_len;
	union {
		be32_t imm_data;
		uint32_t invalidated_rkey;
	};
	uint32_t qp_num, src_qp;
	unsigned int wc_flags;
	uint16_t pkey_index, slid;
	uint8_t sl, dlid_path_bits;
};

struct ibv_srq {
	struct ibv_context *context;
	void *srq_context;
	struct ibv_pd *pd;
	uint32_t handle;
	pthread_mutex_t mutex;
	pthread_cond_t cond;
	uint32_t events_completed;
};

struct ibv_srq_attr {
	uint32_t max_wr, max_sge, srq_limit;
};

struct ibv_srq_init_attr {
	void *srq_context;
	struct ibv_srq_attr attr;
};

struct ibv_xrcd {
	struct ibv_context *context;
};

struct ibv_xrcd_init_attr {
	uint32_t comp_mask;
	int fd, oflags;
};

struct ibv_qp_open_attr {
	uint32_t comp_mask, qp_num;
	struct ibv_xrcd *xrcd;
	void *qp_context;
	int qp_type;
};

struct ibv_srq_init_attr_ex {
	void *srq_context;
	struct ibv_srq_attr attr;
	uint32_t comp_mask;
	int srq_type;
	struct ibv_pd *pd;
	struct ibv_xrcd *xrcd;
	struct ibv_cq *cq;
	struct {
		uint32_t max_num_tags, max_ops;
	} tm_cap;
};

struct ibv_qp {
	struct ibv_context *context;
	void *qp_context;
	struct ibv_pd *pd;
	struct ibv_cq *send_cq, *recv_cq;
	struct ibv_srq *srq;
	uint32_t handle, qp_num;
	int state, qp_type;
	pthread_mutex_t mutex;
	pthread_cond_t cond;
	uint32_t events_completed;
};

struct ibv_qp_cap {
	uint32_t max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data;
};

#define QP_INIT_MEMBERS \
	void *qp_context; \
	struct ibv_cq *send_cq, *recv_cq; \
	struct ibv_srq *srq; \
	struct ibv_qp_cap cap; \
	int qp_type, sq_sig_all;

struct ibv_qp_init_attr {
	QP_INIT_MEMBERS
};

struct ibv_qp_init_attr_ex {
	QP_INIT_MEMBERS
	uint32_t comp_mask;
	struct ibv_pd *pd;
	struct ibv_xrcd *xrcd;
	uint32_t create_flags;
	uint16_t max_tso_header;
	void *rwq_ind_tbl;
	struct {
		uint8_t function, key_len;
		uint8_t *key;
		uint64_t fields_mask;
	} rx_hash_conf;
	uint32_t source_qpn;
	uint64_t send_ops_flags;
};

struct ibv_qp_attr {
	int qp_state, cur_qp_state, path_mtu, path_mig_state;
	uint32_t qkey, rq_psn, sq_psn, dest_qp_num;
	unsigned int qp_access_flags;
	struct ibv_qp_cap cap;
	struct ibv_ah_attr ah_attr, alt_ah_attr;
	uint16_t pkey_index, alt_pkey_index;
	uint8_t en_sqd_async_notify, sq_draining, max_rd_atomic, max_dest_rd_atomic, min_rnr_timer, port_num;
	uint8_t timeout, retry_cnt, rnr_retry, alt_port_num, alt_timeout;
	uint32_t rate_limit;
};

struct ibv_sge {
	uint64_t addr;
	uint32_t length, lkey;
};

struct ibv_data_buf {
	void *addr;
	size_t length;
};

struct ibv_send_wr {
	uint64_t wr_id;
	struct ibv_send_wr *next;
	struct ibv_sge *sg_list;
	int num_sge, opcode;
	unsigned int send_flags;
	union {
		be32_t imm_data;
		uint32_t invalidate_rkey;
	};
	union {
		struct {
			uint64_t remote_addr;
			uint32_t rkey;
		} rdma;
		struct {
			uint64_t remote_addr, compare_add, swap;
			uint32_t rkey;
		} atomic;
		struct {
			struct ibv_ah *ah;
			uint32_t remote_qpn, remote_qkey;
		} ud;
	} wr;
	uint32_t remote_srqn;
	union {
		struct {
			struct ibv_mw *mw;
			uint32_t rkey;
			struct ibv_mw_bind_info bind_info;
		} bind_mw;
		struct {
			void *hdr;
			uint16_t hdr_sz, mss;
		} tso;
	};
};

struct ibv_recv_wr {
	uint64_t wr_id;
	struct ibv_recv_wr *next;
	struct ibv_sge *sg_list;
	int num_sge;
};

struct ibv_qp_ex {
	struct ibv_qp qp_base;
	uint64_t comp_mask, wr_id;
	unsigned int wr_flags;
	void (*wr_atomic_cmp_swp)(struct ibv_qp_ex *, uint32_t rkey, uint64_t va, uint64_t compare, uint64_t swap);
	void (*wr_atomic_fetch_add)(struct ibv_qp_ex *, uint32_t rkey, uint64_t va, uint64_t add);
	void (*wr_bind_mw)(struct ibv_qp_ex *, struct ibv_mw *, uint32_t rkey, const struct ibv_mw_bind_info *);
	void (*wr_local_inv)(struct ibv_qp_ex *, uint32_t rkey);
	void (*wr_rdma_read)(struct ibv_qp_ex *, uint32_t rkey, uint64_t va);
	void (*wr_rdma_write)(struct ibv_qp_ex *, uint32_t rkey, uint64_t va);
	void (*wr_rdma_write_imm)(struct ibv_qp_ex *, uint32_t rkey, uint64_t va, be32_t imm);
	void (*wr_send)(struct ibv_qp_ex *);
	void (*wr_send_imm)(struct ibv_qp_ex *, be32_t imm);
	void (*wr_send_inv)(struct ibv_qp_ex *, uint32_t rkey);
	void (*wr_send_tso)(struct ibv_qp_ex *, void *hdr, uint16_t hdr_sz, uint16_t mss);
	void (*wr_set_ud_addr)(struct ibv_qp_ex *, struct ibv_ah *, uint32_t qpn, uint32_t qkey);
	void (*wr_set_xrc_srqn)(struct ibv_qp_ex *, uint32_t srqn);
	void (*wr_set_inline_data)(struct ibv_qp_ex *, void *addr, size_t length);
	void (*wr_set_inline_data_list)(struct ibv_qp_ex *, size_t count, const struct ibv_data_buf *);
	void (*wr_set_sge)(struct ibv_qp_ex *, uint32_t lkey, uint64_t addr, uint32_t length);
	void (*wr_set_sge_list)(struct ibv_qp_ex *, size_t count, const struct ibv_sge *);
	void (*wr_start)(struct ibv_qp_ex *);
	int (*wr_complete)(struct ibv_qp_ex *);
	void (*wr_abort)(struct ibv_qp_ex *);
	void (*wr_atomic_write)(struct ibv_qp_ex *, uint32_t rkey, uint64_t va, const void *data);
};

/* Newer headers have one more member at the end. */
struct ibv_qp_ex_flush {
	struct ibv_qp_ex base;
	void (*wr_flush)(struct ibv_qp_ex *, uint32_t rkey, uint64_t va, size_t length, uint8_t type, uint8_t level);
};

struct ibv_async_event {
	union {
		struct ibv_cq *cq;
		struct ibv_qp *qp;
		struct ibv_srq *srq;
		int port_num;
	} element;
	int event_type;
};

struct ibv_ece {
	uint32_t vendor_id, options, comp_mask;
};

struct ibv_context_ops {
	void *compat_query[7];
	struct ibv_mw *(*alloc_mw)(struct ibv_pd *, int type);
	int (*bind_mw)(struct ibv_qp *, struct ibv_mw *, struct ibv_mw_bind *);
	int (*dealloc_mw)(struct ibv_mw *);
	void *compat_create_cq;
	int (*poll_cq)(struct ibv_cq *, int count, struct ibv_wc *);
	int (*req_notify_cq)(struct ibv_cq *, int solicited_only);
	void *compat_cq[7];
	int (*post_srq_recv)(struct ibv_srq *, struct ibv_recv_wr *, struct ibv_recv_wr **bad);
	void *compat_qp[4];
	int (*post_send)(struct ibv_qp *, struct ibv_send_wr *, struct ibv_send_wr **bad);
	int (*post_recv)(struct ibv_qp *, struct ibv_recv_wr *, struct ibv_recv_wr **bad);
	void *compat_ah[5];
};

struct ibv_context {
	struct ibv_device *device;
	struct ibv_context_ops ops;
	int cmd_fd, async_fd, num_comp_vectors;
	pthread_mutex_t mutex;
	void *abi_compat;
};

enum { IBV_VALUES_MASK_RAW_CLOCK = 1 };

struct ibv_values_ex {
	uint32_t comp_mask;
	struct timespec raw_clock;
};

/* Members below an ibv_context whose abi_compat is all ones. The structure grows downward, and its end is fixed:
 * programs find a member by its distance from the context, and check sz to know whether it is there. For a null
 * operation, the inline function that would call it returns EOPNOTSUPP. */
struct verbs_context {
	int (*query_port)(struct ibv_context *, uint8_t port, struct ibv_port_attr *, size_t bytes);
	int (*advise_mr)(struct ibv_pd *, int advice, uint32_t flags, struct ibv_sge *, uint32_t count);
	struct ibv_mr *(*alloc_null_mr)(struct ibv_pd *);
	void *read_counters, *attach_counters_point_flow, *create_counters;
	void *destroy_counters;
	struct ibv_mr *(*reg_dm_mr)(struct ibv_pd *, struct ibv_dm *, uint64_t offset, size_t length, unsigned access);
	struct ibv_dm *(*alloc_dm)(struct ibv_context *, struct ibv_alloc_dm_attr *);
	int (*free_dm)(struct ibv_dm *);
	void *modify_flow_action_esp, *destroy_flow_action;
	void *create_flow_action_esp, *modify_qp_rate_limit;
	struct ibv_pd *(*alloc_parent_domain)(struct ibv_context *, struct ibv_parent_domain_init_attr *);
	int (*dealloc_td)(struct ibv_td *);
	struct ibv_td *(*alloc_td)(struct ibv_context *, void *init_attr);
	void *modify_cq, *post_srq_ops, *destroy_rwq_ind_table, *create_rwq_ind_table, *destroy_wq, *modify_wq;
	void *create_wq;
	int (*query_rt_values)(struct ibv_context *, struct ibv_values_ex *);
	struct ibv_cq_ex *(*create_cq_ex)(struct ibv_context *, struct ibv_cq_init_attr_ex *);
	void *priv;
	int (*query_device_ex)(struct ibv_context *, const struct ibv_query_device_ex_input *,
			       struct ibv_device_attr_ex *, size_t bytes);
	void *destroy_flow, *placeholder2, *create_flow, *placeholder1;
	struct ibv_qp *(*open_qp)(struct ibv_context *, struct ibv_qp_open_attr *);
	struct ibv_qp *(*create_qp_ex)(struct ibv_context *, struct ibv_qp_init_attr_ex *);
	int (*get_srq_num)(struct ibv_srq *, uint32_t *number);
	struct ibv_srq *(*create_srq_ex)(struct ibv_context *, struct ibv_srq_init_attr_ex *);
	struct ibv_xrcd *(*open_xrcd)(struct ibv_context *, struct ibv_xrcd_init_attr *);
	int (*close_xrcd)(struct ibv_xrcd *);
	uint64_t placeholder3;
	size_t sz;
	struct ibv_context context;
};
#define VERBS_ABI_IS_EXTENDED ((void *)(uintptr_t)-1)

static inline struct verbs_context *verbs_get_ctx(struct ibv_context *context)
{
	return (struct verbs_context *)(void *)((char *)context - offsetof(struct verbs_context, context));
}

#endif
