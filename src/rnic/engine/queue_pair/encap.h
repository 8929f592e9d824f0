/* Build packets in bursts of equal segments, and seal them (transport/encap.py). */
#ifndef RNIC_ENGINE_ENCAP_H
#define RNIC_ENGINE_ENCAP_H

#include "memory/memory_key.h"

/* Return the operation of a message's packet, and of a READ's response. */
uint8_t engine_request_opcode(uint64_t opcode, int first, int last);
uint8_t engine_response_opcode(int first, int last);

/* Start a packet of `header` and `payload` bytes; returns the address of its header, or NULL if there is no room.
 * `run`: it belongs to a run of equal ones, which never ends a burst of longer packets. */
uint8_t *engine_packet_begin(struct engine_out *out, uint64_t header, uint64_t payload, int run);
/* Return the size of such a packet. */
uint64_t engine_packet_bytes(uint64_t header, uint64_t payload);
/* Return the number of packets of `length` bytes that are contiguous in one burst, from the started one on. */
uint64_t engine_packets_contiguous(const struct engine_out *out, uint64_t length);
/* Read the payloads of up to `count` packets of a run, `size` bytes each, from `va` on in one call; the first packet
 * was started at `frame`. */
void engine_packets_read_ahead(const struct engine_shared *shared, const struct engine_out *out, uint8_t *frame,
			       uint64_t header, const struct memory_key *key, uint64_t va, uint64_t size,
			       uint64_t count);
/* Pad and seal a packet whose payload is in place. */
void engine_packet_seal(struct engine_out *out, const struct engine_shared *shared, const struct engine_flow *flow,
			uint8_t *frame, uint64_t header, uint64_t payload);
/* Copy the payload from `from`, unless it is in place already, then pad and seal. 0, or -1 with the packet discarded if
 * it cannot be read. */
int engine_packet_fill(struct engine_out *out, const struct engine_shared *shared, const struct engine_flow *flow,
		       uint8_t *frame, uint64_t header, const struct origin *from, uint64_t payload);
/* Build MIDDLE packets of a message or READ response, which differ only in their PSN: up to `count` packets of `mtu`
 * bytes from `psn` on, as many as fit one burst. AckReq is set if the PSN is a multiple of `ack_every`; 0 for never.
 * Returns their number; 0: build them one by one, which reports the error. */
uint64_t engine_packets_run(struct engine_out *out, const struct engine_shared *shared, const struct engine_flow *flow,
			    uint64_t head, uint64_t psn, uint64_t ack_every, const struct origin *from, uint64_t mtu,
			    uint64_t count);
/* Close the last burst: no more packets join it. */
void engine_packets_flush(struct engine_out *out);

#endif
