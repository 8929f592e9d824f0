/* A received packet: its parts, and the checks that need only its bytes (004 7.3, RX packet process). */
#ifndef RNIC_ENGINE_PACKET_H
#define RNIC_ENGINE_PACKET_H

#include "queue_pair/bth.h"
#include "queue_pair/by_reference.h"

struct packet {
	const uint8_t *bytes;
	uint64_t length; /* with the ICRC */
	const struct opcode_row *row;
	uint8_t opcode;
	uint64_t psn;
	int ask; /* AckReq */
	int solicited;
	const uint8_t *payload;
	uint64_t size; /* of the payload, without pad */
	const struct engine_meta *meta;
	uint32_t ident;
	uint64_t more; /* further PSNs, of packets merged into one */
	const struct engine_by_reference *by_reference; /* its record if it has no payload, else NULL */
	struct engine_pull *pull; /* then reads the payload */
};

/* Return the service bits of the opcodes that a queue pair accepts, or NONE. */
uint64_t engine_service_bits(const struct engine_qp *qp);
/* Parse the packet at `at` of a buffer of segments; ENGINE_DONE, or a punt if it is not one for this queue pair. */
enum engine_end engine_packet_parse(const struct engine_qp *qp, const struct engine_meta *meta, const uint8_t *buffer,
				    size_t length, size_t segment, size_t at, struct packet *packet);
/* Return whether its ICRC is right; checked last, after everything else. */
int engine_packet_check_icrc(const struct engine_shared *shared, const struct packet *packet);

#endif
