/* For programs that are linked with the sources of libibverbs themselves, and so with nothing that could hide them. */
#ifndef DIRECT_H
#define DIRECT_H

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cmd.h"
#include "compiler.h"
#include "context.h"
#include "mw.h"
#include "qp.h"

extern struct ibv_device **ibv_get_device_list(int *);
extern void ibv_free_device_list(struct ibv_device **);
extern struct ibv_context *ibv_open_device(struct ibv_device *);
extern int ibv_close_device(struct ibv_context *);
extern struct ibv_pd *ibv_alloc_pd(struct ibv_context *);
extern int ibv_dealloc_pd(struct ibv_pd *);
extern struct ibv_mr *ibv_reg_mr(struct ibv_pd *, void *, size_t, int);
extern int ibv_dereg_mr(struct ibv_mr *);
extern struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *);
extern int ibv_destroy_comp_channel(struct ibv_comp_channel *);
extern struct ibv_cq *ibv_create_cq(struct ibv_context *, int, void *, struct ibv_comp_channel *, int);
extern int ibv_resize_cq(struct ibv_cq *, int);
extern int ibv_destroy_cq(struct ibv_cq *);
extern int ibv_get_cq_event(struct ibv_comp_channel *, struct ibv_cq **, void **);
extern void ibv_ack_cq_events(struct ibv_cq *, unsigned int);
extern struct ibv_qp *ibv_create_qp(struct ibv_pd *, struct ibv_qp_init_attr *);
extern int ibv_modify_qp(struct ibv_qp *, struct ibv_qp_attr *, int);
extern int ibv_destroy_qp(struct ibv_qp *);
extern int ibv_query_gid(struct ibv_context *, uint8_t, int, union ibv_gid *);
extern struct ibv_srq *ibv_create_srq(struct ibv_pd *, struct ibv_srq_init_attr *);
extern int ibv_destroy_srq(struct ibv_srq *);

#define CHECK(what) \
	do { \
		if (!(what)) \
			failed(__LINE__, #what); \
	} while (0)

static const char *me; /* where there are several */
static void (*on_failure)(void); /* may end the program, where this is as it should be */

static _Noreturn void failed(int line, const char *what)
{
	int error = errno;

	if (on_failure)
		on_failure();
	fprintf(stderr, "%s%sline %d: %s (errno %d)\n", me ? me : "", me ? ", " : "", line, what, error);
	exit(1);
}

struct way {
	union ibv_gid gid;
	uint8_t timeout, retries, reads;
};

/* From RESET to RTS, with all rights. */
static void to_rts(struct ibv_qp *qp, uint32_t peer, const struct way *way)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = 15 };

	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	attr = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTR,
		.path_mtu = 3,
		.dest_qp_num = peer,
		.max_dest_rd_atomic = way->reads,
		.min_rnr_timer = 12,
		.ah_attr = { .is_global = 1, .port_num = 1, .grh = { .dgid = way->gid, .hop_limit = 64 } }
	};
	CHECK(!ibv_modify_qp(qp, &attr,
			     IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
				     IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS,
				     .timeout = way->timeout,
				     .retry_cnt = way->retries,
				     .rnr_retry = 7,
				     .max_rd_atomic = way->reads };
	CHECK(!ibv_modify_qp(qp, &attr,
			     IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
				     IBV_QP_MAX_QP_RD_ATOMIC));
}
#endif
