/* Completion queues. */
#ifndef RNIC_CQ_H
#define RNIC_CQ_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "entry_ring.h"
#include "verbs_abi.h"

struct rnic_qp;

struct rnic_cq {
	struct ibv_cq_ex verbs;
	pthread_mutex_t lock;
	struct entry_ring ring;
	uint32_t number, block;
	_Atomic uint32_t users; /* queue pairs in any state: the device does not know of those in RESET */
	_Atomic uint32_t empty_rounds, events_reported;
	_Atomic uintptr_t yielded; /* the thread that yielded last */
	_Atomic uint32_t async_reported;
	struct entry current; /* between start_poll and end_poll */
	bool single_threaded; /* `lock` is not taken */
	bool stamped; /* entries carry timestamps */
	/* With rules of a fault script (on_command.c): a completion that is held back until a time, 0 for none; the
	 * functions that the rules' call; entries since start_poll. */
	struct ibv_wc late;
	_Atomic uint64_t late_until;
	int (*start_poll)(struct ibv_cq_ex *verbs, struct ibv_poll_cq_attr *attr);
	int (*next_poll)(struct ibv_cq_ex *verbs);
	int polled;
};

int rnic_poll_cq(struct ibv_cq *verbs, int count, struct ibv_wc *wc);
int rnic_req_notify_cq(struct ibv_cq *verbs, int solicited_only);
struct ibv_cq_ex *rnic_create_cq_ex(struct ibv_context *verbs, struct ibv_cq_init_attr_ex *attr);
void cq_clean(struct rnic_cq *cq, struct rnic_qp *qp);

#endif
