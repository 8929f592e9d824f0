/* The invariant CRC of a packet (Annex A17, 17.9.3): over ones, the masked IP and UDP headers, and the masked BTH. */
#include "parts.h"

#define ONES 8u
#define IPV4_BYTES 20u
#define IPV6_BYTES 40u
#define UDP_BYTES 8u
#define UDP_PROTOCOL 17u
#define BTH_PART 8u
#define MASKED_AT 4u /* the byte of FECN and BECN */

uint32_t engine_icrc_begin(engine_crc crc, const struct engine_flow *flow, uint64_t length, uint32_t ident, uint32_t frag,
		    const uint8_t *bth)
{
	uint8_t head[ONES + IPV6_BYTES + UDP_BYTES + BTH_PART];
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
	memcpy(at, bth, BTH_PART);
	at[MASKED_AT] = 0xFF;
	at += BTH_PART;
	return crc(0, head, (uint64_t)(at - head));
}

int engine_icrc_right(engine_crc crc, const struct engine_flow *flow, const uint8_t *packet, uint64_t length, uint32_t ident,
	       uint32_t frag)
{
	uint64_t covered = length - ICRC_BYTES;
	uint32_t state = engine_icrc_begin(crc, flow, length, ident, frag, packet);
	return crc(state, packet + BTH_PART, covered - BTH_PART) == le_load(packet + covered, ICRC_BYTES);
}
