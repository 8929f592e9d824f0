/* Endpoints: an ID, its addresses and its queue pair in one call. */
#include "rdmacm_id.h"

#include <errno.h>
#include <stdlib.h>

#include "compiler.h"
#include "errors.h"

EXPORT void rdma_destroy_ep(struct rdma_cm_id *id)
{
	if (id->qp)
		rdma_destroy_qp(id);
	if (id->srq)
		rdma_destroy_srq(id);
	rdma_destroy_id(id);
}

EXPORT int rdma_create_ep(struct rdma_cm_id **result, struct rdma_addrinfo *info, struct ibv_pd *pd,
			  struct ibv_qp_init_attr *attr)
{
	struct rdma_cm_id *id;
	struct cm_id *private;
	int error;

	if (cm_create_id(NULL, &id, NULL, info->ai_port_space, info->ai_qp_type))
		return -1;
	private = to_id(id);
	if (info->ai_flags & RAI_PASSIVE) {
		error = rdma_bind_addr(id, info->ai_src_addr);
		if (!error && attr) {
			private->qp_attr = malloc(sizeof *attr);
			if (private->qp_attr) {
				*private->qp_attr = *attr;
				private->qp_attr->qp_type = info->ai_qp_type;
			} else {
				error = rdma_seterrno(ENOMEM);
			}
		}
		if (!error && pd)
			id->pd = pd;
	} else {
		error = rdma_resolve_addr(id, info->ai_src_addr, info->ai_dst_addr, 2000);
		if (!error)
			error = rdma_resolve_route(id, 2000);
		if (!error && attr) {
			attr->qp_type = info->ai_qp_type;
			error = rdma_create_qp(id, pd, attr);
		}
	}
	if (error) {
		int why = errno;

		rdma_destroy_ep(id);
		return rdma_seterrno(why);
	}
	cm_drop_event(private);
	*result = id;
	return 0;
}

EXPORT int rdma_get_request(struct rdma_cm_id *listening, struct rdma_cm_id **result)
{
	struct cm_id *listener = to_id(listening);
	struct rdma_cm_event *event;
	struct rdma_cm_id *id;
	int error;

	if (!listener->own)
		return rdma_seterrno(EINVAL);
	cm_drop_event(listener);
	if (rdma_get_cm_event(listening->channel, &event))
		return -1;
	if (event->event != RDMA_CM_EVENT_CONNECT_REQUEST) {
		error = event->status < 0 ? -event->status : EINVAL;
		rdma_ack_cm_event(event);
		return rdma_seterrno(error);
	}
	id = event->id;
	error = rdma_migrate_id(id, NULL);
	if (!error && listener->qp_attr) {
		struct ibv_qp_init_attr attr = *listener->qp_attr;

		attr.qp_type = id->qp_type;
		error = rdma_create_qp(id, listening->pd, &attr);
	}
	if (error) {
		error = errno;
		rdma_ack_cm_event(event);
		rdma_destroy_ep(id);
		return rdma_seterrno(error);
	}
	id->event = event;
	*result = id;
	return 0;
}
