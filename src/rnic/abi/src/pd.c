/* Protection domains. */
#include "pd.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cmd.h"
#include "compiler.h"
#include "context.h"
#include "errors.h"
#include "qp.h"
#include "rnic_reasons.h"
#include "srq.h"

EXPORT struct ibv_pd *ibv_alloc_pd(struct ibv_context *verbs)
{
	struct rnic_pd *pd = calloc(1, sizeof *pd);
	int error;

	if (!pd)
		return NULL;
	error = nic_allocate(context_of(verbs), RNIC_CMD_RES_PD, &pd->verbs.handle);
	if (error) {
		free(pd);
		return fail_null(error);
	}
	pd->verbs.context = verbs;
	return &pd->verbs;
}

/* Describe the users of a protection domain: their number, and the first queue pair or SRQ among them. */
static void name_users(struct rnic_pd *pd, char *text, size_t size)
{
	struct rnic_context *context = context_of(pd->verbs.context);
	int length = snprintf(text, size, "%u objects", (unsigned)pd->users);

	pthread_mutex_lock(&context->lock);
	for (uint32_t i = 0; i <= context->qp_mask; i++)
		if (context->qps[i] && context->qps[i]->verbs.qp_base.pd == &pd->verbs) {
			snprintf(text + length, size - (size_t)length, ", queue pair %#x among them",
				 context->qps[i]->number);
			goto out;
		}
	for (uint32_t i = 0; i <= context->srq_mask; i++)
		if (context->srqs[i] && context->srqs[i]->verbs.pd == &pd->verbs) {
			snprintf(text + length, size - (size_t)length, ", SRQ %#x among them",
				 context->srqs[i]->number);
			break;
		}
out:
	pthread_mutex_unlock(&context->lock);
}

EXPORT int ibv_dealloc_pd(struct ibv_pd *verbs)
{
	struct rnic_pd *pd = (struct rnic_pd *)verbs;

	if (pd->users && !context_of(verbs->context)->dead) {
		char users[80] = "";

		if (explaining)
			name_users(pd, users, sizeof users);
		return fail(why_in_use(EBUSY, "ibv_dealloc_pd", "protection domain", verbs->handle, users));
	}
	if (pd->parent)
		pd->parent->users--;
	else
		nic_free(context_of(verbs->context), RNIC_CMD_RES_PD, verbs->handle);
	free(pd);
	return 0;
}

/* Allocate a parent domain: its protection domain under another name, since no locks depend on a thread domain. */
struct ibv_pd *rnic_alloc_parent_domain(struct ibv_context *verbs, struct ibv_parent_domain_init_attr *attr)
{
	struct rnic_pd *pd;

	if (!attr->pd)
		return fail_null(EINVAL);
	if (attr->comp_mask & ~3u)
		return fail_null(EOPNOTSUPP);
	pd = calloc(1, sizeof *pd);
	if (!pd)
		return NULL;
	pd->verbs.context = verbs;
	pd->verbs.handle = attr->pd->handle;
	pd->parent = (struct rnic_pd *)attr->pd;
	pd->parent->users++;
	return &pd->verbs;
}

struct ibv_td *rnic_alloc_td(struct ibv_context *verbs, void *attr)
{
	struct ibv_td *td;
	uint32_t comp_mask;

	memcpy(&comp_mask, attr, sizeof comp_mask);
	if (comp_mask)
		return fail_null(EOPNOTSUPP);
	td = calloc(1, sizeof *td);
	if (td)
		td->context = verbs;
	return td;
}

int rnic_dealloc_td(struct ibv_td *td)
{
	free(td);
	return 0;
}
