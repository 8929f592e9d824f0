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
#define CRC_BLOCK 16u /* what is long goes quickest in such steps */
#define LONG_LEAST 64u
#define PSN_WORD_AT 8u

static const uint8_t zeros[BTH_BYTES];

/* CRC state behind ones and the masked headers of a packet of `length` bytes. */
static uint32_t headers(engine_crc crc, const struct engine_flow *flow, uint64_t length, uint32_t ident, uint32_t frag)
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

/* The same, kept for those that come one after the other in bursts of equal packets, where `ident` is known then; or NULL. */
static const struct engine_icrc_cache *kept(const struct engine_shared *port, const struct engine_flow *flow, uint64_t length,
				       uint32_t ident, uint32_t frag)
{
	struct engine_icrc_cache *heads = port->heads;

	if (!heads || ident >= MAX_IDENTS || frag != DONT_FRAGMENT)
		return NULL;
	heads += (length >> 2 ^ length >> 5 ^ flow->source[flow->address_bytes - 1] ^ flow->destination_port) % ENGINE_ICRC_CACHE;
	if (heads->length != length || memcmp(&heads->flow, flow, sizeof *flow)) {
		heads->flow = *flow;
		heads->length = length;
		heads->known = 0;
	}
	if (!(heads->known >> ident & 1)) {
		heads->states[ident] = headers(port->crc, flow, length, ident, frag);
		heads->behind[ident] = port->crc(heads->states[ident], zeros, BTH_BYTES);
		heads->known |= (uint64_t)1 << ident;
	}
	return heads;
}

static uint32_t headers_again(const struct engine_shared *port, const struct engine_flow *flow, uint64_t length,
			      uint32_t ident, uint32_t frag)
{
	const struct engine_icrc_cache *heads = kept(port, flow, length, ident, frag);
	return heads ? heads->states[ident] : headers(port->crc, flow, length, ident, frag);
}

/* On from a state over what begins with a BTH, of which five bytes at least, as if one of them were masked. */
static uint32_t begin(engine_crc crc, uint32_t state, const uint8_t *bth, uint64_t length)
{
	return crc(state ^ engine_crc32_fifth(bth[MASKED_AT] ^ 0xFF), bth, length);
}

uint32_t engine_icrc_begin(engine_crc crc, const struct engine_flow *flow, uint64_t length, uint32_t ident, uint32_t frag,
		    const uint8_t *bth, uint64_t covered)
{
	return begin(crc, headers(crc, flow, length, ident, frag), bth, covered);
}

uint32_t engine_icrc(const struct engine_shared *port, const struct engine_flow *flow, const uint8_t *packet, uint64_t length,
		     uint32_t ident, uint32_t frag, uint64_t covered)
{
	uint64_t first = covered < LONG_LEAST ? covered : PSN_WORD_AT + (covered - PSN_WORD_AT) % CRC_BLOCK;
	uint32_t state = begin(port->crc, headers_again(port, flow, length, ident, frag), packet, first);
	return covered > first ? port->crc(state, packet + first, covered - first) : state;
}

/* A CRC is affine: the XOR of those that zeros, the state and the bytes by themselves lead to is the one that they lead to
 * together. So of packets that differ in ident and PSN alone each takes a look at what is kept and a CRC of four bytes. */
struct engine_alike engine_icrc_alike(const struct engine_shared *port, const struct engine_flow *flow, const uint8_t *packet,
				      uint64_t length, uint32_t frag)
{
	uint32_t first = begin(port->crc, 0, packet, PSN_WORD_AT), nothing = port->crc(0, zeros, BTH_BYTES - PSN_WORD_AT);
	uint32_t common = port->crc(0, zeros, BTH_BYTES) ^ port->crc(first, zeros, BTH_BYTES - PSN_WORD_AT) ^ nothing;

	return (struct engine_alike){ port, flow, kept(port, flow, length, 0, frag), length, frag, common };
}

uint32_t engine_icrc_of_alike(const struct engine_alike *alike, const uint8_t *packet, uint32_t ident)
{
	const struct engine_shared *port = alike->shared;
	const struct engine_icrc_cache *heads = alike->heads;

	if (!heads || ident >= MAX_IDENTS || !(heads->known >> ident & 1))
		heads = kept(port, alike->flow, alike->length, ident, alike->frag);
	if (!heads)
		return begin(port->crc, headers(port->crc, alike->flow, alike->length, ident, alike->frag), packet, BTH_BYTES);
	return heads->behind[ident] ^ alike->common ^ engine_crc32_word(packet + PSN_WORD_AT);
}

int engine_icrc_check(const struct engine_shared *port, const struct engine_flow *flow, const uint8_t *packet, uint64_t length,
		      uint32_t ident, uint32_t frag)
{
	uint64_t covered = length - ICRC_BYTES;
	return engine_icrc(port, flow, packet, length, ident, frag, covered) == le_load(packet + covered, ICRC_BYTES);
}
