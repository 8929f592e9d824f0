/* Memory windows. */
#include "mw.h"

#include <stdlib.h>

#include "cmd.h"
#include "compiler.h"
#include "context.h"
#include "errors.h"
#include "pd.h"
#include "post.h"
#include "rnic_reasons.h"

/* Return the index of a key (rnic.mem.keys). */
static uint32_t key_index(uint32_t key)
{
	return key >> 16 | (key >> 8 & 0xFF) << 16;
}

struct ibv_mw *rnic_alloc_mw(struct ibv_pd *pd, int type)
{
	struct rnic_mw *mw;
	uint64_t key = 0;
	int error;

	if (type != IBV_MW_TYPE_1 && type != IBV_MW_TYPE_2)
		return fail_null(why_window_type(EINVAL, "ibv_alloc_mw", type, "use IBV_MW_TYPE_1 or IBV_MW_TYPE_2"));
	mw = calloc(1, sizeof *mw);
	if (!mw)
		return NULL;
	error = nic_command(context_of(pd->context), RNIC_CMD_ALLOC_MW, (uint16_t)type, pd->handle, NULL, 0, NULL, 0,
			    &key);
	if (error) {
		free(mw);
		return fail_null(error);
	}
	mw->verbs = (struct ibv_mw){ .context = pd->context,
				     .pd = pd,
				     .rkey = (uint32_t)key,
				     .handle = key_index((uint32_t)key),
				     .type = type };
	((struct rnic_pd *)pd)->users++;
	return &mw->verbs;
}

int rnic_bind_mw(struct ibv_qp *qp, struct ibv_mw *verbs, struct ibv_mw_bind *bind)
{
	struct ibv_send_wr wr = { .wr_id = bind->wr_id, .opcode = IBV_WR_BIND_MW, .send_flags = bind->send_flags },
			   *bad;
	int error;

	if (verbs->type != IBV_MW_TYPE_1)
		return fail(why_window_type(EINVAL, "ibv_bind_mw", verbs->type, "type 2 is bound by a work request"));
	if (bind->bind_info.mr && bind->bind_info.mr->pd != verbs->pd)
		return fail(why_key_domain(EPERM, "ibv_bind_mw", "key", bind->bind_info.mr->lkey));
	wr.bind_mw.mw = verbs;
	wr.bind_mw.rkey = (verbs->rkey & ~0xFFu) | ((verbs->rkey + 1) & 0xFF);
	wr.bind_mw.bind_info = bind->bind_info;
	error = rnic_post_send(qp, &wr, &bad);
	if (!error)
		verbs->rkey = wr.bind_mw.rkey;
	return error;
}

int rnic_dealloc_mw(struct ibv_mw *verbs)
{
	struct rnic_mw *mw = (struct rnic_mw *)verbs;
	struct rnic_context *context = context_of(verbs->context);
	int error = nic_command(context, RNIC_CMD_DEALLOC_MW, 0, verbs->handle, NULL, 0, NULL, 0, NULL);

	if (error && !context->dead)
		return fail(error);
	((struct rnic_pd *)verbs->pd)->users--;
	free(mw);
	return 0;
}
