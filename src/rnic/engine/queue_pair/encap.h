/* Packets into bursts of equal segments, sealed (transport/encap.py). */
#ifndef RNIC_ENGINE_ENCAP_H
#define RNIC_ENGINE_ENCAP_H

#include "memory/memory_key.h"

/* Return the operation of a message's packet, and of a READ's response. */
uint8_t engine_request_opcode(uint64_t opcode, int first, int last);
uint8_t engine_response_opcode(int first, int last);

/* Begin a packet of `header` and `payload` bytes; where its header goes, or NULL if there is no room. `run`: it is one
 * of a run of equal ones, which never ends a burst of longer packets. */
uint8_t *engine_packet_begin(struct engine_out *out, uint64_t header, uint64_t payload, int run);
/* Bytes of such a packet. */
uint64_t engine_packet_bytes(uint64_t header, uint64_t payload);
/* Return how many packets of `length` bytes lie one behind the other, from the one that was begun on, in one burst. */
uint64_t engine_packets_contiguous(const struct engine_out *out, uint64_t length);
/* Read the payloads of up to `count` packets of a run, `size` bytes each, from `va` on in one call; the first of the
 * packets was begun at `frame`. */
void engine_packets_read_ahead(const struct engine_shared *shared, const struct engine_out *out, uint8_t *frame,
			       uint64_t header, const struct memory_key *key, uint64_t va, uint64_t size,
			       uint64_t count);
/* Pad and seal a packet whose bytes are there. */
void engine_packet_seal(struct engine_out *out, const struct engine_shared *shared, const struct engine_flow *flow,
			uint8_t *frame, uint64_t header, uint64_t payload);
/* Fill in the payload from `from`, unless that is nowhere and it is there, then pad and seal. 0, or -1 with no packet
 * more if it cannot be read. */
int engine_packet_fill(struct engine_out *out, const struct engine_shared *shared, const struct engine_flow *flow,
		       uint8_t *frame, uint64_t header, const struct origin *from, uint64_t payload);
/* Make middles of a message or of a READ's responses, which differ in their PSN alone: up to `count` of `mtu` bytes, as
 * many as join one burst, from `psn` on. Each `ack_every` th asks for an ACK, 0 none. Return how many; 0: build them
 * singly, which reports the error. */
uint64_t engine_packets_run(struct engine_out *out, const struct engine_shared *shared, const struct engine_flow *flow,
			    uint64_t head, uint64_t psn, uint64_t ack_every, const struct origin *from, uint64_t mtu,
			    uint64_t count);
/* Close the last burst: no packet joins it any more. */
void engine_packets_flush(struct engine_out *out);

#endif
