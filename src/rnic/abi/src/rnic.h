/*
 * The driver's objects. Each begins with the structure that programs know, so that a cast leads from one to the other.
 *
 * The library is a driver in the sense of a kernel's: it writes descriptors into rings, stores to doorbell registers,
 * reads completion entries by their phase bit, and gives commands by mailbox. What it talks to is the user's NIC
 * process: registers are a window of shared memory, commands and their answers are messages on a local socket.
 */
#ifndef RNIC_H
#define RNIC_H

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "rnic_hw.h"
#include "bypass/driver.h"
#include "verbs_abi.h"

#define EXPORT __attribute__((visibility("default")))
#define UNUSED __attribute__((unused))
#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* ---- layouts: the field macros of rnic_hw.h stand for byte offset, unit, lowest bit, width */

static inline void rnic_put_be(void *buffer, unsigned at, unsigned unit, unsigned lsb, unsigned width, uint64_t value)
{
	uint8_t *bytes = (uint8_t *)buffer + at;
	uint64_t mask = width == 64 ? ~0ull : (1ull << width) - 1, word = 0;

	for (unsigned i = 0; i < unit; i++)
		word = word << 8 | bytes[i];
	word = (word & ~(mask << lsb)) | (value & mask) << lsb;
	for (unsigned i = unit; i-- > 0; word >>= 8)
		bytes[i] = (uint8_t)word;
}

static inline uint64_t rnic_get_be(const void *buffer, unsigned at, unsigned unit, unsigned lsb, unsigned width)
{
	const uint8_t *bytes = (const uint8_t *)buffer + at;
	uint64_t mask = width == 64 ? ~0ull : (1ull << width) - 1, word = 0;

	for (unsigned i = 0; i < unit; i++)
		word = word << 8 | bytes[i];
	return word >> lsb & mask;
}

/* ---- descriptors as the hot path writes them; the assertions hold them to the tables */

struct sqe {
	uint32_t wqe_id;
	uint16_t opcode, flags;
	uint64_t local_addr;
	uint64_t remote_addr; /* UD: path, ports */
	uint32_t length, lkey, rkey, imm;
	union {
		struct {
			uint64_t swap_add, compare;
		} atomic;
		struct {
			uint8_t dgid[16];
			uint32_t dqpn_hop, qkey;
		} ud;
		uint64_t bind_length;
	};
};
struct sge {
	uint64_t addr;
	uint32_t length, lkey;
};
struct entry { /* of a CQ or EQ */
	uint32_t word[8];
};
#define PLACED(type, member, place) _Static_assert(offsetof(type, member) == (place), #member)
PLACED(struct sqe, wqe_id, RNIC_SQE_WQE_ID_AT);
PLACED(struct sqe, opcode, RNIC_SQE_OPCODE_AT);
PLACED(struct sqe, flags, RNIC_SQE_SIGNALED_AT);
PLACED(struct sqe, local_addr, RNIC_SQE_LOCAL_ADDR_AT);
PLACED(struct sqe, remote_addr, RNIC_SQE_REMOTE_ADDR_AT);
PLACED(struct sqe, remote_addr, RNIC_SQE_UD_FLOW_LABEL_AT);
PLACED(struct sqe, length, RNIC_SQE_LENGTH_AT);
PLACED(struct sqe, lkey, RNIC_SQE_LKEY_AT);
PLACED(struct sqe, rkey, RNIC_SQE_RKEY_AT);
PLACED(struct sqe, imm, RNIC_SQE_IMM_AT);
PLACED(struct sqe, atomic.swap_add, RNIC_SQE_ATOMIC_SWAP_ADD_AT);
PLACED(struct sqe, atomic.compare, RNIC_SQE_ATOMIC_COMPARE_AT);
PLACED(struct sqe, ud.dgid, RNIC_SQE_UD_DGID_AT);
PLACED(struct sqe, ud.dqpn_hop, RNIC_SQE_UD_DQPN_AT);
PLACED(struct sqe, ud.qkey, RNIC_SQE_UD_QKEY_AT);
PLACED(struct sqe, local_addr, RNIC_SQE_BIND_ACCESS_AT);
PLACED(struct sqe, remote_addr, RNIC_SQE_BIND_START_AT);
PLACED(struct sqe, lkey, RNIC_SQE_BIND_LKEY_AT);
PLACED(struct sqe, rkey, RNIC_SQE_BIND_NEW_RKEY_AT);
PLACED(struct sqe, imm, RNIC_SQE_BIND_OLD_RKEY_AT);
PLACED(struct sqe, bind_length, RNIC_SQE_BIND_BIND_LENGTH_AT);
PLACED(struct sge, addr, RNIC_SGE_ADDR_AT);
PLACED(struct sge, length, RNIC_SGE_LENGTH_AT);
PLACED(struct sge, lkey, RNIC_SGE_LKEY_AT);
_Static_assert(sizeof(struct sqe) == RNIC_SQE_SIZE && sizeof(struct sge) == RNIC_SGE_SIZE, "descriptor sizes");
_Static_assert(sizeof(struct entry) == RNIC_CQE_SIZE && sizeof(struct entry) == RNIC_EQE_SIZE, "entry sizes");
#define CQE_WORD(field) (RNIC_CQE_##field##_AT / 4)
#define EQE_WORD(field) (RNIC_EQE_##field##_AT / 4)

