/* Multicast: the device reads and writes a context's members of a group as a whole. */
#include "mcast.h"

#include <stdlib.h>
#include <string.h>

#include "cmd.h"
#include "compiler.h"
#include "context.h"
#include "errors.h"
#include "qp.h"
#include "rnic_reasons.h"

struct mcast_group {
	struct mcast_group *next;
	uint8_t gid[16];
};

static int change_membership(struct rnic_qp *qp, const uint8_t *gid, bool member)
{
	struct rnic_context *context = context_of(qp->verbs.qp_base.context);
	uint8_t mgm[RNIC_MGM_SIZE] = { 0 };
	uint8_t *members = mgm + RNIC_MGM_QPN0_AT;
	uint32_t count, found, max = dev_lim(context, RNIC_DEV_LIM_MAX_GROUP_QPS);
	const char *verb = member ? "ibv_attach_mcast" : "ibv_detach_mcast";
	int error;

	if (gid[0] != 0xFF && !(gid[10] == 0xFF && gid[11] == 0xFF && (gid[12] & 0xF0) == 0xE0))
		return why_bad_value(EINVAL, verb, "a GID that is no multicast group");
	pthread_mutex_lock(&context->lock);
	error = nic_command(context, RNIC_CMD_READ_MGM, 0, 0, gid, 16, mgm, sizeof mgm, NULL);
	if (error)
		goto out;
	count = (uint32_t)rnic_get_be(mgm, RNIC_MGM_COUNT);
	for (found = 0; found < count; found++)
		if (rnic_get_be(members + 4 * found, 0, 4, 0, 24) == qp->number)
			break;
	if (member && found == count) {
		if (count == max) {
			error = ENOMEM;
			goto out;
		}
		rnic_put_be(members + 4 * count++, 0, 4, 0, 24, qp->number);
	} else if (!member && found == count) {
		error = why_bad_value(EINVAL, verb, "a group that this queue pair has not joined");
		goto out;
	} else if (!member) {
		memmove(members + 4 * found, members + 4 * (found + 1), 4 * (count - found - 1));
		rnic_put_be(members + 4 * --count, 0, 4, 0, 24, 0);
	}
	rnic_put_be(mgm, RNIC_MGM_COUNT, count);
	memcpy(mgm + RNIC_MGM_MGID_AT, gid, 16);
	error = nic_command(context, RNIC_CMD_WRITE_MGM, 0, 0, mgm, sizeof mgm, NULL, 0, NULL);
out:
	pthread_mutex_unlock(&context->lock);
	return error;
}

EXPORT int ibv_attach_mcast(struct ibv_qp *verbs, const union ibv_gid *gid, uint16_t lid UNUSED)
{
	struct rnic_qp *qp = (struct rnic_qp *)verbs;
	struct mcast_group *group;
	int error;

	if (verbs->qp_type != IBV_QPT_UD)
		return fail(why_bad_value(EINVAL, "ibv_attach_mcast", "a queue pair that is not UD"));
	group = malloc(sizeof *group);
	if (!group)
		return fail(ENOMEM);
	error = change_membership(qp, gid->raw, true);
	if (error) {
		free(group);
		return fail(error);
	}
	memcpy(group->gid, gid->raw, 16);
	pthread_mutex_lock(&qp->lock);
	group->next = qp->groups;
	qp->groups = group;
	pthread_mutex_unlock(&qp->lock);
	return 0;
}

EXPORT int ibv_detach_mcast(struct ibv_qp *verbs, const union ibv_gid *gid, uint16_t lid UNUSED)
{
	struct rnic_qp *qp = (struct rnic_qp *)verbs;
	int error = change_membership(qp, gid->raw, false);

	if (error)
		return fail(error);
	pthread_mutex_lock(&qp->lock);
	for (struct mcast_group **at = &qp->groups; *at;) {
		struct mcast_group *group = *at;

		if (memcmp(group->gid, gid->raw, 16) == 0) {
			*at = group->next;
			free(group);
		} else {
			at = &group->next;
		}
	}
	pthread_mutex_unlock(&qp->lock);
	return 0;
}

void mcast_free(struct rnic_qp *qp)
{
	while (qp->groups) {
		struct mcast_group *group = qp->groups;

		qp->groups = group->next;
		free(group);
	}
}
