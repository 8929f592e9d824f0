/* The invariant CRC of a packet (Annex A17, 17.9.3; wire/flow.py). */
#ifndef RNIC_ENGINE_ICRC_H
#define RNIC_ENGINE_ICRC_H

#include "engine.h"

#define DONT_FRAGMENT 0x4000u
/* Segments of one send whose idents count from 0: wire/flow.py MAX_IDENTS */
#define MAX_IDENTS 64u

/* Return the CRC state after the masked headers of a packet of `length` bytes, BTH to ICRC, and its first `covered`
 * bytes, at least eight. */
uint32_t engine_icrc_begin(engine_crc crc, const struct engine_flow *flow, uint64_t length, uint32_t ident,
			   uint32_t frag, const uint8_t *bth, uint64_t covered);
/* Return the same, with a NIC's CRC and its cache. */
uint32_t engine_icrc(const struct engine_shared *shared, const struct engine_flow *flow, const uint8_t *packet,
		     uint64_t length, uint32_t ident, uint32_t frag, uint64_t covered);
/* Return whether a whole packet carries the right ICRC. */
int engine_icrc_check(const struct engine_shared *shared, const struct engine_flow *flow, const uint8_t *packet,
		      uint64_t length, uint32_t ident, uint32_t frag);

/* Common state of packets that differ only in ident and in the last word of their BTH. */
struct engine_alike {
	const struct engine_shared *shared;
	const struct engine_flow *flow;
	const struct engine_icrc_cache *cache; /* their entry in the cache, or NULL */
	uint64_t length;
	uint32_t frag, common;
};
/* Prepare the common state; `packet` is the first packet. */
struct engine_alike engine_icrc_alike(const struct engine_shared *shared, const struct engine_flow *flow,
				      const uint8_t *packet, uint64_t length, uint32_t frag);
/* Return the CRC state after the BTH of one of them. */
uint32_t engine_icrc_of_alike(const struct engine_alike *alike, const uint8_t *packet, uint32_t ident);

#endif