/* ---- objects */

struct ring_memory { /* shared with the NIC process */
	void *base;
	size_t bytes;
};

struct ring_region;
struct ring_piece;

struct ring_store { /* of a context */
	pthread_mutex_t lock;
	struct ring_region *regions;
	uint8_t *rest; /* of the newest region */
	size_t rest_bytes;
	unsigned next_log;
	struct ring_piece *free[64]; /* by the logarithm of their size */
};

struct entry_ring { /* a CQ or EQ on the consumer's side */
	struct ring_memory memory;
	struct entry *entries;
	uint32_t mask, head, phase;
};

struct event_queue {
	struct entry_ring ring;
	uint32_t number, block;
	int fd; /* readable while entries wait */
	pthread_mutex_t lock;
	struct driver_event_queue fired; /* where the engine runs here */
};

struct rnic_device {
	struct ibv_device verbs;
	/* Other vendors' providers look at what follows an ibv_device to see whether it is theirs: zeros say no. */
	uint8_t not_theirs[512];
	int references;
	be64_t guid;
	union ibv_gid gid;
};

struct rnic_qp;
struct rnic_cq;
struct rnic_srq;

struct rnic_context {
	struct verbs_context verbs;
	struct rnic_context *next; /* list of all, for fork */
	int socket;
	bool dead; /* a parent's, in a forked child; or the NIC process is gone */
	pthread_mutex_t command_lock;
	uint32_t token;
	int nic_pid;
	pthread_mutex_t lock; /* tables and lists */
	uint8_t *window;
	size_t window_bytes;
	volatile _Atomic uint8_t *rung;
	uint8_t *blocks;
	_Atomic uint32_t *asleep;
	int wake_fd;
	uint8_t limits[RNIC_DEV_LIM_SIZE];
	struct event_queue async;
	struct rnic_qp **qps; /* by the low bits of the number */
	struct rnic_cq **cqs;
	struct rnic_srq **srqs;
	uint32_t qp_mask, cq_mask, srq_mask;
	struct copier *copier;
	struct ring_store rings;
	uint32_t yield_after; /* empty polls; the NIC process may want this core */
	bool yields_always; /* whichever thread polls */
	pthread_t opener; /* the thread that opened it */
	_Atomic bool shared; /* another one polls */
	struct bypass_driver *slot; /* the engine runs here; NULL where the NIC process takes everything */
};

struct rnic_pd {
	struct ibv_pd verbs;
	struct rnic_pd *parent; /* of a parent domain */
	_Atomic int users;
};

struct rnic_mr {
	struct ibv_mr verbs;
	uint64_t iova;
	unsigned int access;
	uint8_t *memory; /* where its first byte is in this process */
	void *map; /* of a region that has a descriptor's memory: what is mapped for it, else NULL */
	size_t map_bytes;
	bool null; /* no memory at all */
};

struct rnic_mw {
	struct ibv_mw verbs;
	uint32_t key, before; /* as bound last, and what stays in force should that bind fail */
};

struct rnic_ah {
	struct ibv_ah verbs;
	uint8_t dgid[16];
	uint32_t path; /* service level, traffic class, flow label */
	uint32_t hop_limit;
	uint8_t sgid_index;
};

struct rnic_channel {
	struct ibv_comp_channel verbs;
	struct event_queue eq;
};

