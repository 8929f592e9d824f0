/* What comes while a poll yields is what that poll finds: the program waits in its own sched_yield until a WRITE is done. */
#include "itself.h"

static struct ibv_qp *qp;
static struct ibv_mr *mr;
static struct ibv_comp_channel *channel;
static char memory[128];
static int armed, yielded;

/* Called by the library between its two looks. */
int sched_yield(void)
{
	if (!armed)
		return 0;
	armed = 0;
	yielded++;
	CHECK(!ibv_req_notify_cq(qp->send_cq, 0));
	write_to_itself(qp, mr);
	CHECK(is_readable(channel->fd, 10000));
	return 0;
}

/* One poll, of either kind: 1 if it finds the WRITE. */
static int poll_once(struct ibv_cq *cq, int extended)
{
	struct ibv_poll_cq_attr none = { 0 };
	struct ibv_wc wc = { 0 };
	int found;

	if (!extended) {
		found = ibv_poll_cq(cq, 1, &wc);
		CHECK(found < 1 || (wc.wr_id == 7 && wc.status == IBV_WC_SUCCESS));
		return found;
	}
	found = !ibv_start_poll((struct ibv_cq_ex *)cq, &none);
	if (found) {
		CHECK(((struct ibv_cq_ex *)cq)->wr_id == 7 && ((struct ibv_cq_ex *)cq)->status == IBV_WC_SUCCESS);
		ibv_end_poll((struct ibv_cq_ex *)cq);
	}
	return found;
}

int main(void)
{
	struct ibv_context *context = open_first();
	struct ibv_cq_init_attr_ex wanted = { .cqe = 4 };
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_cq *cq;
	int found[2];

	CHECK(pd && (channel = ibv_create_comp_channel(context)));
	wanted.channel = channel;
	CHECK((cq = (struct ibv_cq *)ibv_create_cq_ex(context, &wanted)));
	CHECK((mr = ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE)));
	qp = make_qp(pd, cq);
	connect_to_itself(qp);
	for (int extended = 0; extended < 2; extended++) {
		struct ibv_cq *of;
		void *with;

		armed = 1;
		while (armed)
			found[extended] = poll_once(cq, extended);
		CHECK(!ibv_get_cq_event(channel, &of, &with));
		ibv_ack_cq_events(of, 1);
		while (!found[extended] && !poll_once(cq, extended))
			;
	}
	printf("%d yields, found by ibv_poll_cq: %d, by ibv_start_poll: %d\n", yielded, found[0], found[1]);
	return 0;
}
