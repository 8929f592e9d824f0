/* The invariant CRC of a packet (Annex A17, 17.9.3): over ones, the masked IP and UDP headers, and the masked BTH. */
#include "queue_pair/icrc.h"

#include "queue_pair/byteorder.h"
#include "queue_pair/crc32.h"

#define ONES 8u
#define IPV4_BYTES 20u
#define IPV6_BYTES 40u
#define UDP_BYTES 8u
#define UDP_PROTOCOL 17u
#define MASKED_AT 4u /* the byte of FECN and BECN, the fifth of the BTH */
#define CRC_BLOCK 16u /* the CRC is fastest over multiples of this */
#define LONG_LEAST 64u
#define PSN_WORD_AT 8u

static const uint8_t zeros[BTH_BYTES];

/* Return the CRC state after the ones and the masked headers of a packet of `length` bytes. */
static uint32_t masked_headers(engine_crc crc, const struct engine_flow *flow, uint64_t length, uint32_t ident,
			       uint32_t frag)
{
	uint8_t head[ONES + IPV6_BYTES + UDP_BYTES];
	uint8_t *at = head + ONES;
	memset(head, 0xFF, sizeof head);
	if (flow->address_bytes == 4) {
		at[0] = 0x45;
		be_store(at + 2, 2, length + UDP_BYTES + IPV4_BYTES);
		be_store(at + 4, 2, ident);
		be_store(at + 6, 2, frag);
		at[9] = UDP_PROTOCOL;
		memcpy(at + 12, flow->source, 4);
		memcpy(at + 16, flow->destination, 4);
		at += IPV4_BYTES;
	} else {
		at[0] = 0x6F;
		be_store(at + 4, 2, length + UDP_BYTES);
		at[6] = UDP_PROTOCOL;
		memcpy(at + 8, flow->source, 16);
		memcpy(at + 24, flow->destination, 16);
		at += IPV6_BYTES;
	}
	be_store(at, 2, flow->source_port);
	be_store(at + 2, 2, flow->destination_port);
	be_store(at + 4, 2, length + UDP_BYTES);
	at += UDP_BYTES;
	return crc(0, head, (uint64_t)(at - head));
}

/* Return the cache entry of such packets with the state for `ident` in it, or NULL. */
static const struct engine_icrc_cache *cached_states(const struct engine_shared *shared, const struct engine_flow *flow,
						     uint64_t length, uint32_t ident, uint32_t frag)
{
	struct engine_icrc_cache *cache = shared->icrc_cache;

	if (!cache || ident >= MAX_IDENTS || frag != DONT_FRAGMENT)
		return NULL;
	cache += (length >> 2 ^ length >> 5 ^ flow->source[flow->address_bytes - 1] ^ flow->destination_port) %
		 ENGINE_ICRC_CACHE;
	if (cache->length != length || memcmp(&cache->flow, flow, sizeof *flow)) {
		cache->flow = *flow;
		cache->length = length;
		cache->known = 0;
	}
	if (!(cache->known >> ident & 1)) {
		cache->states[ident] = masked_headers(shared->crc, flow, length, ident, frag);
		cache->behind[ident] = shared->crc(cache->states[ident], zeros, BTH_BYTES);
		cache->known |= (uint64_t)1 << ident;
	}
	return cache;
}

static uint32_t cached_headers(const struct engine_shared *shared, const struct engine_flow *flow, uint64_t length,
			       uint32_t ident, uint32_t frag)
{
	const struct engine_icrc_cache *cache = cached_states(shared, flow, length, ident, frag);
	return cache ? cache->states[ident] : masked_headers(shared->crc, flow, length, ident, frag);
}

/* Continue a state over data that starts with a BTH, at least five bytes, as if the fifth were masked. */
static uint32_t crc_from_bth(engine_crc crc, uint32_t state, const uint8_t *bth, uint64_t length)
{
	return crc(state ^ engine_crc32_fifth(bth[MASKED_AT] ^ 0xFF), bth, length);
}

uint32_t engine_icrc_begin(engine_crc crc, const struct engine_flow *flow, uint64_t length, uint32_t ident,
			   uint32_t frag, const uint8_t *bth, uint64_t covered)
{
	return crc_from_bth(crc, masked_headers(crc, flow, length, ident, frag), bth, covered);
}

uint32_t engine_icrc(const struct engine_shared *shared, const struct engine_flow *flow, const uint8_t *packet,
		     uint64_t length, uint32_t ident, uint32_t frag, uint64_t covered)
{
	uint64_t first = covered < LONG_LEAST ? covered : PSN_WORD_AT + (covered - PSN_WORD_AT) % CRC_BLOCK;
	uint32_t state = crc_from_bth(shared->crc, cached_headers(shared, flow, length, ident, frag), packet, first);
	return covered > first ? shared->crc(state, packet + first, covered - first) : state;
}

/* A CRC is affine: the CRC of state and data is the XOR of the CRC of zeros, of the state alone and of the data alone.
 * So packets that differ only in ident and PSN need one lookup and a CRC of four bytes each. */
struct engine_alike engine_icrc_alike(const struct engine_shared *shared, const struct engine_flow *flow,
				      const uint8_t *packet, uint64_t length, uint32_t frag)
{
	uint32_t first = crc_from_bth(shared->crc, 0, packet, PSN_WORD_AT),
		 nothing = shared->crc(0, zeros, BTH_BYTES - PSN_WORD_AT);
	uint32_t common = shared->crc(0, zeros, BTH_BYTES) ^ shared->crc(first, zeros, BTH_BYTES - PSN_WORD_AT) ^
			  nothing;

	return (struct engine_alike){
		shared, flow, cached_states(shared, flow, length, 0, frag), length, frag, common
	};
}

uint32_t engine_icrc_of_alike(const struct engine_alike *alike, const uint8_t *packet, uint32_t ident)
{
	const struct engine_shared *shared = alike->shared;
	const struct engine_icrc_cache *cache = alike->cache;

	if (!cache || ident >= MAX_IDENTS || !(cache->known >> ident & 1))
		cache = cached_states(shared, alike->flow, alike->length, ident, alike->frag);
	if (!cache)
		return crc_from_bth(shared->crc,
				    masked_headers(shared->crc, alike->flow, alike->length, ident, alike->frag), packet,
				    BTH_BYTES);
	return cache->behind[ident] ^ alike->common ^ engine_crc32_word(packet + PSN_WORD_AT);
}

int engine_icrc_check(const struct engine_shared *shared, const struct engine_flow *flow, const uint8_t *packet,
		      uint64_t length, uint32_t ident, uint32_t frag)
{
	uint64_t covered = length - ICRC_BYTES;
	return engine_icrc(shared, flow, packet, length, ident, frag, covered) == le_load(packet + covered, ICRC_BYTES);
}