struct rnic_cq {
	struct ibv_cq_ex verbs;
	pthread_mutex_t lock;
	struct entry_ring ring;
	uint32_t number, block;
	_Atomic uint32_t users; /* queue pairs, in whatever state: the device knows of those that are not in RESET alone */
	_Atomic uint32_t empty_rounds, events_reported;
	_Atomic uintptr_t yielded; /* the thread that did last */
	_Atomic uint32_t async_reported;
	struct entry current; /* between start_poll and end_poll */
	struct rnic_qp *current_qp;
	bool single_threaded;
	bool stamped; /* entries say when they were made */
};

struct receive_ring {
	struct ring_memory memory;
	uint32_t entries, stride, max_sge, limit, tail, posted, block;
	uint64_t *ids;
	bool *taken; /* a slot holds a request that has not completed */
	uint32_t *order; /* shared: behind the slots, their numbers in the order of posting; else NULL */
	uint32_t *free_slots; /* shared: a stack of those that hold nothing, entries - posted of them */
	pthread_mutex_t lock;
};

struct rnic_srq {
	struct ibv_srq verbs;
	struct receive_ring rq;
	uint32_t number;
	_Atomic uint32_t users; /* as of a completion queue */
	_Atomic uint32_t async_reported;
};

struct rnic_qp {
	struct ibv_qp_ex verbs;
	pthread_mutex_t lock; /* send queue */
	struct rnic_cq *send_cq, *recv_cq;
	struct rnic_srq *srq;
	struct ring_memory memory;
	struct sqe *sq;
	uint8_t *slab;
	uint32_t slab_bytes, entries, tail, block;
	_Atomic uint32_t head;
	uint64_t *ids;
	struct receive_ring rq;
	struct ibv_qp_cap cap;
	uint32_t number, service;
	bool created; /* the device knows it: it is not in RESET */
	_Atomic uint32_t state; /* of the device's, as it was last seen: it may have failed meanwhile */
	bool sq_sig_all, extended;
	uint32_t wr_tail; /* wr_*: the entry after the one being built */
	struct sqe *wr;
	struct rnic_mw **bound; /* the window that the bind at an index is about */
	bool wr_data, wr_binds; /* wr_*: its data is set; there are binds among what is being built */
	int wr_error;
	_Atomic uint32_t async_reported;
	struct group *groups;
};

static inline struct rnic_context *context_of(struct ibv_context *context)
{
	return (struct rnic_context *)(void *)((char *)context - offsetof(struct verbs_context, context));
}

/* Whether a GID is an IPv4 address: ::ffff:a.b.c.d, or for a group ff0e::ffff:a.b.c.d as well. */
static inline bool is_ipv4(const uint8_t *gid)
{
	static const uint8_t mapped[12] = { [10] = 0xFF, [11] = 0xFF };
	static const uint8_t mapped_group[12] = { 0xFF, 0x0E, [10] = 0xFF, [11] = 0xFF };

	return memcmp(gid, mapped, sizeof mapped) == 0 ||
	       (memcmp(gid, mapped_group, sizeof mapped_group) == 0 && gid[12] >> 4 == 0xE);
}

/* ---- nic.c: the NIC process */

int nic_list(int socket, struct rnic_device ***list);
int nic_open(struct rnic_context *context, const char *name);
void nic_close(struct rnic_context *context);
struct command {
	uint16_t op, op_modifier;
	uint32_t in_modifier;
	const void *inbox;
	uint32_t inbox_bytes;
	void *outbox;
	uint32_t outbox_bytes;
	uint64_t out_param; /* of the answer */
};

int nic_commands(struct rnic_context *context, struct command *list, size_t count, size_t *done);
int nic_command(struct rnic_context *context, uint16_t op, uint16_t op_modifier, uint32_t in_modifier,
		const void *inbox, uint32_t inbox_bytes, void *outbox, uint32_t outbox_bytes, uint64_t *out_param);
int nic_vector(struct rnic_context *context, uint32_t vector);
bool nic_gone(struct rnic_context *context);
int nic_allocate(struct rnic_context *context, uint32_t kind, uint32_t *number);
void nic_free(struct rnic_context *context, uint32_t kind, uint32_t number);
int nic_allocate_queue(struct rnic_context *context, uint32_t kind, uint32_t *number, uint32_t *block);
void nic_free_queue(struct rnic_context *context, uint32_t kind, uint32_t number, uint32_t block);
int nic_share(struct rnic_context *context, void *base, size_t bytes, int fd);
void nic_ring(struct rnic_context *context, uint32_t number, uint32_t block);
void complain(const char *format, ...) __attribute__((format(printf, 1, 2)));
int fail(int error) __attribute__((cold)); /* sets errno; returns it */
void *fail_null(int error) __attribute__((cold));

