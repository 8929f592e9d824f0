/* Completion queues: 32-byte entries with a phase bit (rings/cqe.py). */
#ifndef RNIC_ENGINE_COMPLETION_H
#define RNIC_ENGINE_COMPLETION_H

#include "engine.h"

struct completion {
	uint32_t index, status, length, word3, wqe_id, requested, qpn, imm;
};

/* Room for entries, looked up once. */
struct cq_room {
	struct engine_cq *cq;
	uint64_t left;
};
/* Reserve `count` entries. Returns 0, or -1 if they do not fit, the CQ is inaccessible, or several may raise events. */
int engine_cq_reserve(struct engine_cq *cq, uint64_t count, struct cq_room *room);
/* Store a reserved entry. Returns 1 if the CQ was armed for it. */
int engine_cq_push(struct cq_room *room, const struct completion *entry);

#endif
