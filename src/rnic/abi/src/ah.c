/* Address handles. */
#include "ah.h"

#include <arpa/inet.h>
#include <stdlib.h>
#include <string.h>

#include "compiler.h"
#include "context.h"
#include "errors.h"
#include "gid.h"
#include "pd.h"
#include "rnic_reasons.h"

static const char create_verb[] = "ibv_create_ah";

/* Return whether packets can be sent from an entry of the GID table: not from a link-local address that is not the device's (spec/gids.py). */
static bool gid_is_own(const struct rnic_context *context, uint32_t index)
{
	const uint8_t *gid = gid_at(context, index);

	return !gid_is_link_local(gid) || memcmp(gid, own_gid(context), 16) == 0;
}

/* RoCE has no local routes: a handle needs a GID, and one of the port's IP version (Annex A17, 17.4.4). */
static int check_attr(const struct rnic_context *context, const struct ibv_ah_attr *attr)
{
	static const union ibv_gid none;
	uint32_t gids = dev_lim(context, RNIC_DEV_LIM_GID_COUNT);
	bool zero = memcmp(attr->grh.dgid.raw, none.raw, 16) == 0;
	char text[INET6_ADDRSTRLEN] = "";

	if (!attr->is_global)
		return why_no_grh(EINVAL, create_verb);
	if (attr->port_num != 1)
		return why_port_number(EINVAL, create_verb, attr->port_num);
	if (attr->grh.sgid_index >= gids)
		return why_gid_index(EINVAL, create_verb, attr->grh.sgid_index, gids - 1);
	if (gid_is_v1(context, attr->grh.sgid_index))
		return why_gid_type(EINVAL, create_verb, attr->grh.sgid_index, own_gid_index(context));
	if (!gid_is_own(context, attr->grh.sgid_index))
		return why_gid_elsewhere(EINVAL, create_verb, attr->grh.sgid_index, own_gid_index(context));
	if (!zero && gid_is_v4mapped(attr->grh.dgid.raw) == gid_is_v4mapped(own_gid(context)))
		return 0;
	inet_ntop(AF_INET6, attr->grh.dgid.raw, text, sizeof text);
	return why_peer_gid(EINVAL, create_verb, text, zero ? "zero" : "not of this port's IP version");
}

EXPORT struct ibv_ah *ibv_create_ah(struct ibv_pd *pd, struct ibv_ah_attr *attr)
{
	struct rnic_context *context = context_of(pd->context);
	struct rnic_ah *ah;

	if (check_attr(context, attr))
		return fail_null(EINVAL);
	ah = calloc(1, sizeof *ah);
	if (!ah)
		return NULL;
	ah->verbs.context = pd->context;
	ah->verbs.pd = pd;
	memcpy(ah->dgid, attr->grh.dgid.raw, 16);
	ah->path = (attr->sl & 0xFu) << 28 | (uint32_t)attr->grh.traffic_class << 20 | (attr->grh.flow_label & 0xFFFFF);
	ah->hop_limit = attr->grh.hop_limit;
	ah->sgid_index = attr->grh.sgid_index;
	((struct rnic_pd *)pd)->users++;
	return &ah->verbs;
}

EXPORT int ibv_destroy_ah(struct ibv_ah *verbs)
{
	((struct rnic_pd *)verbs->pd)->users--;
	free(verbs);
	return 0;
}

enum { IPV4_AT = 20, IPV4_SOURCE_AT = 12, IPV4_DESTINATION_AT = 16, IPV4_TOS_AT = 1, REPLY_HOPS = 255 };

/* Read the sender from the 40 bytes before a datagram: an IPv6 header, or an IPv4 header in the last 20 (Annex A17,
 * 17.4.5.2). The family of the device's address decides. The bytes alone do not tell: an IPv6 address may look like an
 * IPv4 header. */
EXPORT int ibv_init_ah_from_wc(struct ibv_context *verbs, uint8_t port, struct ibv_wc *wc, struct ibv_grh *grh,
			       struct ibv_ah_attr *attr)
{
	struct rnic_context *context = context_of(verbs);
	const uint8_t *own = own_gid(context), *ip = (const uint8_t *)grh + IPV4_AT;
	union ibv_gid to = { .raw = { 0 } };

	memset(attr, 0, sizeof *attr);
	attr->port_num = port;
	attr->grh.sgid_index = (uint8_t)own_gid_index(context);
	if (!(wc->wc_flags & IBV_WC_GRH)) {
		errno = why_bad_value(EINVAL, "ibv_init_ah_from_wc", "a completion without IBV_WC_GRH");
		return -1;
	}
	attr->is_global = 1;
	attr->grh.hop_limit = REPLY_HOPS;
	if (gid_is_v4mapped(own)) {
		attr->grh.dgid.raw[10] = attr->grh.dgid.raw[11] = to.raw[10] = to.raw[11] = 0xFF;
		memcpy(attr->grh.dgid.raw + 12, ip + IPV4_SOURCE_AT, 4);
		memcpy(to.raw + 12, ip + IPV4_DESTINATION_AT, 4);
		attr->grh.traffic_class = ip[IPV4_TOS_AT];
	} else {
		uint32_t first = ntohl(grh->version_tclass_flow);

		attr->grh.dgid = grh->sgid;
		to = grh->dgid;
		attr->grh.traffic_class = (uint8_t)(first >> 20);
		attr->grh.flow_label = first & 0xFFFFF;
	}
	if (memcmp(own, to.raw, 16) != 0 && to.raw[0] != 0xFF && (to.raw[12] & 0xF0) != 0xE0) {
		errno = why_bad_value(EINVAL, "ibv_init_ah_from_wc",
				      "a GRH whose destination is neither this port's GID nor a group");
		return -1;
	}
	return 0;
}

EXPORT struct ibv_ah *ibv_create_ah_from_wc(struct ibv_pd *pd, struct ibv_wc *wc, struct ibv_grh *grh, uint8_t port)
{
	struct ibv_ah_attr attr;

	return ibv_init_ah_from_wc(pd->context, port, wc, grh, &attr) ? NULL : ibv_create_ah(pd, &attr);
}