static inline _Atomic uint32_t *reg(const struct rnic_context *context, uint32_t block, uint32_t offset)
{
	return (_Atomic uint32_t *)(void *)(context->blocks + ((size_t)block << RNIC_REG_BLOCK_SHIFT) + offset);
}

static inline void reg_store(const struct rnic_context *context, uint32_t block, uint32_t offset, uint32_t value)
{
	atomic_store_explicit(reg(context, block, offset), value, memory_order_release);
}

/* ---- rings.c */

void rings_open(struct rnic_context *context);
void rings_close(struct rnic_context *context);
int ring_map(struct rnic_context *context, struct ring_memory *memory, size_t bytes);
void ring_unmap(struct rnic_context *context, struct ring_memory *memory);

/* ---- copier.c: copies for a NIC process that may not reach this program's memory */

int copier_start(struct rnic_context *context, int *peer, uint32_t *number);
void copier_stop(struct rnic_context *context);
void copier_forget(struct rnic_context *context);

/* ---- events.c */

int entry_ring_map(struct rnic_context *context, struct entry_ring *ring, uint32_t log_entries);
bool entry_ring_pop(struct entry_ring *ring, struct entry *entry);
int event_queue_open(struct rnic_context *context, struct event_queue *eq);
void event_queue_close(struct rnic_context *context, struct event_queue *eq);
bool event_waits(struct event_queue *eq);
uint32_t event_queue_purge(struct rnic_context *context, struct event_queue *eq, uint32_t number, const uint32_t *types,
			   size_t count);

/* ---- cq.c, qp.c, srq.c, post.c */

int rnic_poll_cq(struct ibv_cq *verbs, int count, struct ibv_wc *wc);
int rnic_req_notify_cq(struct ibv_cq *verbs, int solicited_only);
struct ibv_cq_ex *rnic_create_cq_ex(struct ibv_context *verbs, struct ibv_cq_init_attr_ex *attr);
void cq_forget(struct rnic_cq *cq, struct rnic_qp *qp);
int receive_ring_map(struct rnic_context *context, struct receive_ring *rq, uint32_t max_wr, uint32_t max_sge,
		     bool shared);
void receive_ring_reset(struct receive_ring *rq);
void receive_ring_unmap(struct rnic_context *context, struct receive_ring *rq);
uint64_t receive_ring_take(struct receive_ring *rq, uint32_t index);
int receive_ring_post(struct rnic_context *context, struct receive_ring *rq, struct ibv_recv_wr *wr,
		      struct ibv_recv_wr **bad);
struct ibv_srq *rnic_create_srq_ex(struct ibv_context *verbs, struct ibv_srq_init_attr_ex *attr);
int rnic_get_srq_num(struct ibv_srq *verbs, uint32_t *number);
int rnic_post_srq_recv(struct ibv_srq *verbs, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);
void *rnic_open_xrcd(struct ibv_context *verbs, void *attr);
struct ibv_qp *rnic_create_qp_ex(struct ibv_context *verbs, struct ibv_qp_init_attr_ex *attr);
int rnic_post_send(struct ibv_qp *verbs, struct ibv_send_wr *wr, struct ibv_send_wr **bad);
int rnic_post_recv(struct ibv_qp *verbs, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);
void qp_offer_wr(struct rnic_qp *qp, uint64_t operations);

/* ---- memory.c, ah.c, device.c */

struct ibv_mw *rnic_alloc_mw(struct ibv_pd *pd, int type);
int rnic_bind_mw(struct ibv_qp *qp, struct ibv_mw *mw, struct ibv_mw_bind *bind);
int rnic_dealloc_mw(struct ibv_mw *mw);
struct ibv_pd *rnic_alloc_parent_domain(struct ibv_context *verbs, struct ibv_parent_domain_init_attr *attr);
struct ibv_td *rnic_alloc_td(struct ibv_context *verbs, void *attr);
int rnic_dealloc_td(struct ibv_td *td);
int rnic_query_port(struct ibv_context *verbs, uint8_t port, struct ibv_port_attr *attr, size_t bytes);
struct ibv_mr *rnic_alloc_null_mr(struct ibv_pd *pd);
uint64_t device_clock(void);
int rnic_query_rt_values(struct ibv_context *verbs, struct ibv_values_ex *values);
int rnic_query_device_ex(struct ibv_context *verbs, const struct ibv_query_device_ex_input *input,
			 struct ibv_device_attr_ex *attr, size_t bytes);

#endif
